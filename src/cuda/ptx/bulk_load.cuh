// Bulk copies from global memory, local or of a peer, into shared memory.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace xstage::ptx {

/// `bytes` and both addresses are multiples of 16. `barrier` counts the bytes as they arrive.
__device__ __forceinline__ void bulk_load(void* shared_dst, const void* src, std::uint32_t bytes,
                                          std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared_dst)),
      "l"(src), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

}  // namespace xstage::ptx
