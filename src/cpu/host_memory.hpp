// Shared memory as a rank's threads see it: the signals' policy, plus the data behind them.
#pragma once

#include <cstddef>
#include <cstring>

#include "xstage/sync/host.hpp"

namespace xstage::cpu {

/// Data that other workers or ranks read or write goes through store() and load(), so that the
/// explorer can put its own delays in their place.
class HostMemory : public sync::HostPolicy {
 public:
  void store(void* to, const void* from, std::size_t bytes) const {
    if (bytes > 0) std::memcpy(to, from, bytes);  // nothing may come from nowhere
  }
  void load(void* to, const void* from, std::size_t bytes) const { store(to, from, bytes); }
};

}  // namespace xstage::cpu
