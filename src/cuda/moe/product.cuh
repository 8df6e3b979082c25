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

/// Begins 64×128 over one step of depth 128.
__device__ __forceinline__ void begin_product(float (&product)[64], std::uint64_t a,
                                              std::uint64_t b) {
  ptx::hold_registers(product);
  ptx::wgmma_fence();
  ptx::wgmma_m64n128k32_e4m3<false>(product, a, b);
  ptx::wgmma_m64n128k32_e4m3<true>(product, a + 2, b + 2);
  ptx::wgmma_m64n128k32_e4m3<true>(product, a + 4, b + 4);
  ptx::wgmma_m64n128k32_e4m3<true>(product, a + 6, b + 6);
  ptx::wgmma_commit();
}

__device__ __forceinline__ void end_product(float (&product)[64]) {
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

/// The scales of a tile's weights, one a half and step; a lane has those of one step of 32. A warp
/// loads them while the tile before it is staged, if it knows its next tile by then: the first
/// product would be done before they come.
struct WeightScales {
  const float* of_half[2];  ///< [steps]
  int steps;
  float held[2];

  __device__ __forceinline__ void load(int first) {
    const int step = first + static_cast<int>(threadIdx.x % 32);
    held[0] = step < steps ? __ldg(of_half[0] + step) : 0;
    held[1] = step < steps ? __ldg(of_half[1] + step) : 0;
  }
  __device__ __forceinline__ float at(int half, int step) const {
    return __shfl_sync(~0u, held[half], step & 31);
  }
};

/// The same descriptor, known to be the same in all lanes.
__device__ __forceinline__ std::uint64_t uniform(std::uint64_t descriptor) {
  const std::uint32_t low = __shfl_sync(~0u, static_cast<std::uint32_t>(descriptor), 0);
  return std::uint64_t{ptx::kSwizzledHighWord} << 32 | low;
}

/// All steps of a tile; `scales` holds those of its first 32.
///
/// From the end of a product to the begin of the next one this warpgroup keeps the Tensor Core
/// waiting whenever the other one's product is shorter than that, so nothing stands there but the
/// sums: what a step needs is made while a product runs, the next step's boxes are looked for
/// there, too (waiting for them there would keep this step's boxes longer), its first product
/// begins where the last sums are added and not behind the tests of a loop, and a step's place in
/// the ring is known when this is compiled. Where it is not, each step copies 32 words of
/// descriptors from lanes to where products read them.
__device__ __forceinline__ void multiply_tile(TileShared& s, Ring<kStages>& ring,
                                              WeightScales& scales, Sums& sums) {
  const int group = static_cast<int>(threadIdx.x / 128);
  const float* const a_scales = &s.a_scales[0][group * kGroupRows + first_row()];
  const std::uint64_t first_a =
      uniform(ptx::swizzled_descriptor(&s.a[0][group * kGroupRows * kBlockK], 16));
  const std::uint64_t first_b = uniform(ptx::swizzled_descriptor(s.b[0][0], 16));
#pragma unroll
  for (int i = 0; i < 64; ++i) sums.half[0][i] = sums.half[1][i] = 0;
  wait(s, &s.full[ring.index], ring.parity, Awaited::kStep);
  float product[64];
  begin_product(product, uniform(first_a + ring.index * (sizeof(s.a[0]) >> 4)),
                uniform(first_b + ring.index * (sizeof(s.b[0]) >> 4)));
  for (int first = -ring.index;; first += kStages) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      const int step = first + i, after = (i + 1) % kStages;
      if (step < 0) continue;
      if (step > 0 && (step & 31) == 0) scales.load(step);
      const float b0 = scales.at(0, step), b1 = scales.at(1, step);
      const float a0 = a_scales[i * kBlockM], a1 = a_scales[i * kBlockM + 8];
      const bool last = step + 1 == scales.steps;
      end_product(product);
      add_scaled(sums.half[0], product, a0 * b0, a1 * b0);
      begin_product(product, first_a + i * (sizeof(s.a[0]) >> 4),
                    first_b + (2 * i + 1) * (sizeof(s.b[0][0]) >> 4));
      ring.advance();
      const bool here = ptx::mbarrier_test_wait(&s.full[after], ring.parity);
      end_product(product);
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&s.empty[i]);
      add_scaled(sums.half[1], product, a0 * b1, a1 * b1);
      if (last) return;
      if (!here) wait(s, &s.full[after], ring.parity, Awaited::kStep);
      begin_product(product, first_a + after * (sizeof(s.a[0]) >> 4),
                    first_b + after * (sizeof(s.b[0]) >> 4));
    }
  }
}

/// A warpgroup without tokens in a tile lets its steps pass.
__device__ inline void skip_tile(TileShared& s, Ring<kStages>& ring, int steps) {
  for (int step = 0; step < steps; ++step) {
    wait(s, &s.full[ring.index], ring.parity, Awaited::kStep);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&s.empty[ring.index]);
    ring.advance();
  }
}

}  // namespace xstage::moe
