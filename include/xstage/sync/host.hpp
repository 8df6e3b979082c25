// The policy of threads on a CPU.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "xstage/sync/policy.hpp"

namespace xstage::sync {

/// One object a thread.
class HostPolicy {
 public:
  static constexpr Fault kFault = Fault::kNone;

  std::uint64_t load_acquire(const std::uint64_t* word) const {
    return ref(word).load(std::memory_order_acquire);
  }
  void store_release(std::uint64_t* word, std::uint64_t value) const {
    ref(word).store(value, std::memory_order_release);
  }
  void add_release(std::uint64_t* word, std::uint64_t value) const {
    ref(word).fetch_add(value, std::memory_order_release);
  }
  std::uint64_t fetch_add(std::uint64_t* word, std::uint64_t value) const {
    return ref(word).fetch_add(value, std::memory_order_acq_rel);
  }
  std::uint64_t now_ns() const {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
  }
  /// Many more threads than cores are normal here: a waiting one soon leaves its core, and one that
  /// waits for long sleeps.
  void pause(std::uint32_t polls) const {
    if (polls < 64)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(polls < 512 ? 20 : 200));
  }

 private:
  static std::atomic_ref<std::uint64_t> ref(const std::uint64_t* word) {
    return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(word));
  }
};

}  // namespace xstage::sync
