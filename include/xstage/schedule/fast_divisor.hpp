// Division by a value that stays the same, by multiplication.
//
// A 64-bit division per tile cost 0.16 µs in a persistent kernel on an H200, more than the rest of
// a schedule step together; this costs one 32-bit high multiplication.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"

namespace xstage::schedule {

/// Quotient and remainder by a fixed 32-bit divisor, exact for every dividend (round-up method:
/// Granlund and Montgomery 1994). Dividends from 2^32 on fall back to a real division.
class FastDivisor {
 public:
  constexpr FastDivisor() = default;

  /// `divisor` in 1 … 2^31.
  XSTAGE_HD constexpr explicit FastDivisor(std::uint32_t divisor) : divisor_(divisor) {
    std::uint32_t bits = 0;  // ceil(log2(divisor))
    while ((std::uint64_t{1} << bits) < divisor) ++bits;
    const std::uint64_t high = (std::uint64_t{1} << bits) - divisor;
    multiplier_ = static_cast<std::uint32_t>((high << 32) / divisor) + 1;
    shift1_ = static_cast<std::uint8_t>(bits > 0 ? 1 : 0);
    shift2_ = static_cast<std::uint8_t>(bits > 0 ? bits - 1 : 0);
  }

  XSTAGE_HD constexpr std::uint32_t divisor() const { return divisor_; }

  XSTAGE_HD constexpr std::uint32_t quotient(std::uint32_t dividend) const {
    const auto high = static_cast<std::uint32_t>(
        (static_cast<std::uint64_t>(multiplier_) * static_cast<std::uint64_t>(dividend)) >> 32);
    return (high + ((dividend - high) >> shift1_)) >> shift2_;
  }

  XSTAGE_HD constexpr std::uint64_t quotient(std::uint64_t dividend) const {
    if ((dividend >> 32) != 0) return dividend / divisor_;
    return quotient(static_cast<std::uint32_t>(dividend));
  }

 private:
  std::uint32_t divisor_ = 1;
  std::uint32_t multiplier_ = 1;
  std::uint8_t shift1_ = 0;
  std::uint8_t shift2_ = 0;
};

}  // namespace xstage::schedule
