// Sizes in 64 bits whose overflow cannot go unnoticed.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"

namespace xstage::layout {

/// A size that remembers whether any step of its computation left [0, 2^62).
class Size {
 public:
  XSTAGE_HD constexpr Size(std::int64_t value = 0)
      : value_(value), valid_(value >= 0 && value < kEnd) {}

  XSTAGE_HD constexpr bool valid() const { return valid_; }
  /// The size; 0 where it is not valid.
  XSTAGE_HD constexpr std::int64_t value() const { return valid_ ? value_ : 0; }

  XSTAGE_HD friend constexpr Size operator*(Size a, Size b) {
    if (!a.valid_ || !b.valid_ || (a.value_ != 0 && b.value_ > (kEnd - 1) / a.value_))
      return invalid();
    return Size(a.value_ * b.value_);
  }
  XSTAGE_HD friend constexpr Size operator+(Size a, Size b) {
    return a.valid_ && b.valid_ ? Size(a.value_ + b.value_) : invalid();
  }
  /// Rounded up to a multiple of `step`, a positive number.
  XSTAGE_HD constexpr Size rounded_up(std::int64_t step) const {
    return *this + Size((step - value_ % step) % step);
  }

 private:
  static constexpr std::int64_t kEnd = std::int64_t{1} << 62;
  XSTAGE_HD static constexpr Size invalid() { return Size(-1); }

  std::int64_t value_;
  bool valid_;
};

/// A part of a buffer, in bytes.
struct Region {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

/// Hands out regions of one buffer, one after the other.
class Regions {
 public:
  /// Every region begins at a multiple of this: tensor maps want 128, and no two regions then share
  /// a cache line on either side.
  static constexpr std::int64_t kAlignment = 1024;

  XSTAGE_HD constexpr Region add(Size bytes) {
    const Region region{end_.value(), bytes.value()};
    end_ = (end_ + bytes).rounded_up(kAlignment);
    return region;
  }
  XSTAGE_HD constexpr bool valid() const { return end_.valid(); }
  XSTAGE_HD constexpr std::int64_t bytes() const { return end_.value(); }

 private:
  Size end_;
};

/// The element `index` of type T behind `base + region.offset`.
template <class T>
XSTAGE_HD T* element(void* base, const Region& region, std::int64_t index) {
  return reinterpret_cast<T*>(static_cast<char*>(base) + region.offset) + index;
}

}  // namespace xstage::layout
