// What the warps of one thread block of the fused kernel share.
#pragma once

#include "cuda/device_policy.cuh"
#include "cuda/moe/fused.hpp"
#include "cuda/moe/tile.cuh"
#include "xstage/sync/moe.hpp"

namespace xstage::moe {

using Signals = sync::MoeSignals<cuda::DevicePolicy>;

/// Signals after one fence for many, or ahead of a barrier that orders them.
class FencedPolicy : public cuda::DevicePolicy {
 public:
  __device__ void store_release(std::uint64_t* word, std::uint64_t value) const {
    ptx::st_relaxed_sys(word, value);
  }
  __device__ void add_release(std::uint64_t* word, std::uint64_t value) const {
    ptx::red_add_relaxed_sys(word, value);
  }
  /// For numbers that say nothing about other memory: claims of this rank's blocks.
  __device__ std::uint64_t fetch_add(std::uint64_t* word, std::uint64_t value) const {
    return ptx::atom_add_relaxed_gpu(word, value);
  }
};

/// Signals between blocks of one rank. At system scope a release would wait for the stores to other
/// ranks as well.
class RankPolicy : public cuda::DevicePolicy {
 public:
  __device__ void add_release(std::uint64_t* word, std::uint64_t value) const {
    ptx::red_add_release_gpu(word, value);
  }
};
using RankSignals = sync::MoeSignals<RankPolicy>;

/// Tables of this launch, in shared memory behind BlockShared. Sources are ranks.
struct RouteTables {
  std::uint32_t* tokens;     ///< [E_l] of each local expert
  std::uint32_t* first_row;  ///< [E_l + 1]
  std::uint32_t* begin;      ///< [P][E_l]: a source's first place among its expert's tokens
  std::uint32_t* offset;     ///< [P][E_l + 1]: where an expert begins in a source's list
  std::uint32_t* sent;       ///< [P]: rows that this rank sends to each

  __host__ __device__ static constexpr std::int64_t words(std::int64_t ranks,
                                                          std::int64_t experts_local) {
    return 2 * experts_local + 1 + ranks * (2 * experts_local + 1) + ranks;
  }
  __device__ static RouteTables at(void* memory, std::int32_t ranks, std::int32_t experts_local) {
    RouteTables t;
    t.tokens = static_cast<std::uint32_t*>(memory);
    t.first_row = t.tokens + experts_local;
    t.begin = t.first_row + experts_local + 1;
    t.offset = t.begin + ranks * experts_local;
    t.sent = t.offset + ranks * (experts_local + 1);
    return t;
  }
};

struct BlockShared {
  TileShared tiles;
  std::uint64_t epoch;
};

__host__ __device__ constexpr std::int64_t block_shared_bytes(std::int64_t ranks,
                                                              std::int64_t experts_local) {
  return std::int64_t{sizeof(BlockShared)} + 4 * RouteTables::words(ranks, experts_local);
}

/// Tokens that a worker counts and routes: a range of its own.
struct TokenRange {
  std::int64_t begin, end;
};
__host__ __device__ constexpr std::int64_t tokens_a_worker(std::int64_t tokens,
                                                           std::int32_t workers) {
  return (tokens + workers - 1) / workers;
}
/// Bytes of a worker's scratch while it routes: totals, bases and offsets by expert, and one word
/// a pair. It lies where the tiles' steps will be.
__host__ __device__ constexpr std::int64_t route_scratch_bytes(std::int64_t experts,
                                                               std::int64_t worker_tokens,
                                                               std::int64_t topk) {
  return 4 * (3 * experts + 2 * worker_tokens * topk);
}
inline constexpr std::int64_t kRouteScratch = sizeof(TileShared::a) + sizeof(TileShared::b);

__device__ inline sync::WaitContext wait_context(const FusedParams& p, std::uint64_t epoch) {
  return {p.stop_words, p.layout.config.ranks, p.rank, static_cast<std::int32_t>(blockIdx.x), epoch,
          p.limit_ns,   p.records + blockIdx.x};
}

/// When a block reached a point of the launch, in ns of its GPU's timer, and what its loader
/// waited.
enum class Mark : int {
  kBegin,
  kCounted,     ///< all blocks have counted their pairs
  kWritten,     ///< the block has written its routes
  kPushed,      ///< the block has stored its tokens wherever they are needed
  kRouted,      ///< the tables of what comes here are complete
  kLanded,      ///< all tokens have landed here
  kDispatched,  ///< the block has put its share of tokens into the rows of the first tiles
  kIssued,      ///< the loader has fetched its last step
  kTilesDone,   ///< all warps have left their roles
  kCombined,    ///< all results for own tokens are here
  kEnd,
  kWaitedDispatch,  ///< a duration: the loader's waits for tokens
  kWaitedLinear1,   ///< a duration: the loader's waits for Linear-1
  // With XSTAGE_MOE_MECHANISM, of the first math warpgroup and its store warp:
  kWaitedStaging,  ///< a duration: the math warps' waits for staging
  kStoreIssue,     ///< a duration: issue of Linear-2's stores, first to last
  kStoreRead,      ///< a duration: the same until staging has been read
  kStoreTiles,     ///< how many of these
  kCount
};
/// As documents name them.
inline constexpr const char* kMarkNames[] = {
    "begin",          "counted",        "written",     "pushed",     "routed",     "landed",
    "dispatched",     "issued",         "tiles_done",  "combined",   "end",        "waited_tokens",
    "waited_linear1", "waited_staging", "store_issue", "store_read", "store_tiles"};
static_assert(sizeof kMarkNames / sizeof *kMarkNames == static_cast<int>(Mark::kCount));
/// From here on marks are durations (and a count).
inline constexpr Mark kFirstDuration = Mark::kWaitedDispatch;
/// Where a block begins with tiles.
inline constexpr Mark kTilesBegin = Mark::kDispatched;

__device__ inline void mark(const FusedParams& p, Mark which) {
  if (p.marks != nullptr)
    p.marks[blockIdx.x * static_cast<int>(Mark::kCount) + static_cast<int>(which)] =
        ptx::globaltimer();
}

/// The last index whose value is at most `wanted`; values grow, the first is at most `wanted`.
__device__ inline int last_at_most(const std::uint32_t* values, int count, std::uint32_t wanted) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (values[middle] <= wanted)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace xstage::moe
