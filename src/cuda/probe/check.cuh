// CUDA runtime errors as Result errors.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "xstage/result.hpp"

namespace xstage::probe {

inline Error cuda_error(cudaError_t code, const char* call) {
  const bool absent = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
                      code == cudaErrorStubLibrary;
  return {
      absent ? ErrorKind::kNoGpu : ErrorKind::kUnsupported,
      std::string(call) + ": " + cudaGetErrorString(code) + " (cuda " + std::to_string(code) + ")",
      {},
      {},
      {}};
}

}  // namespace xstage::probe

#define XSTAGE_CUDA_TRY(call)                                                               \
  do {                                                                                      \
    const cudaError_t xstage_code = (call);                                                 \
    if (xstage_code != cudaSuccess) return ::xstage::probe::cuda_error(xstage_code, #call); \
  } while (false)
