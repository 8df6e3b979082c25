// The product of one warpgroup: 64 tokens × 256 weight rows, e4m3, scaled and summed in fp32.
#pragma once

#include "cuda/moe/tile.cuh"
#include "cuda/ptx/wgmma_e4m3.cuh"

namespace xstage::moe {

/// Sums of one thread. Element 4j + i of a half: token row(i), column 8j + 2·(lane % 4) + i % 2 of
/// the half's 128 weight rows, with row(i) = 16·warp + lane / 4 + 8·(i / 2) of the group's 64.
struct Sums {
  float half[2][64];
};

/// First of a thread's two token rows within its warpgroup; the second is 8 further on.
__device__ __forceinline__ int first_row() {
  return static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
}

/// 64×128 over one step of depth 128.
__device__ __forceinline__ void multiply_step(float (&product)[64], std::uint64_t a,
                                              std::uint64_t b) {
  ptx::hold_registers(product);
  ptx::wgmma_fence();
  ptx::wgmma_m64n128k32_e4m3<false>(product, a, b);
  ptx::wgmma_m64n128k32_e4m3<true>(product, a + 2, b + 2);
  ptx::wgmma_m64n128k32_e4m3<true>(product, a + 4, b + 4);
  ptx::wgmma_m64n128k32_e4m3<true>(product, a + 6, b + 6);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::hold_registers(product);
}

/// The Tensor Core keeps about 14 bits of a sum, so each step's product joins the sums here, with
/// its two scales.
__device__ __forceinline__ void add_scaled(float (&sum)[64], const float (&product)[64],
                                           float scale0, float scale1) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    sum[4 * j] += scale0 * product[4 * j];
    sum[4 * j + 1] += scale0 * product[4 * j + 1];
    sum[4 * j + 2] += scale1 * product[4 * j + 2];
    sum[4 * j + 3] += scale1 * product[4 * j + 3];
  }
}

/// All steps of a tile. `b_scales[h]`: the scales of half h, one a step.
__device__ __forceinline__ void multiply_tile(TileShared& s, Ring<kStages>& ring, int steps,
                                              const float* b_scales0, const float* b_scales1,
                                              Sums& sums) {
  const int group = static_cast<int>(threadIdx.x / 128);
  const int row = group * kGroupRows + first_row();
#pragma unroll
  for (int i = 0; i < 64; ++i) sums.half[0][i] = sums.half[1][i] = 0;
  float b0 = __ldg(b_scales0), b1 = __ldg(b_scales1);
  for (int step = 0; step < steps; ++step) {
    const int next = step + 1 < steps ? step + 1 : step;
    const float next_b0 = __ldg(b_scales0 + next), next_b1 = __ldg(b_scales1 + next);
    const int i = ring.index;
    wait(&s.full[i], ring.parity);
    const float a0 = s.a_scales[i][row], a1 = s.a_scales[i][row + 8];
    const std::uint64_t a = ptx::swizzled_descriptor(&s.a[i][group * kGroupRows * kBlockK], 16);
    float product[64];
    multiply_step(product, a, ptx::swizzled_descriptor(s.b[i][0], 16));
    add_scaled(sums.half[0], product, a0 * b0, a1 * b0);
    multiply_step(product, a, ptx::swizzled_descriptor(s.b[i][1], 16));
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&s.empty[i]);
    add_scaled(sums.half[1], product, a0 * b1, a1 * b1);
    ring.advance();
    b0 = next_b0;
    b1 = next_b1;
  }
}

/// A warpgroup without tokens in a tile lets its steps pass.
__device__ inline void skip_tile(TileShared& s, Ring<kStages>& ring, int steps) {
  for (int step = 0; step < steps; ++step) {
    wait(&s.full[ring.index], ring.parity);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&s.empty[ring.index]);
    ring.advance();
  }
}

}  // namespace xstage::moe
