// The synchronisation policy of a GPU: see xstage/sync/policy.hpp.
#pragma once

#include <cstdint>

#include "cuda/ptx/clock.cuh"
#include "cuda/ptx/sync.cuh"
#include "xstage/sync/policy.hpp"

namespace xstage::cuda {

/// One object a thread. All accesses at system scope.
class DevicePolicy {
 public:
  static constexpr sync::Fault kFault = sync::Fault::kNone;

  __device__ std::uint64_t load_acquire(const std::uint64_t* word) const {
    return ptx::ld_acquire_sys(word);
  }
  __device__ void store_release(std::uint64_t* word, std::uint64_t value) const {
    ptx::st_release_sys(word, value);
  }
  __device__ void add_release(std::uint64_t* word, std::uint64_t value) const {
    ptx::red_add_release_sys(word, value);
  }
  __device__ std::uint64_t fetch_add(std::uint64_t* word, std::uint64_t value) const {
    return ptx::atom_add_acq_rel_sys(word, value);
  }
  __device__ std::uint64_t now_ns() const { return ptx::globaltimer(); }
  /// Long waits poll less often, so that they do not slow what they wait for.
  __device__ void pause(std::uint32_t polls) const { __nanosleep(polls < 1024 ? 32 : 1000); }
};

}  // namespace xstage::cuda
