// The product of one warpgroup in bf16: 64 tokens × 256 weight rows. Sums stay in the Tensor Core,
// which adds products of bf16 in fp32; one step's products run while the next one's boxes are
// waited for.
#pragma once

#include "cuda/moe/product.cuh"
#include "cuda/ptx/wgmma_bf16_wide.cuh"

namespace xstage::moe {

/// All steps of a tile, 64 values deep each. The halves of the weight rows lie behind each other,
/// so one product takes both.
__device__ __forceinline__ void multiply_tile_bf16(TileShared& s, Ring<kStages>& ring, int steps,
                                                   Sums& sums) {
  const int group = static_cast<int>(threadIdx.x / 128);
#pragma unroll
  for (int i = 0; i < 64; ++i) sums.half[0][i] = sums.half[1][i] = 0;
  ptx::hold_registers(sums.half[0]);
  ptx::hold_registers(sums.half[1]);
  int before = 0;
  for (int step = 0; step < steps; ++step) {
    const int i = ring.index;
    wait(s, &s.full[i], ring.parity, Awaited::kStep);
    const std::uint64_t a = ptx::swizzled_descriptor(&s.a[i][group * kGroupRows * kBlockK], 16);
    const std::uint64_t b = ptx::swizzled_descriptor(s.b[i][0], 16);
    ptx::wgmma_fence();
#pragma unroll
    for (int part = 0; part < 4; ++part)
      ptx::wgmma_m64n256k16_ss(sums.half[0], sums.half[1], a + 2 * part, b + 2 * part);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (step > 0 && threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&s.empty[before]);
    before = i;
    ring.advance();
  }
  ptx::wgmma_wait<0>();
  ptx::hold_registers(sums.half[0]);
  ptx::hold_registers(sums.half[1]);
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&s.empty[before]);
}

}  // namespace xstage::moe
