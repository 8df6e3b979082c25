// Buffers of one worker, aligned alike in every run, so that vectorised loops split alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace xstage::cpu {

/// `count` values of T at a multiple of 64 bytes.
template <class T>
class Scratch {
 public:
  explicit Scratch(std::int64_t count = 0)
      : data_(count > 0 ? static_cast<T*>(::operator new(
                              static_cast<std::size_t>(count) * sizeof(T), std::align_val_t{64}))
                        : nullptr) {}
  T* data() const { return data_.get(); }
  T& operator[](std::int64_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<T[], Free> data_;
};

}  // namespace xstage::cpu
