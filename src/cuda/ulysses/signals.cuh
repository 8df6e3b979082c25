// The signals of a fused launch, by the producer's thread of every block.
#pragma once

#include "cuda/device_policy.cuh"
#include "cuda/ulysses/shared.cuh"
#include "xstage/layout/moe.hpp"
#include "xstage/sync/arrivals.hpp"

namespace xstage::ulysses {

template <class T>
class FusedSignals {
 public:
  __device__ __forceinline__ FusedSignals(const Params& params, Shared<T>& shared)
      : params_(params),
        shared_(shared),
        arrivals_(policy_, Words{params.signals, params.ranks}, context(params),
                  static_cast<std::int32_t>(gridDim.x), sync::Site::kOutputPieces) {}

  /// Before the first tile; returns the slot of this launch's output. Does not wait.
  __device__ __forceinline__ int begin() {
    arrivals_.begin();
    return arrivals_.slot();
  }

  /// After the last store: counts this block's pieces at their owners. The first block also waits
  /// until everything that this rank is to receive is here.
  __device__ __forceinline__ void end() {
    if (!arrivals_.open()) return;
    for (std::int32_t rank = 0; rank < params_.ranks; ++rank) {
      std::int64_t pieces = 0;
      for (int group = 0; group < T::kConsumers; ++group) pieces += shared_.sent[group][rank];
      if (pieces > 0) arrivals_.add(rank, pieces);
    }
    if (blockIdx.x != 0) return;
    for (std::int32_t source = 0; source < params_.ranks; ++source)
      if (!arrivals_.wait(source, params_.signals.expected[source])) return;
  }

 private:
  struct Words {
    const Signals& signals;
    std::int32_t ranks;
    __device__ std::uint64_t* arrived(std::int32_t rank, std::int32_t slot,
                                      std::int32_t source) const {
      constexpr std::int64_t kStep = layout::kFlagBytes / 8;
      return signals.arrived[rank] + (std::int64_t{slot} * ranks + source) * kStep;
    }
    __device__ std::uint64_t* epoch() const { return signals.epoch; }
    __device__ std::uint64_t* barrier() const { return signals.barrier; }
  };

  static __device__ __forceinline__ sync::WaitContext context(const Params& params) {
    sync::WaitContext out;
    out.stop_words = params.signals.stop_words;
    out.ranks = params.ranks;
    out.rank = params.rank;
    out.worker = static_cast<std::int32_t>(blockIdx.x);
    out.limit_ns = params.signals.limit_ns;
    out.record = params.signals.records + blockIdx.x;
    return out;
  }

  const Params& params_;
  Shared<T>& shared_;
  cuda::DevicePolicy policy_;
  sync::Arrivals<cuda::DevicePolicy, Words> arrivals_;
};

}  // namespace xstage::ulysses
