// A tensor as a caller hands it over: where it is, what it holds, its shape and strides.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"

namespace xstage::layout {

enum class ScalarType : std::int32_t { kFloat32, kBf16, kFp16, kE4m3, kInt32 };
enum class DeviceKind : std::int32_t { kCpu, kCuda };

/// Four dimensions [batch, rows, heads, head_dim], in this order whatever the strides say: a tensor
/// stored as [batch, heads, rows, head_dim] has other strides, not another shape.
struct TensorView {
  void* data = nullptr;
  ScalarType type = ScalarType::kBf16;
  DeviceKind device = DeviceKind::kCpu;
  std::int32_t device_index = 0;
  std::int32_t dimensions = 4;
  std::int64_t shape[4] = {0, 0, 0, 0};
  std::int64_t stride[4] = {0, 0, 0, 0};  ///< in elements
  bool requires_grad = false;

  XSTAGE_HD constexpr std::int64_t index(std::int64_t batch, std::int64_t row,
                                         std::int64_t head) const {
    return batch * stride[0] + row * stride[1] + head * stride[2];
  }

  /// A contiguous [batch, rows, heads, head_dim].
  XSTAGE_HD static constexpr TensorView contiguous(void* data, ScalarType type, std::int64_t batch,
                                                   std::int64_t rows, std::int64_t heads,
                                                   std::int64_t head_dim) {
    TensorView view;
    view.data = data;
    view.type = type;
    view.shape[0] = batch;
    view.shape[1] = rows;
    view.shape[2] = heads;
    view.shape[3] = head_dim;
    view.stride[3] = 1;
    view.stride[2] = head_dim;
    view.stride[1] = heads * head_dim;
    view.stride[0] = rows * heads * head_dim;
    return view;
  }
};

XSTAGE_HD constexpr std::int64_t bytes_of(ScalarType type) {
  switch (type) {
    case ScalarType::kFloat32:
    case ScalarType::kInt32: return 4;
    case ScalarType::kBf16:
    case ScalarType::kFp16: return 2;
    case ScalarType::kE4m3: return 1;
  }
  return 0;
}

}  // namespace xstage::layout
