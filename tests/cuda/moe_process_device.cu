// A process a rank, on buffers that the test allocates and shares by CUDA IPC: the same bits as all
// ranks in one process; ranks that differ, a missing buffer, a rank that is late, and one that
// dies.
//   moe_process_device
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cuda/moe/layer.hpp"
#include "moe_random.cuh"

namespace xstage::moe_test {
namespace {

using std::chrono::milliseconds;

constexpr int kRanks = 2;
constexpr int kSkip = 77;
constexpr std::int64_t kHidden = 512, kIntermediate = 256, kExperts = 16, kTopk = 4, kTokens = 150;
constexpr std::uint64_t kSeed = 5;

/// What the processes share. They never wait for each other without an end.
struct Board {
  std::atomic<int> arrived[64];
  std::atomic<bool> wrong{false};
  layout::MoeConfig config[kRanks];
  cudaIpcMemHandle_t handle[kRanks];
  std::uint16_t out[kRanks][kTokens * kHidden];
};

void must(cudaError_t code, const char* what) { check(code, what); }
template <class T>
T must(Result<T> result, const char* what) {
  if (!result) {
    std::printf("FAILED %s: %s\n", what, result.error().message().c_str());
    std::exit(1);
  }
  return std::move(result).value();
}

void barrier(Board& board, int& next) {
  std::atomic<int>& arrived = board.arrived[next++];
  ++arrived;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (arrived < kRanks) {
    if (std::chrono::steady_clock::now() > end) {
      std::printf("FAILED another process did not come\n");
      std::exit(1);
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void expect(Board& board, bool ok, const std::string& what) {
  std::printf("%s %s\n", ok ? "ok    " : "WRONG ", what.c_str());
  if (!ok) board.wrong = true;
}

layout::MoeConfig config_of(int workers) {
  layout::MoeConfig c;
  c.ranks = kRanks;
  c.topk = kTopk;
  c.experts = kExperts;
  c.hidden = kHidden;
  c.intermediate = kIntermediate;
  c.capacity = kTokens;
  c.schedule = schedule::MoeSchedule::interleaved(7);
  return moe::with_tiles(c, workers);
}

/// Weights and tokens of one rank on the current GPU, the same in every process.
struct RankData {
  moe::RankWeights weights;
  moe::RankInput input;
  explicit RankData(int rank) {
    const std::int64_t local = kExperts / kRanks;
    const std::uint64_t seed = kSeed + 100 * static_cast<std::uint64_t>(rank);
    const auto codes = [&](std::int64_t count, std::uint64_t stream) {
      auto* const p = device_array<std::uint8_t>(count);
      fill_codes<<<512, 256>>>(p, count, seed + stream, 60.0f);
      return p;
    };
    const auto scales = [&](std::int64_t count, std::uint64_t stream) {
      auto* const p = device_array<float>(count);
      fill_scales<<<64, 256>>>(p, count, seed + stream, 0.0005f, 0.0015f);
      return p;
    };
    weights.w1 = codes(local * 2 * kIntermediate * kHidden, 0);
    weights.w2 = codes(local * kHidden * kIntermediate, 1);
    weights.w1_scales = scales(local * (2 * kIntermediate / 128) * (kHidden / 128), 2);
    weights.w2_scales = scales(local * (kHidden / 128) * (kIntermediate / 128), 3);
    auto* const x = device_array<std::uint16_t>(kTokens * kHidden);
    fill_bf16<<<64, 256>>>(x, kTokens * kHidden, seed + 4);
    std::vector<std::int32_t> ids;
    std::vector<float> factors;
    for (std::int64_t i = 0; i < kTokens * kTopk; ++i) {
      ids.push_back(
          static_cast<std::int32_t>(mixed(seed + 5 + static_cast<std::uint64_t>(i)) % 17) - 1);
      factors.push_back(0.25f + 0.01f * static_cast<float>(i % 50));
    }
    auto* const experts = device_array<std::int32_t>(kTokens * kTopk);
    auto* const w = device_array<float>(kTokens * kTopk);
    must(cudaMemcpy(experts, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice), "ids");
    must(cudaMemcpy(w, factors.data(), factors.size() * 4, cudaMemcpyHostToDevice), "weights");
    auto* const out = device_array<std::uint16_t>(kTokens * kHidden);
    must(cudaMemset(out, 0xff, kTokens * kHidden * 2), "poison");
    input = {kTokens, x, experts, w, nullptr, out, nullptr};
    must(cudaDeviceSynchronize(), "fill");
  }
};

void refusals(Board& board, int rank, const std::vector<layout::MoeConfig>& configs,
              const moe::RankBuffers& buffers, const RankData& data) {
  auto differing = configs;
  differing[1].capacity += 1;
  const auto different = moe::RankLayer::create(differing, rank, rank, buffers, data.weights);
  expect(board, !different && different.error().message().find("capacity") != std::string::npos,
         "ranks of different capacity: " +
             (different ? std::string("accepted") : different.error().message()));
  moe::RankBuffers missing = buffers;
  missing.symmetric[static_cast<std::size_t>(1 - rank)] = nullptr;
  const auto null = moe::RankLayer::create(configs, rank, rank, missing, data.weights);
  expect(board,
         !null && null.error().message().find("symmetric buffer of rank") != std::string::npos,
         "a null buffer: " + (null ? std::string("accepted") : null.error().message()));
  int on_host[4] = {};
  missing = buffers;
  missing.workspace = reinterpret_cast<void*>(
      (reinterpret_cast<std::uintptr_t>(on_host) / moe::kBufferAlignment) * moe::kBufferAlignment);
  const auto host = moe::RankLayer::create(configs, rank, rank, missing, data.weights);
  expect(board, !host, "host memory: " + (host ? std::string("accepted") : host.error().message()));
}

/// All ranks in this process; whether the bits are those on the board.
void compare_with_one_process(Board& board, const std::vector<layout::MoeConfig>& configs) {
  std::vector<moe::RankWeights> weights;
  std::vector<moe::RankInput> inputs;
  std::vector<cudaStream_t> streams(kRanks);
  std::vector<int> gpus;
  for (int r = 0; r < kRanks; ++r) {
    must(cudaSetDevice(r), "device");
    const RankData data(r);
    weights.push_back(data.weights);
    inputs.push_back(data.input);
    gpus.push_back(r);
    must(cudaStreamCreateWithFlags(&streams[static_cast<std::size_t>(r)], cudaStreamNonBlocking),
         "stream");
  }
  auto layer = must(moe::Layer::create(configs, gpus, weights), "create");
  must(layer.launch(inputs, streams), "launch");
  must(layer.finish(streams), "finish");
  for (int r = 0; r < kRanks; ++r) {
    std::vector<std::uint16_t> out(kTokens * kHidden);
    must(cudaMemcpy(out.data(), inputs[static_cast<std::size_t>(r)].out, out.size() * 2,
                    cudaMemcpyDefault),
         "output");
    std::size_t different = 0;
    for (std::size_t i = 0; i < out.size(); ++i) different += out[i] != board.out[r][i];
    expect(board, different == 0,
           "rank " + std::to_string(r) + " beside one process with all ranks: " +
               std::to_string(different) + " values differ");
  }
}

int run_rank(Board& board, int rank) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int gpus = 0, next = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus < kRanks) return kSkip;
  must(cudaSetDevice(rank), "device");
  cudaDeviceProp is{};
  must(cudaGetDeviceProperties(&is, rank), "properties");
  board.config[rank] = config_of(is.multiProcessorCount);
  const auto bytes = must(moe::buffer_bytes(board.config[rank]), "sizes");
  const RankData data(rank);
  moe::RankBuffers buffers;
  buffers.symmetric.assign(kRanks, nullptr);
  void*& own = buffers.symmetric[static_cast<std::size_t>(rank)];
  // Whole pages: an IPC handle stands for them.
  constexpr std::int64_t kPage = 2 << 20;
  must(cudaMalloc(&own, static_cast<std::size_t>((bytes.symmetric + kPage - 1) / kPage * kPage)),
       "symmetric");
  must(cudaMalloc(&buffers.workspace, static_cast<std::size_t>(bytes.workspace)), "workspace");
  must(cudaIpcGetMemHandle(&board.handle[rank], own), "handle");
  barrier(board, next);
  for (int r = 0; r < kRanks; ++r)
    if (r != rank)
      must(cudaIpcOpenMemHandle(&buffers.symmetric[static_cast<std::size_t>(r)], board.handle[r],
                                cudaIpcMemLazyEnablePeerAccess),
           "peer's buffer");
  const std::vector<layout::MoeConfig> configs(board.config, board.config + kRanks);
  if (rank == 0) refusals(board, rank, configs, buffers, data);

  moe::Limits limits;
  limits.first = std::chrono::seconds(15);
  limits.later = milliseconds(800);
  auto layer =
      must(moe::RankLayer::create(configs, rank, rank, buffers, data.weights, limits), "create");
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  barrier(board, next);

  // Late for the first launch, by more than later launches are waited for.
  if (rank == 1) std::this_thread::sleep_for(milliseconds(2000));
  must(layer.launch(data.input, stream), "launch");
  const auto first = layer.finish(stream);
  expect(board, first.ok(),
         "rank " + std::to_string(rank) + ", rank 1 is 2 s late for the first launch");
  for (int i = 0; i < 40; ++i) {
    must(layer.set_schedule(
             i % 2 == 0 ? schedule::MoeSchedule::wave(1 + i % 5)
                        : schedule::MoeSchedule::interleaved(1 + i % 9),
             i % 3 == 0 ? layout::MoeDispatch::kPerSlot : layout::MoeDispatch::kPerRank),
         "schedule");
    must(layer.launch(data.input, stream), "launch");
  }
  must(layer.finish(stream), "launches");
  must(cudaMemcpy(board.out[rank], data.input.out, kTokens * kHidden * 2, cudaMemcpyDeviceToHost),
       "output");
  barrier(board, next);
  if (rank == 0) compare_with_one_process(board, configs);
  barrier(board, next);

  // Late for another launch: an error on every rank, then all of them go on.
  if (rank == 1) std::this_thread::sleep_for(milliseconds(2500));
  must(cudaSetDevice(rank), "device");
  must(layer.launch(data.input, stream), "launch");
  const auto late = layer.finish(stream);
  expect(board, !late.ok() && late.error().kind == ErrorKind::kTimeout,
         "rank " + std::to_string(rank) +
             ", rank 1 is late: " + (late ? std::string("accepted") : late.error().message()));
  barrier(board, next);
  must(layer.recover(), "recover");
  barrier(board, next);
  must(layer.launch(data.input, stream), "launch");
  expect(board, layer.finish(stream).ok(), "rank " + std::to_string(rank) + " goes on");
  barrier(board, next);

  // One rank dies. Its memory stays mapped here until this process lets go of it.
  if (rank == 1) _exit(0);
  std::this_thread::sleep_for(milliseconds(300));
  const auto begin = std::chrono::steady_clock::now();
  const auto orphan = [&]() -> Result<bool> {
    if (auto done = layer.launch(data.input, stream); !done) return done;
    return layer.finish(stream);
  }();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  expect(board, !orphan.ok() && seconds < 20,
         "rank 1 is dead, after " + std::to_string(seconds) +
             " s: " + (orphan ? std::string("accepted") : orphan.error().message()));
  return 0;
}

}  // namespace
}  // namespace xstage::moe_test

int main() {
  using namespace xstage::moe_test;
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  Board& board = *new (memory) Board;
  // No CUDA before the processes part.
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    if (child == 0) std::exit(run_rank(board, rank));
    children.push_back(child);
  }
  int worst = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (code != 0) worst = code;
  }
  if (worst == kSkip) {
    std::printf("SKIP: fewer than two GPUs\n");
    return kSkip;
  }
  const bool ok = worst == 0 && !board.wrong;
  std::printf("%s\n", ok ? "PASSED" : "FAILED");
  return ok ? 0 : 1;
}
