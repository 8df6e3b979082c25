// TMA copies of boxes of a tensor, five dimensions, through tensor maps.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace xstage::ptx {

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Coordinates of a box, innermost dimension first.
struct Box {
  std::int32_t c0, c1, c2, c3, c4;
};

__device__ __forceinline__ void tensor_load(void* shared_dst, const CUtensorMap* map,
                                            std::uint64_t* barrier, const Box& box) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(shared_dst)),
      "l"(map), "r"(shared_address(barrier)), "r"(box.c0), "r"(box.c1), "r"(box.c2), "r"(box.c3),
      "r"(box.c4)
      : "memory");
}

/// Rows outside of the tensor are left out. Completes as a bulk group.
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, const void* shared_src,
                                             const Box& box) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::
          "l"(map),
      "r"(shared_address(shared_src)), "r"(box.c0), "r"(box.c1), "r"(box.c2), "r"(box.c3),
      "r"(box.c4)
      : "memory");
}

}  // namespace xstage::ptx
