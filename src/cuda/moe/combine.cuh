// Combine's last step, at the token's owner: the slots of each token, added in slot order.
//
// It moves (k + 1)·M·H values through memory and is the only step that nothing overlaps, so it runs
// at the memory's speed or costs time: every warp has 16 KiB on their way, by bulk copies into the
// shared memory that the tiles no longer need. Loads into registers would need 128 of them a thread
// for half of that.
#pragma once

#include <cstddef>

#include "cuda/moe/block.cuh"
#include "cuda/moe/numbers.cuh"
#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/bulk_load.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace xstage::moe {

/// A warp's work: `kSumColumns` columns of a token; units are dealt to all warps of the GPU in
/// turn.
inline constexpr int kSumColumns = 512;
inline constexpr int kSumBytes = 2 * kSumColumns;
inline constexpr int kSumPieces = 16;  ///< slots of units on their way, a warp

class SlotSum {
 public:
  /// `pieces`, `full`: of this warp, the latter initialised.
  __device__ SlotSum(const FusedParams& p, std::uint8_t* pieces, std::uint64_t* full)
      : p_(p),
        pieces_(pieces),
        full_(full),
        lane_(static_cast<int>(threadIdx.x % 32)),
        parts_(
            static_cast<std::int32_t>((p.layout.config.hidden + kSumColumns - 1) / kSumColumns)) {}

  /// Whole warp.
  __device__ void run() {
    const std::int64_t units = p_.tokens * parts_;
    const std::int64_t warps = std::int64_t{kThreads / 32} * gridDim.x;
    const std::int64_t own = blockIdx.x + std::int64_t{threadIdx.x / 32} * gridDim.x;
    for (std::int64_t first = own; first < units; first += 32 * warps) {
      const std::int64_t mine = first + lane_ * warps;
      token_ = mine < units ? static_cast<std::int32_t>(mine / parts_) : -1;
      part_ = static_cast<std::int32_t>(mine % parts_);
      used_ = token_ < 0 ? 0 : slots_of(token_);
      const int count = __popc(__ballot_sync(~0u, token_ >= 0));
      issue_unit_ = 0;
      issue_left_ = __shfl_sync(~0u, used_, 0);
      for (int i = 0; i < kSumPieces; ++i) issue(count);
      for (int unit = 0; unit < count; ++unit) sum(unit, count);
    }
  }

 private:
  /// Slots of a token that have an expert, a bit each.
  __device__ std::uint32_t slots_of(std::int64_t token) const {
    const std::int32_t topk = p_.layout.config.topk;
    std::uint32_t used = 0;
    for (std::int32_t slot = 0; slot < topk; ++slot)
      if (__ldg(p_.experts + token * topk + slot) >= 0) used |= 1u << slot;
    return used;
  }

  /// Values of a part: the last one of a token may be shorter.
  __device__ std::int32_t columns_of(std::int32_t part) const {
    const std::int64_t left = p_.layout.config.hidden - std::int64_t{part} * kSumColumns;
    return static_cast<std::int32_t>(left < kSumColumns ? left : kSumColumns);
  }

  /// Starts the next slot of this batch of units, if there is one.
  __device__ void issue(int count) {
    while (issue_left_ == 0) {
      if (++issue_unit_ >= count) return;
      issue_left_ = __shfl_sync(~0u, used_, issue_unit_);
    }
    const int slot = __ffs(static_cast<int>(issue_left_)) - 1;
    issue_left_ &= issue_left_ - 1;
    const std::int32_t token = __shfl_sync(~0u, token_, issue_unit_);
    const std::int32_t part = __shfl_sync(~0u, part_, issue_unit_);
    if (lane_ == 0) {
      const int piece = static_cast<int>(issued_ % kSumPieces);
      const auto bytes = static_cast<std::uint32_t>(2 * columns_of(part));
      const auto pair = static_cast<std::uint32_t>(token * p_.layout.config.topk + slot);
      ptx::mbarrier_arrive_expect(&full_[piece], bytes);
      ptx::bulk_load(
          pieces_ + piece * kSumBytes,
          p_.layout.combine_row(p_.symmetric[p_.rank], pair) + std::int64_t{part} * kSumColumns,
          bytes, &full_[piece]);
    }
    ++issued_;
  }

  /// fp32 sums in slot order, rounded once.
  __device__ void sum(int unit, int count) {
    const std::int64_t token = __shfl_sync(~0u, token_, unit);
    const std::int32_t part = __shfl_sync(~0u, part_, unit);
    const std::int32_t columns = columns_of(part);
    float sums[2][8] = {};
    for (std::uint32_t left = __shfl_sync(~0u, used_, unit); left != 0; left &= left - 1) {
      const int piece = static_cast<int>(done_ % kSumPieces);
      wait(&full_[piece], done_ / kSumPieces & 1);
      ++done_;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (256 * i < columns)
          add(sums[i],
              *reinterpret_cast<const uint4*>(pieces_ + piece * kSumBytes + 512 * i + 16 * lane_));
      __syncwarp();
      issue(count);
    }
    const std::int64_t at = token * p_.layout.config.hidden + std::int64_t{part} * kSumColumns;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (256 * i >= columns) break;
      const std::int64_t here = at + 256 * i + 8 * lane_;
      if (p_.addend != nullptr) add(sums[i], *reinterpret_cast<const uint4*>(p_.addend + here));
      *reinterpret_cast<uint4*>(p_.out + here) = {
          ptx::pack_bf16(sums[i][0], sums[i][1]), ptx::pack_bf16(sums[i][2], sums[i][3]),
          ptx::pack_bf16(sums[i][4], sums[i][5]), ptx::pack_bf16(sums[i][6], sums[i][7])};
    }
  }

  __device__ static void add(float (&sum)[8], const uint4& raw) {
    float v[8];
    unpack_bf16(raw, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += v[j];
  }

  const FusedParams& p_;
  std::uint8_t* pieces_;  ///< [kSumPieces][kSumBytes]
  std::uint64_t* full_;   ///< [kSumPieces]
  int lane_;
  std::int32_t parts_;       ///< units of a token
  std::int32_t token_ = -1;  ///< of this lane's unit in the batch, and what is to be added there
  std::int32_t part_ = 0;
  std::uint32_t used_ = 0;
  int issue_unit_ = 0;
  std::uint32_t issue_left_ = 0;
  std::uint32_t issued_ = 0, done_ = 0;
};

/// All warps of the block, when the tiles' shared memory is free and all results are here.
__device__ inline void sum_slots(const FusedParams& p, BlockShared& s) {
  constexpr int kWarps = kThreads / 32, kBarriers = kWarps * kSumPieces;
  constexpr std::size_t kFree =
      offsetof(TileShared, staging) + sizeof(TileShared::staging) - offsetof(TileShared, a);
  static_assert(kBarriers <= kThreads && kFree >= kBarriers * (kSumBytes + sizeof(std::uint64_t)));
  std::uint8_t* const pieces = s.tiles.a[0];
  auto* const full = reinterpret_cast<std::uint64_t*>(pieces + kBarriers * kSumBytes);
  if (threadIdx.x < kBarriers) ptx::mbarrier_init(&full[threadIdx.x], 1);
  ptx::fence_mbarrier_init();
  // Ordinary accesses had this memory before, and peers' results came through other copies.
  ptx::fence_proxy_async();
  __syncthreads();
  const int first = static_cast<int>(threadIdx.x / 32) * kSumPieces;
  SlotSum(p, pieces + first * kSumBytes, full + first).run();
}

}  // namespace xstage::moe
