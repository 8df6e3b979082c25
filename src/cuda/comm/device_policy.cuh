// The policy of threads on a GPU: what include/xstage/sync/ needs of the machine, at system scope.
#pragma once

#include <cstdint>

#include "cuda/ptx/clock.cuh"
#include "cuda/ptx/sync.cuh"
#include "xstage/host_device.hpp"
#include "xstage/sync/policy.hpp"

namespace xstage::comm {

/// One object a thread. Marked for host and device because the protocol's code is; on the host none
/// of it runs.
class DevicePolicy {
 public:
  static constexpr sync::Fault kFault = sync::Fault::kNone;

#if defined(__CUDA_ARCH__)
  __device__ std::uint64_t load_acquire(const std::uint64_t* word) const {
    return ptx::ld_acquire_sys(word);
  }
  __device__ void store_release(std::uint64_t* word, std::uint64_t value) const {
    ptx::st_release_sys(word, value);
  }
  __device__ void add_release(std::uint64_t* word, std::uint64_t value) const {
    ptx::red_add_release_sys(word, value);
  }
  __device__ void add_relaxed(std::uint64_t* word, std::uint64_t value) const {
    ptx::red_add_relaxed_sys(word, value);
  }
  __device__ std::uint64_t fetch_add(std::uint64_t* word, std::uint64_t value) const {
    return ptx::atom_add_acq_rel_sys(word, value);
  }
  __device__ std::uint64_t now_ns() const { return ptx::globaltimer(); }
  /// Polls of a peer's word cross the link: not more than about one every 100 ns.
  __device__ void pause(std::uint32_t polls) const { __nanosleep(polls < 8 ? 20 : 100); }
#else
  XSTAGE_HD std::uint64_t load_acquire(const std::uint64_t*) const { return 0; }
  XSTAGE_HD void store_release(std::uint64_t*, std::uint64_t) const {}
  XSTAGE_HD void add_release(std::uint64_t*, std::uint64_t) const {}
  XSTAGE_HD void add_relaxed(std::uint64_t*, std::uint64_t) const {}
  XSTAGE_HD std::uint64_t fetch_add(std::uint64_t*, std::uint64_t) const { return 0; }
  XSTAGE_HD std::uint64_t now_ns() const { return 0; }
  XSTAGE_HD void pause(std::uint32_t) const {}
#endif
};

}  // namespace xstage::comm
