// Message passing, the litmus test behind every fused kernel here: a payload, then a flag; whoever
// sees the flag must see the payload. Right and deliberately wrong ways to signal, so that the test
// shows that it can fail.
#include "cuda/comm/comm.hpp"
#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/clock.cuh"
#include "cuda/ptx/store.cuh"
#include "cuda/ptx/sync.cuh"

namespace xstage::comm {
namespace {

constexpr int kThreads = 256;
constexpr std::uint32_t kPayloadMax = 32 * 1024;

__device__ std::uint32_t mix(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

/// Word i of message `round`: known to both sides, different in every message.
__device__ std::uint32_t word_of(std::uint32_t round, std::uint32_t i) {
  return mix(round * 0x9e3779b9u + i);
}

__device__ void delay(std::uint32_t random, std::uint32_t max_ns) {
  if (max_ns == 0) return;
  const std::uint64_t until = ptx::globaltimer() + random % max_ns;
  while (ptx::globaltimer() < until) {
  }
}

__device__ bool wait_for(const Flag* flag, std::uint64_t value, std::uint64_t deadline_ns) {
  const std::uint64_t deadline = ptx::globaltimer() + deadline_ns;
  while (ptx::ld_acquire_sys(&flag->value) < value)
    if (ptx::globaltimer() > deadline) return false;
  return true;
}

extern __shared__ __align__(128) std::uint8_t staging[];

/// Stores message `round`; on return every thread has issued its part.
__device__ void store_message(const LitmusArgs& args, std::uint8_t* to, std::uint32_t round) {
  const std::uint32_t words = args.payload_bytes / 4;
  if (args.store == LitmusStore::kTmaBulk) {
    auto* source = reinterpret_cast<std::uint32_t*>(staging);
    for (std::uint32_t i = threadIdx.x; i < words; i += kThreads) source[i] = word_of(round, i);
    ptx::fence_proxy_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
      constexpr std::uint32_t kChunk = 2048;
      for (std::uint32_t offset = 0; offset < args.payload_bytes; offset += kChunk)
        ptx::bulk_store(to + offset, staging + offset, min(kChunk, args.payload_bytes - offset));
      ptx::bulk_commit();
      ptx::bulk_wait_source();
    }
    return;
  }
  const std::uint32_t step = args.store == LitmusStore::kV4   ? 4
                             : args.store == LitmusStore::kV2 ? 2
                                                              : 1;
  for (std::uint32_t i = threadIdx.x * step; i < words; i += kThreads * step) {
    if (step == 4)
      ptx::st_global_v4(to + i * 4, make_uint4(word_of(round, i), word_of(round, i + 1),
                                               word_of(round, i + 2), word_of(round, i + 3)));
    else if (step == 2)
      ptx::st_global_v2(to + i * 4, word_of(round, i), word_of(round, i + 1));
    else
      ptx::st_global_b32(to + i * 4, word_of(round, i));
  }
}

/// One thread, behind a barrier after store_message().
__device__ void signal(const LitmusArgs& args, Flag* flag, std::uint64_t round) {
  switch (args.signal) {
    case LitmusSignal::kRelease:
      if (args.store == LitmusStore::kTmaBulk) {
        // Bulk stores run in the async proxy: complete them, then order the proxies.
        ptx::bulk_wait_done();
        ptx::fence_proxy_async();
      }
      ptx::st_release_sys(&flag->value, round);
      break;
    case LitmusSignal::kRelaxed:
    case LitmusSignal::kSourceOnly: ptx::st_relaxed_sys(&flag->value, round); break;
  }
}

__device__ void write_channel(const LitmusArgs& args, int channel, std::uint32_t random) {
  __shared__ int go_on;
  auto* to = reinterpret_cast<std::uint8_t*>(args.out_payload) +
             static_cast<std::size_t>(channel) * kPayloadMax;
  for (int round = 1; round <= args.rounds; ++round) {
    random = mix(random + 1);
    delay(random, args.max_delay_ns);
    store_message(args, to, static_cast<std::uint32_t>(round));
    __syncthreads();
    if (threadIdx.x == 0) {
      if ((random & 0x100) != 0) delay(random >> 12, args.max_delay_ns / 4);
      signal(args, &args.out_flag[channel], static_cast<std::uint64_t>(round));
      go_on =
          wait_for(&args.out_answer[channel], static_cast<std::uint64_t>(round), args.deadline_ns);
      if (!go_on) *args.failed = 1;
    }
    __syncthreads();
    if (!go_on) return;
  }
}

__device__ void read_channel(const LitmusArgs& args, int channel, std::uint32_t random) {
  __shared__ int go_on;
  const std::uint32_t words = args.payload_bytes / 4;
  const std::uint32_t* from =
      args.in_payload + static_cast<std::size_t>(channel) * (kPayloadMax / 4);
  unsigned long long stale = 0;
  for (int round = 1; round <= args.rounds; ++round) {
    random = mix(random + 1);
    if (threadIdx.x == 0) {
      go_on = wait_for(&args.in_flag[channel], static_cast<std::uint64_t>(round), args.deadline_ns);
      if (!go_on) *args.failed = 1;
      if ((random & 3) == 0) delay(random >> 8, args.max_delay_ns / 4);
    }
    __syncthreads();
    if (!go_on) break;
    // Ordinary loads, as a consumer of tiles does them; volatile only so that each is made.
    for (std::uint32_t i = threadIdx.x; i < words; i += kThreads) {
      std::uint32_t word;
      asm volatile("ld.global.b32 %0, [%1];" : "=r"(word) : "l"(from + i) : "memory");
      stale += word != word_of(static_cast<std::uint32_t>(round), i);
    }
    __syncthreads();
    if (threadIdx.x == 0)
      ptx::st_release_sys(&args.in_answer[channel].value, static_cast<std::uint64_t>(round));
  }
  if (stale != 0) atomicAdd(args.stale, stale);
}

/// Blocks [0, channels) write, blocks [channels, 2·channels) read.
__global__ void __launch_bounds__(kThreads, 1) litmus(const __grid_constant__ LitmusArgs args) {
  const std::uint32_t random = mix(static_cast<std::uint32_t>(args.seed) + blockIdx.x * 7919u);
  const int channel = static_cast<int>(blockIdx.x) % args.channels;
  if (static_cast<int>(blockIdx.x) < args.channels)
    write_channel(args, channel, random);
  else
    read_channel(args, channel, random);
}

}  // namespace

cudaError_t launch_litmus(const LitmusArgs& args, cudaStream_t stream) {
  if (args.payload_bytes == 0 || args.payload_bytes % 16 != 0 || args.payload_bytes > kPayloadMax)
    return cudaErrorInvalidValue;
  LitmusArgs copy = args;
  void* arguments[] = {&copy};
  // Writers wait for readers on the other GPU: all blocks must be resident.
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&litmus),
                                     dim3(static_cast<unsigned>(2 * args.channels)), dim3(kThreads),
                                     arguments, kPayloadMax, stream);
}

}  // namespace xstage::comm
