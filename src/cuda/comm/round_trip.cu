#include "cuda/comm/comm.hpp"
#include "cuda/ptx/clock.cuh"
#include "cuda/ptx/store.cuh"
#include "cuda/ptx/sync.cuh"

namespace xstage::comm {
namespace {

constexpr int kThreads = 256;

/// One thread waits until the flag has reached `value`; false when the deadline passed.
__device__ bool wait_for(const Flag* flag, std::uint64_t value, std::uint64_t deadline_ns) {
  const std::uint64_t deadline = ptx::globaltimer() + deadline_ns;
  while (ptx::ld_acquire_sys(&flag->value) < value)
    if (ptx::globaltimer() > deadline) return false;
  return true;
}

__global__ void __launch_bounds__(kThreads, 1)
    round_trip(const __grid_constant__ RoundTripArgs args) {
  __shared__ int go_on;
  for (int round = 1; round <= args.rounds; ++round) {
    const auto value = static_cast<std::uint64_t>(round);
    if (!args.first) {
      if (threadIdx.x == 0) {
        go_on = wait_for(args.own, value, args.deadline_ns);
        if (go_on) ptx::st_release_sys(&args.peer->value, value);
      }
      __syncthreads();
      if (!go_on) break;
      continue;
    }
    __syncthreads();
    const std::uint64_t begin = ptx::clock64();
    for (std::uint32_t offset = threadIdx.x * 16; offset < args.payload_bytes;
         offset += kThreads * 16)
      ptx::st_global_v4(args.payload + offset, make_uint4(round, threadIdx.x, round, offset));
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::st_release_sys(&args.peer->value, value);
      go_on = wait_for(args.own, value, args.deadline_ns);
      args.cycles[round - 1] = ptx::clock64() - begin;
    }
    __syncthreads();
    if (!go_on) break;
  }
  if (threadIdx.x == 0 && !go_on) *args.failed = 1;
}

}  // namespace

cudaError_t launch_round_trip(const RoundTripArgs& args, cudaStream_t stream) {
  round_trip<<<1, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace xstage::comm
