// One tile of a w8a8 product, as its warps share it: sizes, shared memory, and who waits for whom.
//
// 128 tokens × 256 weight rows, 128 values of depth a step. Why these sizes:
//   - Without sharing between blocks a step of 128×256 reads 48 KiB from L2 for 1024 cycles of
//     Tensor Core work; 128×128 would read 64 KiB for the same work, more than L2 delivers to all
//     SMs at once.
//   - Two math warpgroups, 64 tokens each, hold 128 sums a thread and one product of 64×128 at a
//     time (64 more registers); while one adds its product to its sums, the other's runs.
//   - The two halves of the 256 weight rows are separate boxes: in Linear-1 gate rows and the up
//     rows that belong to them, so SwiGLU happens in registers and weights need no rearranging.
// Three steps in flight are 144 KiB, staging for both warpgroups 66 KiB.
#pragma once

#include <cstdint>

#include "cuda/moe/awaited.hpp"
#include "cuda/ptx/clock.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace xstage::moe {

inline constexpr int kBlockM = 128;
inline constexpr int kBlockN = 256;
inline constexpr int kBlockK = 128;
inline constexpr int kHalfN = 128;
inline constexpr int kStages = 3;

inline constexpr int kMathGroups = 2;
inline constexpr int kGroupRows = 64;
inline constexpr int kMathWarps = 4 * kMathGroups;
inline constexpr int kFrontWarps = 4;
inline constexpr int kThreads = 32 * (kMathWarps + kFrontWarps);
/// A block is launched with 168 registers a thread; what one role gives up the others may take, and
/// asking for more waits for ever.
inline constexpr int kLaunchRegisters = 168;
inline constexpr int kMathRegisters = 224;
inline constexpr int kFrontRegisters = 56;
static_assert(kMathRegisters * 32 * kMathWarps + kFrontRegisters * 32 * kFrontWarps <=
              kLaunchRegisters * kThreads);

/// A staged row of 256 bf16 values, and 16 bytes so that eight rows lie in different banks.
inline constexpr int kStagedRowBytes = 2 * kBlockN + 16;

/// A box of a warpgroup's tokens, as Linear-1 stores its result.
inline constexpr int kBoxBytes = kGroupRows * kBlockK;

enum class TaskKind : std::int32_t { kEnd, kLinear1, kLinear2 };

/// What the loader tells the other roles about the tile whose steps come next.
struct alignas(16) TileTask {
  std::int64_t row = 0;
  std::int32_t expert = 0;
  std::int32_t column = 0;
  std::int32_t tokens = 0;  ///< rows of the tile that are filled
  TaskKind kind = TaskKind::kEnd;
};

inline constexpr int kTasks = 2;
inline constexpr int kOtherStored = 2 * kTasks;

/// Lies at a multiple of 1024 bytes.
struct alignas(128) TileShared {
  std::uint8_t a[kStages][kBlockM * kBlockK];
  std::uint8_t b[kStages][2][kHalfN * kBlockK];
  std::uint8_t staging[kMathGroups][kGroupRows * kStagedRowBytes];
  float staged_scales[kMathGroups][kGroupRows];  ///< of Linear-1's results
  float a_scales[kStages][kBlockM];
  TileTask tasks[kTasks];
  std::uint64_t full[kStages];              ///< a step's boxes have arrived
  std::uint64_t empty[kStages];             ///< both warpgroups have used it
  std::uint64_t task_full[kTasks];          ///< a task is there
  std::uint64_t task_empty[kTasks];         ///< the warpgroups and the store warps have read it
  std::uint64_t staged[kMathGroups];        ///< a warpgroup's result is in staging
  std::uint64_t staging_free[kMathGroups];  ///< its store warp has read it
  /// The second warpgroup's half of a Linear-1 tile is in memory. A tile in turn: its store warp
  /// can be two tiles ahead of the first one (which has taken the task of tile i when tile i +
  /// kTasks is put up), and a barrier that completes two phases before one is waited for is never
  /// seen.
  std::uint64_t other_stored[kOtherStored];
  std::uint64_t wait_limit_ns;
  std::uint32_t given_up;  ///< 0, or given_up_code() of the first wait that passed its limit
};
static_assert(sizeof(TileShared::a[0]) % 1024 == 0 && sizeof(TileShared::b[0][0]) % 1024 == 0 &&
                  sizeof(TileShared::staging[0]) % 1024 == 0,
              "a swizzled box begins at a multiple of 1024 bytes");

inline constexpr std::uint32_t kStepBytes =
    kBlockM * kBlockK + 2 * kHalfN * kBlockK + kBlockM * std::uint32_t{sizeof(float)};

/// One thread, before anyone else touches the barriers.
__device__ inline void init_barriers(TileShared& s, std::uint64_t wait_limit_ns) {
  if constexpr (kWaitLimits) {
    s.wait_limit_ns = wait_limit_ns;
    s.given_up = 0;
  }
  for (int i = 0; i < kStages; ++i) {
    ptx::mbarrier_init(&s.full[i], 1);
    ptx::mbarrier_init(&s.empty[i], kMathWarps);
  }
  for (int i = 0; i < kTasks; ++i) {
    ptx::mbarrier_init(&s.task_full[i], 1);
    ptx::mbarrier_init(&s.task_empty[i], kMathWarps + kMathGroups);
  }
  for (int i = 0; i < kOtherStored; ++i) ptx::mbarrier_init(&s.other_stored[i], 1);
  for (int i = 0; i < kMathGroups; ++i) {
    ptx::mbarrier_init(&s.staged[i], 4);
    ptx::mbarrier_init(&s.staging_free[i], 1);
  }
  ptx::fence_mbarrier_init();
}

/// Position in a ring of kCount barriers; the parity flips every round.
template <int kCount>
struct Ring {
  int index = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++index == kCount) {
      index = 0;
      parity ^= 1;
    }
  }
};

__device__ __forceinline__ bool given_up(const TileShared& s) {
  if constexpr (!kWaitLimits) return false;
  return *static_cast<const volatile std::uint32_t*>(&s.given_up) != 0;
}

/// Waits inside a block end by themselves: whatever fails outside of it ends the tasks first.
/// With kWaitLimits one that does not end gives up at the limit and is remembered; the loader then
/// ends the tasks, and all other waits give up at once: false. Who waits for steps goes on with
/// what is there; nothing of it leaves the block.
///
/// Only waits of the ring of tasks go on: the loader's last task ends them, for all warps of a
/// warpgroup after the same products. A product that some of them never begin does not end.
__device__ __forceinline__ bool wait(TileShared& s, std::uint64_t* barrier, std::uint32_t parity,
                                     Awaited what) {
  if constexpr (!kWaitLimits) {
    while (!ptx::mbarrier_try_wait(barrier, parity)) {
    }
    return true;
  }
  if (ptx::mbarrier_try_wait(barrier, parity)) return true;
  const bool of_tasks = what == Awaited::kTask || what == Awaited::kFreeTask;
  constexpr std::uint32_t kTries = 32;
  std::uint64_t begin = 0;
  for (std::uint32_t tries = 1; !ptx::mbarrier_try_wait(barrier, parity); ++tries) {
    if (tries % kTries != 0) continue;
    if (!of_tasks && given_up(s)) return false;
    if (begin == 0) begin = ptx::globaltimer();
    if (ptx::globaltimer() - begin <= s.wait_limit_ns) continue;
    atomicCAS(&s.given_up, 0u, given_up_code(what, threadIdx.x / 32));
    if (!of_tasks) return false;
  }
  return true;
}

/// For what a warp waits for alone: its own bulk copies.
__device__ __forceinline__ void wait(std::uint64_t* barrier, std::uint32_t parity) {
  while (!ptx::mbarrier_try_wait(barrier, parity)) {
  }
}

/// The loader's side: puts a task up. One thread.
__device__ inline void put_task(TileShared& s, Ring<kTasks>& ring, const TileTask& task) {
  wait(s, &s.task_empty[ring.index], ring.parity ^ 1, Awaited::kFreeTask);
  s.tasks[ring.index] = task;
  ptx::mbarrier_arrive(&s.task_full[ring.index]);
  ring.advance();
}

/// Whether take_task() would not wait; each warp for itself.
__device__ __forceinline__ bool task_is_there(TileShared& s, const Ring<kTasks>& ring) {
  return __all_sync(~0u, ptx::mbarrier_test_wait(&s.task_full[ring.index], ring.parity));
}

/// The other side; whole warps.
__device__ inline TileTask take_task(TileShared& s, Ring<kTasks>& ring) {
  wait(s, &s.task_full[ring.index], ring.parity, Awaited::kTask);
  const TileTask task = s.tasks[ring.index];
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&s.task_empty[ring.index]);
  ring.advance();
  return task;
}

}  // namespace xstage::moe
