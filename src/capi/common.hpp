// What the C functions share: errors as a code and a line, the caller's device for a while.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>

#include "cuda/probe/check.cuh"
#include "xstage/layout/tensor_view.hpp"
#include "xstage/result.hpp"
#include "xstage/xstage.h"

namespace xstage::capi {

/// Where the line goes; the code is the kind's number.
struct Message {
  char* text;
  std::size_t size;

  int operator()(const Error& error) const {
    if (text != nullptr && size > 0) std::snprintf(text, size, "%s", error.message().c_str());
    return static_cast<int>(error.kind);
  }
  template <class T>
  int operator()(const Result<T>& result) const {
    return result.ok() ? XSTAGE_OK : (*this)(result.error());
  }
};

/// Makes a device current and, at its end, the one before. A process of one device pays one query.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = -1;
    if (before_ == device)
      before_ = -1;
    else
      code_ = cudaSetDevice(device);
  }
  ~DeviceGuard() {
    if (before_ >= 0) static_cast<void>(cudaSetDevice(before_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  Result<bool> ready() const {
    XSTAGE_CUDA_TRY(code_);
    return true;
  }

 private:
  int before_ = -1;
  cudaError_t code_ = cudaSuccess;
};

inline Result<layout::ScalarType> scalar_type(std::int32_t type) {
  if (type == XSTAGE_BF16) return layout::ScalarType::kBf16;
  if (type == XSTAGE_FP16) return layout::ScalarType::kFp16;
  return bad_input("there is no such type", "type", std::to_string(type), "0 (bf16) or 1 (fp16)");
}

inline layout::TensorView view_of(const xstage_tensor& tensor, layout::ScalarType type) {
  layout::TensorView out;
  out.data = tensor.data;
  out.type = type;
  for (int i = 0; i < 4; ++i) {
    out.shape[i] = tensor.shape[i];
    // Of a dimension of one, a caller's stride may be anything, and TMA refuses zero.
    out.stride[i] = i < 3 && tensor.shape[i] == 1 ? tensor.shape[3] : tensor.stride[i];
  }
  return out;
}

}  // namespace xstage::capi
