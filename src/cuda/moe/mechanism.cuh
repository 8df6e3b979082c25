// What the Burst-Gap model speaks of, inside the fused kernel: how long a tile's stores take to
// issue, and how long the Tensor Core role waits for staging. Compiled in with XSTAGE_MOE_MECHANISM
// only; without it a stopwatch is nothing.
#pragma once

#include "cuda/moe/block.cuh"

namespace xstage::moe {

#ifdef XSTAGE_MOE_MECHANISM
/// Adds up times of one thread, in ns of the GPU's timer (32 ns steps), and counts them.
class Stopwatch {
 public:
  __device__ void begin() { begin_ = ptx::globaltimer(); }
  __device__ void end() {
    sum_ += ptx::globaltimer() - begin_;
    ++count_;
  }
  /// The sum, and the count where it is asked for.
  __device__ void write(const FusedParams& p, Mark sum, Mark count = Mark::kCount) const {
    if (p.marks == nullptr) return;
    std::uint64_t* const marks = p.marks + blockIdx.x * static_cast<int>(Mark::kCount);
    marks[static_cast<int>(sum)] = sum_;
    if (count != Mark::kCount) marks[static_cast<int>(count)] = count_;
  }

 private:
  std::uint64_t begin_ = 0, sum_ = 0;
  std::uint64_t count_ = 0;
};
#else
class Stopwatch {
 public:
  __device__ void begin() {}
  __device__ void end() {}
  __device__ void write(const FusedParams&, Mark, Mark = Mark::kCount) const {}
};
#endif

}  // namespace xstage::moe
