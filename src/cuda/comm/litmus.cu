// Message passing, the litmus test behind every fused kernel here: a payload, then a signal;
// whoever sees the signal must see the payload. The signals are those of the kernels themselves:
// sync::Arrivals over the policy of threads on a GPU. Right and deliberately wrong ways to use
// them, so that the test shows that it can fail.
#include "cuda/comm/comm.hpp"
#include "cuda/device_policy.cuh"
#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/clock.cuh"
#include "cuda/ptx/store.cuh"
#include "cuda/ptx/sync.cuh"
#include "xstage/sync/arrivals.hpp"

namespace xstage::comm {
namespace {

constexpr int kThreads = 256;
constexpr std::uint32_t kPayloadMax = 32 * 1024;

/// Wrong: counters are raised without ordering the stores before them.
class RelaxedPolicy : public cuda::DevicePolicy {
 public:
  static constexpr sync::Fault kFault = sync::Fault::kMissingRelease;

  __device__ void add_relaxed(std::uint64_t* word, std::uint64_t value) const {
    ptx::red_add_relaxed_sys(word, value);
  }
};

__device__ std::uint32_t mix(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

/// Word i of the message of `epoch`: known to both sides, different in every message.
__device__ std::uint32_t word_of(std::uint32_t epoch, std::uint32_t i) {
  return mix(epoch * 0x9e3779b9u + i);
}

__device__ void delay(std::uint32_t random, std::uint32_t max_ns) {
  if (max_ns == 0) return;
  const std::uint64_t until = ptx::globaltimer() + random % max_ns;
  while (ptx::globaltimer() < until) {
  }
}

/// Addresses of one channel's words.
struct Words {
  const LitmusArgs& args;
  std::int32_t channel;

  __device__ std::uint64_t* arrived(std::int32_t rank, std::int32_t slot,
                                    std::int32_t source) const {
    return &args.words[rank][channel].arrived[slot][source].value;
  }
  __device__ std::uint64_t* epoch() const { return &args.words[args.self][channel].epoch.value; }
  __device__ std::uint64_t* barrier() const {
    return &args.words[args.self][channel].barrier.value;
  }
};

extern __shared__ __align__(128) std::uint8_t staging[];

/// Starts the bulk stores of a message, by one thread.
__device__ void store_bulk(const LitmusArgs& args, std::uint8_t* to) {
  constexpr std::uint32_t kChunk = 2048;
  for (std::uint32_t offset = 0; offset < args.payload_bytes; offset += kChunk)
    ptx::bulk_store(to + offset, staging + offset, min(kChunk, args.payload_bytes - offset));
  ptx::bulk_commit();
}

/// Stores this thread's part of a message.
__device__ void store_part(const LitmusArgs& args, std::uint8_t* to, std::uint32_t epoch) {
  const std::uint32_t words = args.payload_bytes / 4;
  const std::uint32_t step = args.store == LitmusStore::kV4   ? 4
                             : args.store == LitmusStore::kV2 ? 2
                                                              : 1;
  for (std::uint32_t i = threadIdx.x * step; i < words; i += kThreads * step) {
    if (step == 4)
      ptx::st_global_v4(to + i * 4, make_uint4(word_of(epoch, i), word_of(epoch, i + 1),
                                               word_of(epoch, i + 2), word_of(epoch, i + 3)));
    else if (step == 2)
      ptx::st_global_v2(to + i * 4, word_of(epoch, i), word_of(epoch, i + 1));
    else
      ptx::st_global_b32(to + i * 4, word_of(epoch, i));
  }
}

/// Stores the message of this epoch at the peer and signals it, as args.signal says. All threads.
template <class Signals>
__device__ void send(const LitmusArgs& args, Signals& signals, std::uint8_t* to,
                     std::uint32_t epoch, std::uint32_t random) {
  const std::int32_t peer = 1 - args.self;
  if (args.store == LitmusStore::kTmaBulk) {
    auto* source = reinterpret_cast<std::uint32_t*>(staging);
    for (std::uint32_t i = threadIdx.x; i < args.payload_bytes / 4; i += kThreads)
      source[i] = word_of(epoch, i);
    ptx::fence_proxy_async_shared();
    __syncthreads();
    if (threadIdx.x != 0) return;
    store_bulk(args, to);
    if (args.signal == LitmusSignal::kRelease) {
      // Bulk stores run in the async proxy: complete them, then order the proxies.
      ptx::bulk_wait_done();
      ptx::fence_proxy_async();
      if ((random & 0x100) != 0) delay(random >> 12, args.max_delay_ns / 4);
    } else if (args.signal == LitmusSignal::kRelaxed) {
      ptx::bulk_wait_source();
    }
    signals.add(peer, 1);
    ptx::bulk_wait_source();  // before the source is filled again
    return;
  }
  // The warps of a tile do not end together. A release takes a microsecond: a signal that does not
  // wait for the other warps is caught where one of them comes later than that.
  if (threadIdx.x >= 32)
    delay(mix(random + threadIdx.x / 32),
          args.signal == LitmusSignal::kEarly ? 4 * args.max_delay_ns : args.max_delay_ns / 4);
  store_part(args, to, epoch);
  if (args.signal != LitmusSignal::kEarly) __syncthreads();
  if (threadIdx.x != 0) return;
  if (args.signal == LitmusSignal::kRelease && (random & 0x100) != 0)
    delay(random >> 12, args.max_delay_ns / 4);
  signals.add(peer, 1);
}

template <class Policy>
__device__ void exchange(const LitmusArgs& args) {
  const auto channel = static_cast<std::int32_t>(blockIdx.x);
  std::uint32_t random = mix(static_cast<std::uint32_t>(args.seed) + blockIdx.x * 7919u);
  const std::uint32_t words = args.payload_bytes / 4;
  const auto slot_at = [&](int gpu, std::int32_t slot) {
    return args.payload[gpu] +
           (static_cast<std::size_t>(channel) * 2 + static_cast<std::size_t>(slot)) * kPayloadMax;
  };
  Policy policy;
  sync::WaitContext context;
  context.stop_words = args.stop;
  context.ranks = 2;
  context.rank = args.self;
  context.worker = 0;
  context.limit_ns = args.deadline_ns;
  context.record = args.records + channel;
  sync::Arrivals<Policy, Words> signals(policy, Words{args, channel}, context, 1,
                                        sync::Site::kExchangePieces);
  unsigned long long stale = 0, stale_messages = 0;
  for (int round = 1; round <= args.rounds; ++round) {
    const auto epoch = static_cast<std::uint32_t>(round);
    random = mix(random + 1);
    delay(random, args.max_delay_ns);
    bool opened = false;
    if (threadIdx.x == 0) {
      signals.begin();
      opened = signals.open();
    }
    if (__syncthreads_or(opened) == 0) break;
    send(args, signals, slot_at(1 - args.self, round & 1), epoch, random);
    bool arrived = false;
    if (threadIdx.x == 0) {
      arrived = signals.wait(1 - args.self, 1);
      if ((random & 3) == 0) delay(random >> 8, args.max_delay_ns / 4);
    }
    if (__syncthreads_or(arrived) == 0) break;
    // Ordinary loads, as a consumer of tiles does them; volatile only so that each is made.
    const auto* from = reinterpret_cast<const std::uint32_t*>(slot_at(args.self, round & 1));
    int wrong = 0;
    for (std::uint32_t i = threadIdx.x; i < words; i += kThreads) {
      std::uint32_t word;
      asm volatile("ld.global.b32 %0, [%1];" : "=r"(word) : "l"(from + i) : "memory");
      wrong += word != word_of(epoch, i) ? 1 : 0;
    }
    stale += static_cast<unsigned long long>(wrong);
    if (__syncthreads_or(wrong) != 0) ++stale_messages;
  }
  if (stale != 0) atomicAdd(args.stale, stale);
  if (threadIdx.x == 0 && stale_messages != 0) atomicAdd(args.stale_messages, stale_messages);
}

__global__ void __launch_bounds__(kThreads, 1) litmus(const __grid_constant__ LitmusArgs args) {
  const bool bulk = args.store == LitmusStore::kTmaBulk;
  if (args.signal == LitmusSignal::kRelaxed || (bulk && args.signal == LitmusSignal::kEarly))
    exchange<RelaxedPolicy>(args);
  else
    exchange<cuda::DevicePolicy>(args);
}

}  // namespace

cudaError_t launch_litmus(const LitmusArgs& args, cudaStream_t stream) {
  if (args.payload_bytes == 0 || args.payload_bytes % 16 != 0 || args.payload_bytes > kPayloadMax)
    return cudaErrorInvalidValue;
  LitmusArgs copy = args;
  void* arguments[] = {&copy};
  // A block waits for one on the other GPU: all blocks must be resident.
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&litmus),
                                     dim3(static_cast<unsigned>(args.channels)), dim3(kThreads),
                                     arguments, kPayloadMax, stream);
}

}  // namespace xstage::comm
