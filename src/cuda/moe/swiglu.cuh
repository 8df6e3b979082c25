// Linear-1's end: SwiGLU, the token's weight, quantisation, staging.
#pragma once

#include "cuda/moe/numbers.cuh"
#include "cuda/moe/staging.cuh"

namespace xstage::moe {

/// Gate from above, up on both sides; 0: no clamp.
__device__ __forceinline__ void clamp_sums(Sums& sums, float clamp) {
  if (clamp <= 0) return;
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    sums.half[0][i] = fminf(sums.half[0][i], clamp);
    sums.half[1][i] = fminf(fmaxf(sums.half[1][i], -clamp), clamp);
  }
}

/// Turns gate (half 0) and up (half 1) of a thread's two rows into e4m3 codes in staging, as a
/// swizzled box of 64 rows of 128 bytes, and returns the two rows' scales (the same in all four
/// lanes of a row).
__device__ __forceinline__ float2 stage_swiglu(std::uint8_t* staging, Sums& sums, float weight0,
                                               float weight1, float clamp) {
  float* const gate = sums.half[0];
  float* const up = sums.half[1];
  clamp_sums(sums, clamp);
  float largest0 = 0, largest1 = 0;
#pragma unroll
  for (int j = 0; j < 64; j += 4) {
    swiglu(gate[j], gate[j + 1], up[j], up[j + 1]);
    swiglu(gate[j + 2], gate[j + 3], up[j + 2], up[j + 3]);
    largest0 = fmaxf(largest0, fmaxf(fabsf(gate[j]), fabsf(gate[j + 1])));
    largest1 = fmaxf(largest1, fmaxf(fabsf(gate[j + 2]), fabsf(gate[j + 3])));
  }
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    largest0 = fmaxf(largest0, __shfl_xor_sync(~0u, largest0, step));
    largest1 = fmaxf(largest1, __shfl_xor_sync(~0u, largest1, step));
  }
  const float2 scales{scale_of_group(fabsf(weight0) * largest0),
                      scale_of_group(fabsf(weight1) * largest1)};
  const float inverse0 = weight0 / scales.x, inverse1 = weight1 / scales.y;
  const int row = first_row();
  // Rows r and r + 8 lie in the same place of their swizzle pattern.
  std::uint8_t* const to = staging + row * kBlockK;
  const int swizzle = row % 8 * 16;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const int column = (8 * j + 2 * static_cast<int>(threadIdx.x % 4)) ^ swizzle;
    *reinterpret_cast<std::uint16_t*>(to + column) =
        pack_e4m3(gate[4 * j] * inverse0, gate[4 * j + 1] * inverse0);
    *reinterpret_cast<std::uint16_t*>(to + 8 * kBlockK + column) =
        pack_e4m3(gate[4 * j + 2] * inverse1, gate[4 * j + 3] * inverse1);
  }
  return scales;
}

}  // namespace xstage::moe
