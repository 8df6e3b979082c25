// Memory, streams and events on several GPUs that are freed together.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cuda/probe/check.cuh"
#include "xstage/result.hpp"

/// Returns the error of a Result from the calling function.
#define XSTAGE_TRY(expression)                                                     \
  do {                                                                             \
    if (auto xstage_done = (expression); !xstage_done) return xstage_done.error(); \
  } while (false)

namespace xstage::moe {

/// Puts a result's value into `to`.
template <class From, class To>
Result<bool> put(const Result<From>& from, To& to) {
  if (!from) return from.error();
  to = *from;
  return true;
}

class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  ~GpuMemory() {
    for (const auto& [gpu, stream] : streams_)
      if (cudaSetDevice(gpu) == cudaSuccess) static_cast<void>(cudaStreamDestroy(stream));
    for (const auto& [gpu, event] : events_)
      if (cudaSetDevice(gpu) == cudaSuccess) static_cast<void>(cudaEventDestroy(event));
    for (const auto& [gpu, memory] : memory_)
      if (cudaSetDevice(gpu) == cudaSuccess) static_cast<void>(cudaFree(memory));
  }

  /// Lets everything go without freeing it: a call that frees waits for kernels, and one hangs.
  void abandon() {
    memory_.clear();
    streams_.clear();
    events_.clear();
  }

  /// `count` values as they are.
  template <class T>
  Result<T*> allocate(int gpu, std::int64_t count) {
    void* memory = nullptr;
    XSTAGE_CUDA_TRY(cudaSetDevice(gpu));
    XSTAGE_CUDA_TRY(cudaMalloc(
        &memory, std::max<std::size_t>(static_cast<std::size_t>(count) * sizeof(T), 16)));
    memory_.emplace_back(gpu, memory);
    return static_cast<T*>(memory);
  }

  /// A copy of host values.
  template <class T>
  Result<T*> copy(int gpu, const T* values, std::int64_t count) {
    const auto to = allocate<T>(gpu, count);
    if (!to) return to.error();
    if (count > 0)
      XSTAGE_CUDA_TRY(cudaMemcpy(*to, values, static_cast<std::size_t>(count) * sizeof(T),
                                 cudaMemcpyHostToDevice));
    return *to;
  }

  Result<cudaStream_t> stream(int gpu) {
    cudaStream_t out = nullptr;
    XSTAGE_CUDA_TRY(cudaSetDevice(gpu));
    XSTAGE_CUDA_TRY(cudaStreamCreateWithFlags(&out, cudaStreamNonBlocking));
    streams_.emplace_back(gpu, out);
    return out;
  }

  Result<cudaEvent_t> event(int gpu) {
    cudaEvent_t out = nullptr;
    XSTAGE_CUDA_TRY(cudaSetDevice(gpu));
    XSTAGE_CUDA_TRY(cudaEventCreate(&out));
    events_.emplace_back(gpu, out);
    return out;
  }

 private:
  std::vector<std::pair<int, void*>> memory_;
  std::vector<std::pair<int, cudaStream_t>> streams_;
  std::vector<std::pair<int, cudaEvent_t>> events_;
};

}  // namespace xstage::moe
