// bf16, e4m3 and the scale of a group, as the layer's formats define them.
#pragma once

#include <cstdint>

#include "cuda/ptx/warpgroup.cuh"

namespace xstage::moe {

__device__ __forceinline__ void unpack_bf16(const uint4& raw, float (&v)[8]) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(words[i] << 16);
    v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

/// The scale of a group of values with that largest magnitude; zeros get one that divides.
__device__ __forceinline__ float scale_of_group(float largest) {
  return fmaxf(largest, 1e-30f) / 448.0f;
}

/// value / divisor in fp32, with `inverse` = 1 / divisor. The quotient is part of the format:
/// values and largest magnitudes of bf16 are short, so one in a thousand quotients lies exactly
/// between two codes of e4m3, where value · inverse falls to either side and moves the value by a
/// whole code. That was an error of 1.9e-3 in Linear-1, more than everything else together.
__device__ __forceinline__ float quotient(float value, float divisor, float inverse) {
  const float near = value * inverse;
  return fmaf(fmaf(-near, divisor, value), inverse, near);
}

/// Two values to e4m3, round to nearest even, saturating; `low` goes to the low byte.
__device__ __forceinline__ std::uint16_t pack_e4m3(float low, float high) {
  std::uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  return pack_e4m3(a, b) | static_cast<std::uint32_t>(pack_e4m3(c, d)) << 16;
}

/// gate = silu(gate)·up, of two values: they share one reciprocal, because a Linear-1 tile's 32768
/// sigmoids keep the SM's 16 special function lanes busy for as long as one and a half of its
/// steps. silu below -41 is off by less than 1e-16.
__device__ __forceinline__ void swiglu(float& gate0, float& gate1, float up0, float up1) {
  constexpr float kLog2e = 1.44269504f, kMost = 60.0f;  // 2^120 still has a reciprocal
  const float below0 = 1.0f + ptx::exp2_approx(fminf(-kLog2e * gate0, kMost));
  const float below1 = 1.0f + ptx::exp2_approx(fminf(-kLog2e * gate1, kMost));
  const float both = ptx::reciprocal_approx(below0 * below1);
  gate0 *= both * below1 * up0;
  gate1 *= both * below0 * up1;
}

}  // namespace xstage::moe
