// Launches that may begin, up to their dependency_wait(), while the kernel before them ends; or,
// with `may_begin_early` false, when it has ended.
#pragma once

#include <cuda_runtime.h>

#include "cuda/probe/check.cuh"

namespace xstage::ulysses {

template <class P>
Result<bool> launch_dependent(void (*kernel)(P), const P& params, int grid, int threads,
                              std::size_t shared_bytes, bool may_begin_early, cudaStream_t stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = may_begin_early ? 1 : 0;
  XSTAGE_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, params));
  return true;
}

}  // namespace xstage::ulysses
