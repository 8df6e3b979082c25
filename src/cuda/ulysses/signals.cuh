// The signals of one launch, by one thread of every block: see sync/arrivals.hpp.
#pragma once

#include "cuda/device_policy.cuh"
#include "cuda/ulysses/params.hpp"
#include "xstage/layout/moe.hpp"
#include "xstage/sync/arrivals.hpp"

namespace xstage::ulysses {

/// Addresses of the words; `signals` is a kernel parameter.
struct SignalWords {
  const Signals& signals;

  __device__ std::uint64_t* arrived(std::int32_t rank, std::int32_t slot,
                                    std::int32_t source) const {
    constexpr std::int64_t kStep = layout::kFlagBytes / 8;
    return signals.arrived[rank] + (std::int64_t{slot} * signals.ranks + source) * kStep;
  }
  __device__ std::uint64_t* epoch() const { return signals.epoch; }
  __device__ std::uint64_t* barrier() const { return signals.barrier; }
};

class LaunchSignals {
 public:
  __device__ __forceinline__ LaunchSignals(const Signals& signals, sync::Site site)
      : signals_(signals),
        arrivals_(policy_, SignalWords{signals}, context(signals),
                  static_cast<std::int32_t>(gridDim.x), site) {}

  /// The slot of this launch's output. All of a block must know it before the block's begin().
  static __device__ __forceinline__ int slot_of(const Signals& signals) {
    return static_cast<int>((ptx::ld_relaxed_sys(signals.epoch) + 1) & 1);
  }

  /// Enters the launch, and waits until all blocks of this rank have. To be called early, while
  /// others compute: it costs microseconds.
  __device__ __forceinline__ void begin() {
    arrivals_.begin();
    open_ = arrivals_.open();
  }

  /// When this block's stores to other ranks are complete: counts its pieces there (`sent`, by
  /// group of threads and destination). What stays on this rank needs no count: the kernel's end is
  /// its signal.
  template <int kGroups>
  __device__ __forceinline__ void tell(const std::int64_t (&sent)[kGroups][kMaxRanks]) {
    if (!open_) return;
    for (std::int32_t rank = 0; rank < signals_.ranks; ++rank) {
      std::int64_t pieces = 0;
      for (int group = 0; group < kGroups; ++group) pieces += sent[group][rank];
      if (pieces > 0 && rank != signals_.rank) arrivals_.add(rank, pieces);
    }
  }

  /// The first block waits for what other ranks send here; others return at once.
  __device__ __forceinline__ void wait() {
    if (!open_ || blockIdx.x != 0) return;
    for (std::int32_t source = 0; source < signals_.ranks; ++source)
      if (!arrivals_.wait(source, source == signals_.rank ? 0 : signals_.expected[source])) return;
  }

 private:
  static __device__ __forceinline__ sync::WaitContext context(const Signals& signals) {
    sync::WaitContext out;
    out.stop_words = signals.stop_words;
    out.ranks = signals.ranks;
    out.rank = signals.rank;
    out.worker = static_cast<std::int32_t>(blockIdx.x);
    out.limit_ns = signals.limit_ns;
    out.record = signals.records + blockIdx.x;
    return out;
  }

  const Signals& signals_;
  cuda::DevicePolicy policy_;
  sync::Arrivals<cuda::DevicePolicy, SignalWords> arrivals_;
  bool open_ = false;
};

}  // namespace xstage::ulysses
