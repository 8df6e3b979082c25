// From a warpgroup's registers through staging to global memory: math warps fill, a store warp for
// each warpgroup empties. Two, because a warp takes some 70 cycles for a bulk copy: a tile's 128
// rows would be 9000, more than a short tile's products.
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
  wait(s, &s.staging_free[group], parity ^ 1, Awaited::kFreeStaging);
}

/// Hands staging to the store warp. Only shared memory: a fence that covers global memory as well
/// waits for everything that the SM has under way, 6000 cycles a tile.
__device__ __forceinline__ void hand_staged(TileShared& s, int group) {
  ptx::fence_proxy_async_shared();
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

/// A store warp's side: the warpgroup whose staging it empties, and how often it did.
struct StoreState {
  int group;
  std::uint32_t parity = 0;
  std::uint32_t other_parity = 0;  ///< of TileShared::other_stored, a bit each; the first warp's
};

/// Whole warp; false: nothing may be stored.
__device__ __forceinline__ bool wait_staged(TileShared& s, StoreState& state) {
  // Once something has given up, what is staged may be anything.
  const bool good = wait(s, &s.staged[state.group], state.parity, Awaited::kStaged) && !given_up(s);
  state.parity ^= 1;
  return !kWaitLimits || __all_sync(~0u, good);
}

/// Rows of a warpgroup's half of a tile, as staged by stage_bf16, to where `destination(row)` says
/// (512 bytes each; `row` of the tile). Returns when staging may be used again; whole warp. False:
/// nothing was stored. `issue` and `read` are told when stores begin, and when they are issued and
/// read.
template <class Destination, class Watch>
__device__ __forceinline__ bool store_rows(TileShared& s, StoreState& state, int tokens,
                                           Destination&& destination, Watch& issue, Watch& read) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  char* to[2];
  for (int i = 0; i < 2; ++i) {
    const int row = state.group * kGroupRows + 32 * i + lane;
    to[i] = row < tokens ? destination(row) : nullptr;
  }
  if (!wait_staged(s, state)) return false;
  issue.begin();
  read.begin();
  for (int i = 0; i < 2; ++i)
    if (to[i] != nullptr)
      ptx::bulk_store(to[i], &s.staging[state.group][(32 * i + lane) * kStagedRowBytes],
                      2 * kBlockN);
  ptx::bulk_commit();
  issue.end();
  ptx::bulk_wait_source();
  read.end();
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(&s.staging_free[state.group]);
  return true;
}

struct NoWatch {
  __device__ void begin() {}
  __device__ void end() {}
};
template <class Destination>
__device__ __forceinline__ void store_rows(TileShared& s, StoreState& state, int tokens,
                                           Destination&& destination) {
  NoWatch none;
  store_rows(s, state, tokens, static_cast<Destination&&>(destination), none, none);
}

}  // namespace xstage::moe
