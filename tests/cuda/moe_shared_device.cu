// The fused MoE layer with four and eight ranks on fewer GPUs: ranks of a GPU share its SMs, each
// with streams and blocks of its own, all of them resident together. What they compute and how they
// talk is what ranks with a GPU each do. Cases by their numbers: M2, M10, M13, M14, M17, M19.
//   moe_shared_device [SEED]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda/ptx/clock.cuh"
#include "moe_bench.cuh"

namespace xstage::moe_test {
namespace {

using std::chrono::milliseconds;

std::string name_of(const char* what, int ranks, int ranks_per_gpu) {
  return "EP" + std::to_string(ranks) + " on " + std::to_string(ranks / ranks_per_gpu) +
         (ranks == ranks_per_gpu ? " GPU, " : " GPUs, ") + what;
}

Sizes sizes(const char* what, int ranks, int ranks_per_gpu, std::int64_t hidden,
            std::int64_t intermediate, std::int64_t experts, std::int64_t topk,
            std::int64_t capacity, WeightFormat format = WeightFormat::kW8A8) {
  Sizes z{name_of(what, ranks, ranks_per_gpu),
          ranks,
          hidden,
          intermediate,
          experts,
          topk,
          capacity,
          format};
  z.ranks_per_gpu = ranks_per_gpu;
  return z;
}

std::vector<std::int64_t> uneven(int ranks, std::int64_t capacity) {
  std::vector<std::int64_t> tokens;
  for (int r = 0; r < ranks; ++r) tokens.push_back(r == 2 ? 0 : capacity - 37 * r % capacity);
  return tokens;
}

/// The same bits from every schedule as from the last launch.
void expect_any_schedule(Bench& b, const std::string& name) {
  b.keep();
  double different = 0;
  int launches = 0;
  for (const MoeDispatch dispatch : {MoeDispatch::kPerRank, MoeDispatch::kPerSlot})
    for (const MoeSchedule& s :
         {MoeSchedule::interleaved(1), MoeSchedule::interleaved(4), MoeSchedule::interleaved(64),
          MoeSchedule::wave(1), MoeSchedule::wave(3)}) {
      must(b.layer().set_schedule(s, dispatch), "schedule");
      b.run();
      different += b.words_that_differ();
      ++launches;
    }
  expect(different == 0, "%.0f words differ",
         name + ", " + std::to_string(launches) + " schedules, same bits (M14)", different);
  must(b.layer().set_schedule(MoeSchedule::interleaved(8), MoeDispatch::kPerRank), "schedule");
}

/// Right, whoever the tokens go to: balanced, zipf, all to other ranks, all to one (M13).
void routings(const Sizes& z, std::uint64_t seed) {
  Bench b(z, seed);
  const std::int64_t local = z.experts / z.ranks;
  const auto tokens = uneven(z.ranks, z.capacity);
  b.balanced(tokens, 0.1);
  b.run();
  b.compare(1);
  expect_any_schedule(b, z.name + " balanced");

  std::vector<double> until(static_cast<std::size_t>(z.experts));
  double sum = 0;
  for (std::size_t e = 0; e < until.size(); ++e)
    until[e] = sum += std::pow(static_cast<double>(e + 1), -1.2);
  b.route(tokens, [&](int, std::int64_t, std::int32_t* ids, std::mt19937_64& random) {
    std::vector<bool> taken(until.size(), false);
    for (std::int64_t s = 0; s < z.topk; ++s) {
      std::size_t e = 0;
      do {
        const double at = sum * static_cast<double>(random() % 1000003) / 1000003.0;
        e = static_cast<std::size_t>(std::upper_bound(until.begin(), until.end(), at) -
                                     until.begin());
        e = std::min(e, until.size() - 1);
      } while (taken[e]);
      taken[e] = true;
      ids[s] = static_cast<std::int32_t>(e);
    }
  });
  b.run();
  b.compare(3);
  expect_any_schedule(b, z.name + " zipf:1.2");

  b.route(tokens, [&](int rank, std::int64_t t, std::int32_t* ids, std::mt19937_64&) {
    for (std::int64_t s = 0; s < z.topk; ++s) {
      const std::int64_t to = (rank + 1 + (t + s) % (z.ranks - 1)) % z.ranks;
      ids[s] = static_cast<std::int32_t>(to * local + (t + s / (z.ranks - 1)) % local);
    }
  });
  b.run();
  b.compare(3);
  expect_any_schedule(b, z.name + " remote");

  for (const int to : {z.ranks - 1, 0}) {
    b.route(tokens, [&](int, std::int64_t t, std::int32_t* ids, std::mt19937_64&) {
      for (std::int64_t s = 0; s < z.topk; ++s)
        ids[s] = s < local ? static_cast<std::int32_t>(to * local + (t + s) % local) : -1;
    });
    b.run();
    b.compare(7);
  }
  expect_any_schedule(b, z.name + " all to rank 0");
}

void sleep_on(Bench& b, int rank, void (*sleep)(void*)) {
  b.use(rank);
  check(cudaLaunchHostFunc(b.streams()[static_cast<std::size_t>(rank)], sleep, nullptr), "late");
}

/// Launches without waiting for anything before them.
Result<bool> launch_and_finish(Bench& b) {
  if (auto done = b.layer().launch(b.inputs(), b.streams()); !done) return done;
  return b.layer().finish(b.streams());
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A rank that comes late is waited for; one that does not come ends the launch on every rank, with
/// an error that names the pair (M17); then the layer works again.
void late_and_absent(const Sizes& z, std::uint64_t seed) {
  Bench b(z, seed);
  b.balanced(std::vector<std::int64_t>(static_cast<std::size_t>(z.ranks), z.capacity));
  b.run();
  b.keep();
  const int late = z.ranks - 2;
  b.forget();
  sleep_on(b, late, [](void*) { std::this_thread::sleep_for(milliseconds(200)); });
  must(launch_and_finish(b), "late");
  b.expect_same("rank " + std::to_string(late) + " 200 ms late");

  sleep_on(b, late, [](void*) { std::this_thread::sleep_for(milliseconds(900)); });
  const auto begin = std::chrono::steady_clock::now();
  const auto done = launch_and_finish(b);
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  expect(!done && done.error().kind == ErrorKind::kTimeout && ms < 2000, "after %.0f ms",
         z.name + " M17, rank " + std::to_string(late) + " stops", ms);
  const std::vector<Error>& endings = b.layer().endings();
  int named = 0;
  for (std::size_t r = 0; r < endings.size(); ++r) {
    const std::string text = endings[r].message();
    std::printf("       %s\n", text.c_str());
    const bool own = contains(text, "rank " + std::to_string(r));
    const bool other =
        contains(text, "of rank " + std::to_string(late)) || static_cast<int>(r) == late;
    named += own && other ? 1 : 0;
  }
  expect(named == z.ranks, "%.0f of them", z.name + " M17, every rank says which pair waited",
         named);
  b.run();
  b.expect_same("after a rank that stopped");
}

__global__ void hold(std::uint64_t ns) {
  extern __shared__ char taken[];
  taken[0] = 0;
  const std::uint64_t begin = ptx::globaltimer();
  while (ptx::globaltimer() - begin < ns) __nanosleep(1000);
}

/// Another kernel holds an SM, so that a block of the grid cannot be resident (M2).
void held_sm(const Sizes& z, std::uint64_t seed) {
  Bench b(z, seed);
  b.balanced(std::vector<std::int64_t>(static_cast<std::size_t>(z.ranks), z.capacity));
  b.run();
  b.keep();
  constexpr int kBytes = 200 * 1024;
  cudaStream_t other = nullptr;
  check(cudaSetDevice(0), "device");
  check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "stream");
  check(cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "bytes");
  cudaDeviceProp gpu{};
  check(cudaGetDeviceProperties(&gpu, 0), "properties");
  // One SM more than the ranks leave.
  const int left = gpu.multiProcessorCount - b.config().workers * z.ranks_per_gpu;
  hold<<<left + 1, 32, kBytes, other>>>(800'000'000);
  check(cudaGetLastError(), "hold");
  std::this_thread::sleep_for(milliseconds(20));
  const auto begin = std::chrono::steady_clock::now();
  const auto done = launch_and_finish(b);
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  const std::string text = done ? "it waited for the SM" : done.error().message();
  // Alone, one rank is launched when the SM is free; its peers, or blocks of its own, give up.
  const bool right = z.ranks == 1 ? done.ok() : !done && done.error().kind == ErrorKind::kTimeout;
  expect(right && ms < 3000, "after %.0f ms", z.name + " M2, an SM is held: " + text, ms);
  check(cudaStreamSynchronize(other), "hold");
  check(cudaStreamDestroy(other), "stream");
  b.run();
  b.expect_same("M2, after the SM is free");
}

/// Launches that follow each other without a pause: epochs, and both slots of every buffer.
void many_launches(const Sizes& z, int launches, std::uint64_t seed) {
  Bench b(z, seed);
  std::mt19937_64 random(seed);
  double different = 0;
  int done = 0;
  while (done < launches) {
    std::vector<std::int64_t> tokens;
    for (int r = 0; r < z.ranks; ++r)
      tokens.push_back(
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(z.capacity + 1)));
    b.balanced(tokens, 0.1 * static_cast<double>(random() % 3));
    b.run();
    b.keep();
    for (int i = 0; i < 24; ++i, ++done) {
      must(b.layer().set_schedule(
               random() % 2 == 0
                   ? MoeSchedule::wave(static_cast<std::int32_t>(1 + random() % 4))
                   : MoeSchedule::interleaved(static_cast<std::int64_t>(1 + random() % 40)),
               random() % 2 == 0 ? MoeDispatch::kPerRank : MoeDispatch::kPerSlot),
           "schedule");
      must(b.layer().launch(b.inputs(), b.streams()), "launch");
    }
    must(b.layer().finish(b.streams()), "finish");
    different += b.words_that_differ();
  }
  expect(different == 0, "%.0f words differ",
         z.name + ", " + std::to_string(done) + " launches without a pause", different);
}

template <class T>
void expect_refused(const Result<T>& done, const std::string& name, const char* must_name) {
  const std::string text = done ? "accepted" : done.error().message();
  expect(!done && contains(text, must_name), "%.0f", name + ": " + text, 0);
}

/// Refused before anything is launched, by name.
void refusals(int sms) {
  layout::MoeConfig config;
  config.ranks = 4;
  config.topk = 2;
  config.experts = 8;
  config.hidden = 256;
  config.intermediate = 128;
  config.capacity = 64;
  config = moe::with_tiles(config, sms);
  const std::vector<layout::MoeConfig> of_rank(4, config);
  const std::vector<moe::RankWeights> weights(4);
  expect_refused(moe::Layer::create(of_rank, {0, 0, 0, 0}, weights),
                 "M2, four ranks with all SMs each", "4 ranks on GPU 0");
  expect_refused(moe::Layer::create(of_rank, {0, 0}, weights), "two GPUs named for four ranks",
                 "gpus");

  // M10: a buffer that no peer can reach names its rank.
  config.workers = sms / 4;
  const std::vector<layout::MoeConfig> fitting(4, config);
  const auto bytes = must(moe::buffer_bytes(config), "sizes");
  check(cudaSetDevice(0), "device");
  moe::RankBuffers buffers;
  for (int r = 0; r < 4; ++r)
    buffers.symmetric.push_back(device_array<std::uint8_t>(bytes.symmetric));
  buffers.workspace = device_array<std::uint8_t>(bytes.workspace);
  moe::RankBuffers wrong = buffers;
  wrong.symmetric[2] = nullptr;
  expect_refused(moe::RankLayer::create(fitting, 1, 0, wrong, {}), "M10, a null buffer of a peer",
                 "symmetric buffer of rank 2");
  std::vector<std::uint8_t> host(1024);
  wrong.symmetric[2] = host.data() + (256 - reinterpret_cast<std::uintptr_t>(host.data()) % 256);
  expect_refused(moe::RankLayer::create(fitting, 1, 0, wrong, {}),
                 "M10, a peer's buffer in host memory", "symmetric buffer of rank 2");
  int gpus = 0;
  check(cudaGetDeviceCount(&gpus), "count");
  expect_refused(moe::Layer::create(fitting, {0, 0, 0, gpus}, weights),
                 "M10, a GPU that is not there", "gpu");
  for (void* const p : buffers.symmetric) check(cudaFree(p), "free");
  check(cudaFree(buffers.workspace), "free");

  // M19: experts in more places than one would need another number of experts than the routing has.
  layout::MoeConfig redundant = config;
  redundant.experts = 9;
  expect_refused(moe::buffer_bytes(redundant), "M19, nine physical experts on four ranks",
                 "experts");
}

}  // namespace
}  // namespace xstage::moe_test

int main(int argc, char** argv) {
  using namespace xstage::moe_test;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  // A queue of the driver for every stream; read when the driver starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("SKIP: no GPU\n");
    return 77;
  }
  const std::uint64_t seed =
      argc > 1 ? std::strtoull(argv[1], nullptr, 10) : std::random_device{}();
  std::printf("seed %llu, %d GPUs\n", static_cast<unsigned long long>(seed), gpus);
  cudaDeviceProp is{};
  check(cudaGetDeviceProperties(&is, 0), "properties");
  refusals(is.multiProcessorCount);
  struct Group {
    int ranks, ranks_per_gpu;
  };
  std::vector<Group> groups = {{4, 4}, {8, 8}};
  if (gpus >= 2) groups = {{4, 4}, {4, 2}, {8, 4}, {8, 8}};
  for (const auto& [ranks, share] : groups) {
    routings(sizes("small", ranks, share, 512, 256, 4 * ranks, 4, 300), seed);
    routings(sizes("small", ranks, share, 768, 384, 2 * ranks, 3, 210, xstage::WeightFormat::kBf16),
             seed + 1);
    Sizes z = sizes("limits", ranks, share, 512, 256, 2 * ranks, 2, 200);
    z.wait = milliseconds(400);
    late_and_absent(z, seed + 2);
    held_sm(z, seed + 3);
    many_launches(sizes("epochs", ranks, share, 512, 256, 4 * ranks, 4, 150), 300, seed + 4);
  }
  Sizes alone{"one rank", 1, 512, 256, 4, 2, 200};
  alone.wait = milliseconds(400);
  held_sm(alone, seed + 5);
  if (gpus >= 2) {
    Sizes two{"a GPU each", 2, 512, 256, 4, 2, 200};
    two.wait = milliseconds(400);
    held_sm(two, seed + 6);
  }
  std::printf("%s\n", g_ok ? "PASSED" : "FAILED");
  return g_ok ? 0 : 1;
}
