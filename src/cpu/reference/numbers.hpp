// The reference's own number formats: e4m3 by search among its 127 magnitudes, bf16 by arithmetic.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace xstage::cpu::reference {

inline double bf16_value(std::uint16_t bits) {
  const int exponent = (bits >> 7) & 0xff;
  const int mantissa = bits & 0x7f;
  const double sign = (bits & 0x8000) ? -1.0 : 1.0;
  if (exponent == 255)
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, -133);
  return sign * std::ldexp(128 + mantissa, exponent - 134);
}

/// Nearest bf16 value, ties to even (by the default rounding of the machine).
inline double to_bf16(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), -126);
  const double step = std::ldexp(1.0, exponent - 7);
  return std::nearbyint(value / step) * step;
}

/// All non-negative e4m3 values in ascending order; index = code.
inline const std::array<double, 127>& e4m3_values() {
  static const std::array<double, 127> values = [] {
    std::array<double, 127> out{};
    for (int code = 0; code < 127; ++code)
      out[static_cast<std::size_t>(code)] =
          code < 8 ? code / 512.0 : (8 + code % 8) / 8.0 * std::pow(2.0, code / 8 - 7);
    return out;
  }();
  return values;
}

inline double e4m3_value(std::uint8_t code) {
  const int magnitude = code & 0x7f;
  if (magnitude == 127) return std::numeric_limits<double>::quiet_NaN();
  const double value = e4m3_values()[static_cast<std::size_t>(magnitude)];
  return (code & 0x80) ? -value : value;
}

/// Nearest e4m3 value, ties to the even code, saturating.
inline double to_e4m3(double value) {
  if (std::isnan(value)) return value;
  const auto& values = e4m3_values();
  const double magnitude = std::fabs(value);
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  double nearest = values.back();
  if (above != values.end() && above != values.begin()) {
    const auto below = above - 1;
    const double up = *above - magnitude, down = magnitude - *below;
    const bool below_even = (below - values.begin()) % 2 == 0;
    nearest = down < up || (down == up && below_even) ? *below : *above;
  } else if (above == values.begin()) {
    nearest = 0;
  }
  return value < 0 ? -nearest : nearest;
}

}  // namespace xstage::cpu::reference
