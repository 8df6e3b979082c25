// Clocks and identity of a multiprocessor. One instruction a wrapper.
#pragma once

#include <cstdint>

namespace xstage::ptx {

/// Cycles of this SM. The memory clobber keeps it where it was written: after the stores before it.
__device__ __forceinline__ std::uint64_t clock64() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
  return t;
}

/// Nanoseconds since an epoch that all SMs of one GPU share. Two GPUs do not share it.
__device__ __forceinline__ std::uint64_t globaltimer() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

__device__ __forceinline__ std::uint32_t smid() {
  std::uint32_t id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}

}  // namespace xstage::ptx
