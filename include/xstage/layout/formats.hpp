// How weights and activations are held.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"

namespace xstage {

/// W8A8: e4m3 with fp32 scales. bf16: no scales. W4A8: MXFP4 weights, e4m3 activations.
enum class WeightFormat : std::int32_t { kW8A8, kBf16, kW4A8 };

/// Values that share one scale: along a token of the input, and both ways in a weight matrix.
inline constexpr std::int64_t kScaleGroup = 128;

/// Bytes of one activation value.
XSTAGE_HD constexpr std::int64_t activation_bytes(WeightFormat format) {
  return format == WeightFormat::kBf16 ? 2 : 1;
}

}  // namespace xstage
