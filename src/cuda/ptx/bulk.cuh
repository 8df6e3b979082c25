// TMA bulk stores (shared memory to global memory, local or of a peer) and their two completions.
#pragma once

#include <cstdint>

namespace xstage::ptx {

/// `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void bulk_store(void* dst, const void* shared_src, std::uint32_t bytes) {
  const auto src = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared_src));
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Local completion: the shared source of every committed group may be reused.
__device__ __forceinline__ void bulk_wait_source() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// The same for all but the newest `kGroups` groups.
template <int kGroups>
__device__ __forceinline__ void bulk_wait_source_but() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}

/// The writes of every committed group are made visible to the executing thread.
__device__ __forceinline__ void bulk_wait_done() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/// The same for all groups but the last one committed.
__device__ __forceinline__ void bulk_wait_done_before_last() {
  asm volatile("cp.async.bulk.wait_group 1;" ::: "memory");
}

/// Ordinary shared-memory writes before this are seen by bulk copies after it.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Global memory written before, as this thread has observed it, is read by bulk copies after this.
/// Unlike the fence below it waits for nothing that the SM has under way.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// Orders bulk (async proxy) writes to global memory with ordinary accesses on either side.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

}  // namespace xstage::ptx
