// The output flag as a litmus test: a tile goes to the peer by TMA, then its signal; the peer reads
// the tile by TMA as soon as it has seen the signal. The accesses are the fused kernel's own, in
// its order: output.cuh (sent_off), signals.cuh, sync/wait.hpp. Skipped without a GPU; with one GPU
// both ranks share it.
#include "cuda/device_policy.cuh"
#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/bulk_load.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ulysses/shared.cuh"
#include "ulysses_ranks.cuh"

namespace xstage::ulysses::test {
namespace {

constexpr int kBlocks = 64;
constexpr int kTile = 4096;    // bytes
constexpr int kThreads = 160;  // a warpgroup that stores and checks, a warp that signals and loads

enum class Signal {
  kWhenStored,   ///< as the fused kernel does
  kBeforeStored  ///< the tile leaves kLateNs behind its signal
};
constexpr std::uint64_t kLateNs = 10'000;  // several flights of a flag (1.15 us)

struct Args {
  std::uint8_t* own = nullptr;  ///< [2 slots][kBlocks][kTile], where the peer stores
  std::uint8_t* peer = nullptr;
  std::uint64_t* own_flags = nullptr;  ///< [kBlocks], kFlagBytes apart
  std::uint64_t* peer_flags = nullptr;
  std::uint64_t* stop_words[2] = {};
  sync::WaitRecord* records = nullptr;
  unsigned long long* wrong = nullptr;
  std::uint32_t rank = 0, rounds = 0;
  Signal signal = Signal::kWhenStored;
};

__device__ std::uint32_t word_of(std::uint32_t rank, std::uint32_t round, int i) {
  std::uint32_t x =
      (round * 2 + rank) * 0x9e3779b9u + blockIdx.x * 8191 + static_cast<std::uint32_t>(i);
  x = (x ^ (x >> 16)) * 0x7feb352du;
  return x ^ (x >> 15);
}

__global__ void __launch_bounds__(kThreads) pass_tiles(const __grid_constant__ Args args) {
  __shared__ __align__(128) std::uint32_t staging[kTile / 4], arrived[kTile / 4];
  __shared__ std::uint64_t may_signal, may_store, loaded;
  const int t = static_cast<int>(threadIdx.x);
  constexpr std::int64_t kStep = layout::kFlagBytes / 8;
  cuda::DevicePolicy policy;
  sync::WaitContext context;
  context.stop_words = args.stop_words;
  context.ranks = 2;
  context.rank = static_cast<std::int32_t>(args.rank);
  context.worker = static_cast<std::int32_t>(blockIdx.x);
  context.limit_ns = 1'000'000'000;
  context.record = args.records + blockIdx.x;
  if (t == 0) {
    ptx::mbarrier_init(&may_signal, 1);
    ptx::mbarrier_init(&may_store, 1);
    ptx::mbarrier_init(&loaded, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  unsigned long long wrong = 0;
  for (std::uint32_t round = 1; round <= args.rounds; ++round) {
    const std::uint32_t parity = (round & 1) ^ 1;
    const std::int64_t place = ((round & 1) * kBlocks + blockIdx.x) * std::int64_t{kTile};
    if (t < 128) {
      for (int i = t; i < kTile / 4; i += 128) staging[i] = word_of(args.rank, round, i);
      ptx::fence_proxy_async_shared();
      ptx::named_barrier_sync(1, 128);
      if (t == 0) {
        if (args.signal == Signal::kBeforeStored) {
          await(&may_store, parity);
          const std::uint64_t begin = ptx::globaltimer();
          while (ptx::globaltimer() - begin < kLateNs) {
          }
        }
        ptx::bulk_store(args.peer + place, staging, kTile);
        ptx::bulk_commit();
        ptx::bulk_wait_done();
        ptx::fence_proxy_async();
        ptx::mbarrier_arrive(&may_signal);
      }
    } else if (t == 128) {
      std::uint64_t* const flag = args.peer_flags + blockIdx.x * kStep;
      if (args.signal == Signal::kWhenStored) await(&may_signal, parity);
      policy.add_release(flag, 1);
      ptx::mbarrier_arrive(&may_store);
      if (!sync::wait_at_least(policy, context, args.own_flags + blockIdx.x * kStep, round,
                               sync::Site::kOutputPieces, 1 - context.rank))
        __trap();
      ptx::fence_proxy_async();
      ptx::mbarrier_arrive_expect(&loaded, kTile);
      ptx::bulk_load(arrived, args.own + place, kTile, &loaded);
    }
    await(&loaded, parity);
    for (int i = t; i < kTile / 4; i += kThreads)
      wrong += arrived[i] != word_of(1 - args.rank, round, i);
    __syncthreads();
  }
  if (wrong != 0) atomicAdd(args.wrong, wrong);
}

/// Words that were not what the peer had sent, of both ranks.
unsigned long long wrong_words(int devices, std::uint32_t rounds, Signal signal) {
  std::unique_ptr<DeviceArray<std::uint8_t>> memory[2];
  std::unique_ptr<DeviceArray<std::uint64_t>> flags[2];
  std::unique_ptr<DeviceArray<sync::WaitRecord>> records[2];
  std::unique_ptr<DeviceArray<unsigned long long>> wrong[2];
  RankGroup group(2, devices, 1 << 16);  // peer access and streams
  for (int rank = 0; rank < 2; ++rank) {
    group.use(rank);
    memory[rank] = std::make_unique<DeviceArray<std::uint8_t>>(2 * kBlocks * kTile);
    flags[rank] =
        std::make_unique<DeviceArray<std::uint64_t>>((kBlocks + 1) * layout::kFlagBytes / 8);
    records[rank] = std::make_unique<DeviceArray<sync::WaitRecord>>(kBlocks);
    wrong[rank] = std::make_unique<DeviceArray<unsigned long long>>(1);
    memory[rank]->set_bytes(0);
    flags[rank]->set_bytes(0);
    records[rank]->set_bytes(0);
    wrong[rank]->set_bytes(0);
  }
  group.synchronize();
  for (int rank = 0; rank < 2; ++rank) {
    group.use(rank);
    Args args;
    args.own = memory[rank]->get();
    args.peer = memory[1 - rank]->get();
    args.own_flags = flags[rank]->get();
    args.peer_flags = flags[1 - rank]->get();
    for (int r = 0; r < 2; ++r)
      args.stop_words[r] = flags[r]->get() + kBlocks * layout::kFlagBytes / 8;
    args.records = records[rank]->get();
    args.wrong = wrong[rank]->get();
    args.rank = static_cast<std::uint32_t>(rank);
    args.rounds = rounds;
    args.signal = signal;
    pass_tiles<<<kBlocks, kThreads, 0, group.stream(rank)>>>(args);
    EXPECT_EQ(cudaSuccess, cudaGetLastError());
  }
  group.synchronize();
  unsigned long long sum = 0;
  for (const auto& w : wrong) {
    unsigned long long count = 1;
    EXPECT_EQ(cudaSuccess, cudaMemcpy(&count, w->get(), sizeof count, cudaMemcpyDeviceToHost));
    sum += count;
  }
  return sum;
}

class OutputFlag : public ::testing::Test {
 protected:
  void SetUp() override {
    devices_ = std::min(gpus(), 2);
    if (devices_ < 1) GTEST_SKIP() << "needs a GPU of compute capability 9.0";
  }
  int devices_ = 0;
};

TEST_F(OutputFlag, AMillionTilesReadByTmaRightAfterIt) {
  EXPECT_EQ(0u, wrong_words(devices_, 1'000'000 / kBlocks / 2 + 1, Signal::kWhenStored));
}

// So the test above can fail. Of two ranks the one that signals first reads the other's tile a
// flight behind its signal, so too early in every round: at least half of all words are wrong. (A
// relaxed signal right behind the store's issue, which waits for nothing, was caught once in four
// runs of 2.6 million tiles each: no test, but the wait for completion is not superfluous.)
TEST_F(OutputFlag, ASignalBeforeTheTileIsNoticed) {
  constexpr std::uint32_t kRounds = 2000;
  const unsigned long long wrong = wrong_words(devices_, kRounds, Signal::kBeforeStored);
  EXPECT_GT(static_cast<double>(wrong), 0.4 * kRounds * (2.0 * kBlocks * kTile / 4));
}

}  // namespace
}  // namespace xstage::ulysses::test
