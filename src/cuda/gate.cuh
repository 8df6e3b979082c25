// A kernel behind which streams wait until the host lets all of them go, so that ranks begin
// together although one thread enqueues for them one after the other.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ptx/clock.cuh"

namespace xstage::cuda {

/// `open`: a word of the host that all GPUs see. Ends by itself after two seconds.
static __global__ void gate(const volatile std::uint32_t* open) {
  const std::uint64_t begin = ptx::globaltimer();
  while (*open == 0 && ptx::globaltimer() - begin < 2'000'000'000) __nanosleep(100);
}

/// Loads it on the current device: left to the first launch, that could wait for a running kernel.
inline cudaError_t load_gate() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, gate);
}

}  // namespace xstage::cuda
