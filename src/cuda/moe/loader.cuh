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
  const float* a_scales;  ///< [steps][kBlockM]
  int steps;
  std::int32_t tokens;
};

__device__ inline void load_tile(TileShared& s, Ring<kStages>& ring, const TileSource& source) {
  const std::uint32_t bytes =
      source.tokens > kGroupRows ? kStepBytes : kStepBytes - kGroupRows * kBlockK;
  for (int step = 0; step < source.steps; ++step) {
    const int i = ring.index;
    wait(&s.empty[i], ring.parity ^ 1);
    std::uint64_t* const full = &s.full[i];
    ptx::mbarrier_arrive_expect(full, bytes);
    const std::int32_t column = step * kBlockK;
    ptx::tensor_load(s.a[i], source.a, full, {column, source.row_a, 0, 0, 0});
    ptx::tensor_load(s.b[i][0], source.b, full, {column, source.row_b[0], 0, 0, 0});
    ptx::tensor_load(s.b[i][1], source.b, full, {column, source.row_b[1], 0, 0, 0});
    ptx::bulk_load(s.a_scales[i], source.a_scales + std::int64_t{step} * kBlockM,
                   kBlockM * sizeof(float), full);
    ring.advance();
  }
}

}  // namespace xstage::moe
