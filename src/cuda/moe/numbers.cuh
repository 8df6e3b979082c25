// bf16, e4m3 and the scale of a group, as the layer's formats define them.
#pragma once

#include <cstdint>

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

/// Two values to e4m3, round to nearest even, saturating; `low` goes to the low byte.
__device__ __forceinline__ std::uint16_t pack_e4m3(float low, float high) {
  std::uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  return pack_e4m3(a, b) | static_cast<std::uint32_t>(pack_e4m3(c, d)) << 16;
}

/// silu(gate)·up, clamped where clamp > 0.
__device__ __forceinline__ float swiglu(float gate, float up, float clamp) {
  if (clamp > 0) {
    gate = fminf(gate, clamp);
    up = fminf(fmaxf(up, -clamp), clamp);
  }
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

}  // namespace xstage::moe
