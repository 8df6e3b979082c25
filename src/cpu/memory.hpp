// Memory of the ranks: address space that costs nothing until it is touched.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <string>
#include <utility>

#include "xstage/result.hpp"

namespace xstage::cpu {

/// Zeroed pages. A buffer for a huge capacity that is hardly used takes hardly any memory.
class Pages {
 public:
  Pages() = default;

  static Result<Pages> allocate(std::int64_t bytes, const char* what) {
    Pages out;
    if (bytes == 0) return out;
    void* const base = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
      return bad_input("the address space of a rank cannot hold its buffer", what,
                       std::to_string(bytes) + " bytes", "a smaller capacity");
    out.base_ = base;
    out.bytes_ = bytes;
    return out;
  }

  Pages(Pages&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    if (base_) munmap(base_, static_cast<std::size_t>(bytes_));
  }

  void* base() const { return base_; }
  std::int64_t bytes() const { return bytes_; }

  /// All zero again, and untouched.
  void clear() {
    if (base_) madvise(base_, static_cast<std::size_t>(bytes_), MADV_DONTNEED);
  }

 private:
  void* base_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace xstage::cpu
