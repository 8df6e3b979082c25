// Programmatic dependent launch: a kernel that begins while the one before it in its stream ends.
#pragma once

namespace xstage::ptx {

/// Waits until the kernels before this one in the stream have ended and their writes are visible.
__device__ __forceinline__ void dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// The next kernel of the stream may take free SMs now. It still waits for this one's end.
__device__ __forceinline__ void dependents_may_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace xstage::ptx
