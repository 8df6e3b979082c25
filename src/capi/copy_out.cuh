// From the symmetric buffer to a tensor of the caller's, and the launch's end to the host.
#pragma once

#include <cstdint>

#include "cuda/ptx/dependent.cuh"
#include "cuda/ulysses/dependent_launch.hpp"

namespace xstage::capi {

struct CopyOut {
  const uint4* slots = nullptr;          ///< output slot 0 of this rank
  std::int64_t slot_units = 0;           ///< 16-byte units from one slot to the next
  const std::uint64_t* epoch = nullptr;  ///< of the attention: launches so far
  uint4* out = nullptr;                  ///< null: no copy
  std::int64_t units = 0;
  const std::uint64_t* stop = nullptr;  ///< this rank's stop word
  std::uint64_t* stopped = nullptr;     ///< its copy in host memory, where it is not zero
};

inline constexpr int kCopyThreads = 512, kCopyUnits = 4;

/// The slot is chosen here, by the epoch in device memory: a captured graph may be replayed, any
/// number of launches lie between two replays, and the tensor is where it was.
__global__ void __launch_bounds__(kCopyThreads) copy_out(const __grid_constant__ CopyOut args) {
  ptx::dependency_wait();
  if (blockIdx.x == 0 && threadIdx.x == 0 && *args.stop != 0) {
    *args.stopped = *args.stop;
    __threadfence_system();
  }
  const uint4* const from =
      args.slots + static_cast<std::int64_t>(*args.epoch & 1) * args.slot_units;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kCopyThreads;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  for (; i + (kCopyUnits - 1) * step < args.units; i += kCopyUnits * step) {
    uint4 unit[kCopyUnits];
#pragma unroll
    for (int n = 0; n < kCopyUnits; ++n) unit[n] = __ldcs(from + i + n * step);
#pragma unroll
    for (int n = 0; n < kCopyUnits; ++n) args.out[i + n * step] = unit[n];
  }
  for (; i < args.units; i += step) args.out[i] = __ldcs(from + i);
}

}  // namespace xstage::capi
