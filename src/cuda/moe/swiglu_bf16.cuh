// Linear-1's end in bf16: SwiGLU and the token's weight in registers, rounded once, as two boxes of
// 64 rows × 128 bytes, swizzled.
#pragma once

#include "cuda/moe/numbers.cuh"
#include "cuda/moe/swiglu.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace xstage::moe {

__device__ __forceinline__ void stage_swiglu_bf16(std::uint8_t* staging, Sums& sums, float weight0,
                                                  float weight1, float clamp) {
  float* const gate = sums.half[0];
  const float* const up = sums.half[1];
  clamp_sums(sums, clamp);
  const int row = first_row();
  // Eight rows and four lanes of a row cover all banks. Rows r and r + 8 lie in the same place of
  // their swizzle pattern.
  const int swizzle = row % 8 * 16;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    float* const v = gate + 4 * j;
    swiglu(v[0], v[1], up[4 * j], up[4 * j + 1]);
    swiglu(v[2], v[3], up[4 * j + 2], up[4 * j + 3]);
    std::uint8_t* const to = staging + j / 8 * kBoxBytes + row * kBlockK +
                             ((j % 8 * 16 + static_cast<int>(threadIdx.x % 4) * 4) ^ swizzle);
    *reinterpret_cast<std::uint32_t*>(to) = ptx::pack_bf16(weight0 * v[0], weight0 * v[1]);
    *reinterpret_cast<std::uint32_t*>(to + 8 * kBlockK) =
        ptx::pack_bf16(weight1 * v[2], weight1 * v[3]);
  }
}

}  // namespace xstage::moe
