// From a warpgroup's registers through staging to global memory: math warps fill, the store warp
// empties.
//
// Stores are bulk copies of whole row pieces. A 16-byte store a thread would stay in the SM until
// the link has taken it and hold up the shared-memory loads of the next tile; a bulk copy does not.
#pragma once

#include "cuda/moe/product.cuh"
#include "cuda/moe/tile.cuh"
#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace xstage::moe {

/// A math warp's side of the staging of its group; the parity flips with every tile it stages.
__device__ __forceinline__ void wait_staging_free(TileShared& s, int group, std::uint32_t parity) {
  wait(&s.staging_free[group], parity ^ 1);
}

/// Hands staging, and what the threads wrote to global memory before, to the store warp.
__device__ __forceinline__ void hand_staged(TileShared& s, int group) {
  ptx::fence_proxy_async();
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&s.staged[group]);
}

/// 64 rows of 256 bf16 values, kStagedRowBytes apart.
__device__ __forceinline__ void stage_bf16(std::uint8_t* staging, const Sums& sums) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = static_cast<int>(threadIdx.x % 128 / 32 * 16) + lane / 8 % 2 * 8 + lane % 8;
  const std::uint32_t base = ptx::shared_address(staging) +
                             static_cast<std::uint32_t>(row * kStagedRowBytes + lane / 16 * 16);
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      const float* const v = &sums.half[half][4 * j];
      ptx::stmatrix_x4(base + half * 256 + j * 16, ptx::pack_bf16(v[0], v[1]),
                       ptx::pack_bf16(v[2], v[3]), ptx::pack_bf16(v[4], v[5]),
                       ptx::pack_bf16(v[6], v[7]));
    }
}

/// The store warp's side: parities of the two groups' staging.
struct StoreState {
  std::uint32_t parity[kMathGroups] = {0, 0};
};

__device__ __forceinline__ void wait_staged(TileShared& s, StoreState& state, int group) {
  wait(&s.staged[group], state.parity[group]);
  state.parity[group] ^= 1;
}

/// Rows of a tile, as staged by stage_bf16, to where `destination(row)` says (512 bytes each, a
/// null pointer leaves the row out). Returns when staging may be used again; whole warp.
template <class Destination>
__device__ __forceinline__ void store_rows(TileShared& s, StoreState& state, int tokens,
                                           Destination&& destination) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int groups = tokens > kGroupRows ? 2 : 1;
#pragma unroll
  for (int group = 0; group < kMathGroups; ++group) {
    if (group >= groups) break;
    char* to[2];
    for (int i = 0; i < 2; ++i) {
      const int row = group * kGroupRows + 32 * i + lane;
      to[i] = row < tokens ? destination(row) : nullptr;
    }
    wait_staged(s, state, group);
    for (int i = 0; i < 2; ++i)
      if (to[i] != nullptr)
        ptx::bulk_store(to[i], &s.staging[group][(32 * i + lane) * kStagedRowBytes], 2 * kBlockN);
    ptx::bulk_commit();
  }
  ptx::bulk_wait_source();
  __syncwarp();
  if (lane < groups) ptx::mbarrier_arrive(&s.staging_free[lane]);
}

}  // namespace xstage::moe
