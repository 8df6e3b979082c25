// A barrier of one rank's workers that needs no reset and no launch number.
//
// Each worker adds 1, the first one adds what is missing to 2^63 instead: when all have arrived the
// top bit has flipped and the lower bits are what they were. Any number of workers, from launch to
// launch a different one, may use the same word.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"
#include "xstage/sync/wait.hpp"

namespace xstage::sync {

class Barrier {
 public:
  XSTAGE_HD Barrier(std::uint64_t* word, std::int32_t worker, std::int32_t workers)
      : word_(word), worker_(worker), workers_(workers) {}

  /// Releases what this worker did before. wait() must follow before the next arrive().
  XSTAGE_HD_CALLS
  template <class Policy>
  XSTAGE_HD void arrive(Policy& policy) {
    const std::uint64_t share =
        worker_ == 0 ? kTop - static_cast<std::uint64_t>(workers_ - 1) : std::uint64_t{1};
    before_ = policy.fetch_add(word_, share);
  }

  /// Acquires what all workers did before they arrived.
  XSTAGE_HD_CALLS
  template <class Policy>
  XSTAGE_HD bool wait(Policy& policy, const WaitContext& context, std::int64_t number) const {
    const std::uint64_t before = before_;
    return wait_until(
        policy, context, word_,
        [before](std::uint64_t value) { return ((value ^ before) & kTop) != 0; },
        static_cast<std::uint64_t>(workers_), Site::kBarrier, number);
  }

 private:
  static constexpr std::uint64_t kTop = std::uint64_t{1} << 63;

  std::uint64_t* word_;
  std::int32_t worker_;
  std::int32_t workers_;
  std::uint64_t before_ = 0;
};

}  // namespace xstage::sync
