// The two 16-bit formats of products' inputs, as instructions name them.
#pragma once

#include <cstdint>

namespace xstage::ptx {

struct Bf16 {
  static constexpr char kName[] = "bf16";
};
struct Fp16 {
  static constexpr char kName[] = "f16";
};

/// Two fp32 values, round to nearest; `low` goes to the low half.
template <class Element>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.%3x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low), "C"(Element::kName));
  return packed;
}

}  // namespace xstage::ptx
