// Global stores of one width each. No cache hint: the same instructions that an epilogue uses.
#pragma once

#include <cstdint>

namespace xstage::ptx {

__device__ __forceinline__ void st_global_b32(void* p, std::uint32_t a) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(p), "r"(a) : "memory");
}

__device__ __forceinline__ void st_global_v2(void* p, std::uint32_t a, std::uint32_t b) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(a), "r"(b) : "memory");
}

__device__ __forceinline__ void st_global_v4(void* p, uint4 v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

/// A shared load that the compiler may neither drop nor move.
__device__ __forceinline__ std::uint32_t ld_shared_volatile(const std::uint32_t* p) {
  std::uint32_t v;
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("ld.volatile.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

}  // namespace xstage::ptx
