// bf16 and e4m3, as the ranks convert them. (The reference has its own conversions.)
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace xstage::cpu {

inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round to nearest, ties to even; NaN stays NaN.
inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Largest finite e4m3 value.
inline constexpr float kE4m3Max = 448.0f;

/// e4m3 without infinities (OCP FP8 "E4M3FN"): round to nearest even, saturate, NaN stays NaN.
inline std::uint8_t float_to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return static_cast<std::uint8_t>(sign | 0x7eu);  // from 448 on
  if (magnitude < 0x3c800000u) {
    // Below 2^-6 the step is 2^-9: adding 1.5·2^14 leaves the rounded multiple in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1.8p14f;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0xffu));
  }
  // Keep three bits of mantissa; the exponent's bias goes from 127 to 7.
  const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  const std::uint32_t code = (rounded >> 20) - ((127u - 7u) << 3);
  return static_cast<std::uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

namespace detail {
struct E4m3Table {
  float value[256];
  E4m3Table() {
    for (int code = 0; code < 256; ++code) {
      const int exponent = (code >> 3) & 15, mantissa = code & 7;
      float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                      : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      if ((code & 0x7f) == 0x7f) magnitude = std::nanf("");
      value[code] = (code & 0x80) ? -magnitude : magnitude;
    }
  }
};
inline const E4m3Table kE4m3Table;
}  // namespace detail

inline float e4m3_to_float(std::uint8_t code) { return detail::kE4m3Table.value[code]; }

/// The scale of a group of values with that largest magnitude. A group of zeros gets a scale that
/// can be divided by.
inline float scale_of_group(float largest) {
  constexpr float kFloor = 1e-30f;
  return (largest > kFloor ? largest : kFloor) / kE4m3Max;
}

}  // namespace xstage::cpu
