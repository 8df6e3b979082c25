#include "cuda/comm/comm.hpp"

namespace xstage::comm {
namespace {

constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads)
    copy(const uint4* __restrict__ from, uint4* __restrict__ to, std::size_t count) {
  // Four loads in flight a thread: the link, not the latency of local memory, is to be the limit.
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = from[i], b = from[i + stride], c = from[i + 2 * stride],
                d = from[i + 3 * stride];
    to[i] = a;
    to[i + stride] = b;
    to[i + 2 * stride] = c;
    to[i + 3 * stride] = d;
  }
  for (; i < count; i += stride) to[i] = from[i];
}

}  // namespace

cudaError_t launch_copy(const void* from, void* to, std::size_t bytes, int blocks,
                        cudaStream_t stream) {
  copy<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(static_cast<const uint4*>(from),
                                                               static_cast<uint4*>(to), bytes / 16);
  return cudaGetLastError();
}

}  // namespace xstage::comm
