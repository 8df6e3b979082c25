// The loader: one thread that fetches the steps of a tile, kStages ahead of the Tensor Core.
#pragma once

#include "cuda/moe/tile.cuh"
#include "cuda/ptx/bulk_load.cuh"
#include "cuda/ptx/tensor.cuh"

namespace xstage::moe {

/// Where a tile's operands are. `row_…` are rows of the maps' tensors.
struct TileSource {
  const CUtensorMap* a;  ///< boxes of kGroupRows tokens if there are no more, else of kBlockM
  const CUtensorMap* b;
  std::int32_t row_a;
  std::int32_t row_b[2];
  const float* a_scales;  ///< [steps][kBlockM]; null: there are none
  int steps;
  std::int32_t tokens;
};

/// A tile is claimed when this many steps of the one before are left to fetch: late, because a
/// claimed tile waits for its turn while others may wait for its result, and rows that should share
/// weights drift apart; early enough for the answer to come.
inline constexpr int kClaimSteps = 3;

/// `claim()` is called when the next tile should be claimed.
template <class Claim>
__device__ __forceinline__ void load_tile(TileShared& s, Ring<kStages>& ring,
                                          const TileSource& source, Claim&& claim) {
  const bool scaled = source.a_scales != nullptr;
  const std::uint32_t bytes = kStepBytes - (source.tokens > kGroupRows ? 0 : kGroupRows * kBlockK) -
                              (scaled ? 0 : kBlockM * std::uint32_t{sizeof(float)});
  const int claim_at = source.steps > kClaimSteps ? source.steps - kClaimSteps : 0;
  for (int step = 0; step < source.steps; ++step) {
    if (step == claim_at) claim();
    const int i = ring.index;
    if (!wait(s, &s.empty[i], ring.parity ^ 1, Awaited::kFreeStep)) return;
    std::uint64_t* const full = &s.full[i];
    ptx::mbarrier_arrive_expect(full, bytes);
    const std::int32_t column = step * kBlockK;
    ptx::tensor_load(s.a[i], source.a, full, {column, source.row_a, 0, 0, 0});
    ptx::tensor_load(s.b[i][0], source.b, full, {column, source.row_b[0], 0, 0, 0});
    ptx::tensor_load(s.b[i][1], source.b, full, {column, source.row_b[1], 0, 0, 0});
    if (scaled)
      ptx::bulk_load(s.a_scales[i], source.a_scales + std::int64_t{step} * kBlockM,
                     kBlockM * sizeof(float), full);
    ring.advance();
  }
}

}  // namespace xstage::moe
