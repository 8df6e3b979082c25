// Bursts of ordinary stores, by all threads of a producer block.
//
// A burst's issue span is from the first instruction after the barrier that starts it to the first
// one after the barrier behind its last store. No fence and no shared or global access is inside
// the timed loops: whatever enters the load/store unit there waits behind the burst's own stores
// and would be measured instead (at 256 threads 4 to 5 KB are still inside the SM when the second
// clock is read). So the spans stay in registers until the launch ends, one per thread.
#include "cuda/probe/align.cuh"
#include "cuda/probe/kernels.hpp"
#include "cuda/ptx/store.cuh"

namespace xstage::probe {
namespace {

template <int Width>
__device__ __forceinline__ void store(std::uint8_t* p, uint4 v) {
  if constexpr (Width == 16) ptx::st_global_v4(p, v);
  if constexpr (Width == 8) ptx::st_global_v2(p, v.x, v.y);
  if constexpr (Width == 4) ptx::st_global_b32(p, v.x);
}

/// A value that stays in a register: it went through shared memory by a load that the compiler may
/// not repeat. Kernel arguments left as they are get re-read from constant memory inside the timed
/// loop, and those loads queue up behind the stores. Called by all threads alike.
__device__ __forceinline__ std::uint32_t pinned(std::uint32_t v) {
  __shared__ std::uint32_t words[1024];
  words[threadIdx.x] = v;
  return ptx::ld_shared_volatile(&words[threadIdx.x]);
}

/// One thread's share of a burst, in registers.
struct Share {
  uint4 value;
  std::uint8_t* window;       // its first byte of the slot's window
  std::uint32_t first, step;  // offset of its first store in a burst, distance to the next
  std::uint32_t bytes;        // of the burst
  std::uint32_t wrap;         // the last offset at which a burst still fits in the window
};

template <int Width>
__device__ __forceinline__ void store_burst(const Share& share, std::uint32_t at) {
  std::uint8_t* p = share.window + at;
#pragma unroll 4
  for (std::uint32_t offset = share.first; offset < share.bytes; offset += share.step) {
    store<Width>(p, share.value);
    p += share.step;
  }
}

/// What a thread of a slot stores: neither zeros nor equal words, and known to whoever reads it
/// back.
__device__ __forceinline__ uint4 payload(int slot) {
  const std::uint32_t word =
      (static_cast<std::uint32_t>(slot) << 16 | (threadIdx.x + 1)) * 0x9e3779b9u;
  return make_uint4(word, word ^ 0x5bd1e995u, word * 5 + 1, ~word);
}

template <int Width>
__device__ __forceinline__ Share share_of(const BurstArgs& args, int slot) {
  Share share;
  const uint4 v = payload(slot);
  share.value = make_uint4(pinned(v.x), pinned(v.y), pinned(v.z), pinned(v.w));
  share.first = threadIdx.x * Width;
  share.step = pinned(blockDim.x * Width);
  share.bytes = pinned(args.bytes);
  const auto window =
      reinterpret_cast<std::uint64_t>(slot_window(args, slot) + threadIdx.x * Width);
  share.window = reinterpret_cast<std::uint8_t*>(
      pinned(static_cast<std::uint32_t>(window)) |
      static_cast<std::uint64_t>(pinned(static_cast<std::uint32_t>(window >> 32))) << 32);
  share.wrap = pinned(static_cast<std::uint32_t>(args.slot_bytes) - args.bytes);
  return share;
}

/// Where the next burst goes: through the window, from its begin again when it would not fit.
__device__ __forceinline__ std::uint32_t next_offset(std::uint32_t at, const Share& share) {
  const std::uint32_t next = at + share.bytes;
  return next > share.wrap ? 0 : next;
}

struct Tail {
  std::uint64_t begin, end;
};

/// All threads drain their stores; both clocks are read behind a barrier.
__device__ __forceinline__ Tail drain() {
  __syncthreads();
  const std::uint64_t begin = ptx::clock64();
  ptx::fence_sys();
  __syncthreads();
  return {begin, ptx::clock64()};
}

template <int Width>
__global__ void __launch_bounds__(1024, 1)
    window_lsu(const __grid_constant__ BurstArgs args, ProducerRecord* records,
               std::uint32_t* rings) {
  __shared__ std::uint64_t start_shared;
  const int slot = producer_slot(args);
  if (slot < 0) return;
  const Share share = share_of<Width>(args, slot);
  const TimerEdge edge = timer_edge();
  if (threadIdx.x == 0) start_shared = agree_on_start(args, 0);
  __syncthreads();
  const std::uint64_t start = start_shared;
  if (start == 0) return;
  while (ptx::globaltimer() < start) {
  }
  const std::uint64_t origin = ptx::clock64();
  const std::uint64_t counted_from = origin + args.warm_cycles;
  const std::uint64_t end = counted_from + args.window_cycles;
  const std::uint32_t gap = pinned(args.gap_cycles);
  const std::uint32_t threads = pinned(blockDim.x);

  std::uint32_t offset = 0;
  std::uint64_t issue_sum = 0, first = 0, last = 0, last_issue = 0;
  std::uint32_t bursts = 0, keeper = 0, kept_span = 0;
  bool more = true;
  while (__syncthreads_and(more)) {
    const std::uint64_t t0 = ptx::clock64();
    store_burst<Width>(share, offset);
    __syncthreads();
    const std::uint64_t t1 = ptx::clock64();
    offset = next_offset(offset, share);
    last_issue = t1;
    if (t0 >= counted_from) {
      if (bursts == 0) first = t0;
      last = t0;
      issue_sum += t1 - t0;
      if (keeper == threadIdx.x) kept_span = static_cast<std::uint32_t>(t1 - t0);
      keeper = keeper + 1 == threads ? 0 : keeper + 1;
      ++bursts;
    }
    while (ptx::clock64() - t1 < gap) {
    }
    more = ptx::clock64() < end;
  }
  const Tail tail = drain();
  const TimerEdge final_edge = timer_edge();
  rings[static_cast<std::size_t>(slot) * kRing + threadIdx.x] = kept_span;
  if (threadIdx.x == 0) {
    ProducerRecord& r = records[slot];
    r.smid = ptx::smid();
    r.slot = static_cast<std::uint32_t>(slot);
    r.bursts = bursts;
    r.kept = min(bursts, blockDim.x);
    r.issue_sum = issue_sum;
    r.first_start = first;
    r.last_start = last;
    r.last_issue = last_issue - origin;
    r.drained = tail.end - origin;
    r.fence = tail.end - tail.begin;
    r.enqueue_sum = issue_sum;
    r.clock_begin = edge.cycle;
    r.timer_begin = edge.ns;
    r.clock_end = final_edge.cycle;
    r.timer_end = final_edge.ns;
  }
}

template <int Width>
__global__ void __launch_bounds__(1024, 1)
    aligned_lsu(const __grid_constant__ BurstArgs args, ProducerRecord* records,
                RoundRecord* rings) {
  __shared__ std::uint64_t start_shared;
  __shared__ std::uint32_t probe_word;
  const int slot = producer_slot(args);
  if (slot < 0) return;
  const Share share = share_of<Width>(args, slot);
  if (threadIdx.x == 0) probe_word = 0;
  const TimerEdge edge = timer_edge();

  std::uint32_t offset = 0;
  std::uint64_t issue_sum = 0, first = 0, last = 0, t1 = 0, origin = 0;
  RoundRecord kept{};
  const std::uint32_t shared_load = pinned(args.shared_load), fence = pinned(args.fence_each_round);
  for (int round = 0; round < args.rounds; ++round) {
    std::uint32_t skew = 0;
    if (!args.free_running || round == 0) {
      if (threadIdx.x == 0) start_shared = agree_on_start(args, round);
      __syncthreads();
      const std::uint64_t start = start_shared;
      if (start == 0) return;
      std::uint64_t now = ptx::globaltimer();
      while (now < start) now = ptx::globaltimer();
      skew = static_cast<std::uint32_t>(now - start);
    } else {
      while (ptx::clock64() - t1 < args.gap_cycles) {
      }
    }
    __syncthreads();
    const std::uint64_t t0 = ptx::clock64();
    store_burst<Width>(share, offset);
    __syncthreads();
    const std::uint64_t before = t1;
    t1 = ptx::clock64();
    std::uint64_t after = 0;
    if (shared_load != 0) {
      // The branch makes the clock wait for the loaded word, which is zero.
      if (ptx::ld_shared_volatile(&probe_word) == 0) after = ptx::clock64() - t1;
      __syncthreads();
      if (shared_load == 2) after = ptx::clock64() - t1;
    }
    if (fence != 0) {
      ptx::fence_sys();
      __syncthreads();
      after = ptx::clock64() - t1;
    }
    offset = next_offset(offset, share);
    if (round == 0) {
      origin = t0;
      first = t0;
    }
    last = t0;
    issue_sum += t1 - t0;
    if (round == static_cast<int>(threadIdx.x))
      kept = {static_cast<std::uint32_t>(t1 - t0), static_cast<std::uint32_t>(after),
              round == 0 ? 0u : static_cast<std::uint32_t>(t0 - before), skew};
  }
  const Tail tail = drain();
  const TimerEdge final_edge = timer_edge();
  if (static_cast<int>(threadIdx.x) < args.rounds)
    rings[static_cast<std::size_t>(slot) * kMaxRounds + threadIdx.x] = kept;
  if (threadIdx.x == 0) {
    ProducerRecord& r = records[slot];
    r.smid = ptx::smid();
    r.slot = static_cast<std::uint32_t>(slot);
    r.bursts = static_cast<std::uint32_t>(args.rounds);
    r.kept = static_cast<std::uint32_t>(args.rounds);
    r.issue_sum = issue_sum;
    r.first_start = first;
    r.last_start = last;
    r.last_issue = t1 - origin;
    r.drained = tail.end - origin;
    r.fence = tail.end - tail.begin;
    r.enqueue_sum = issue_sum;
    r.clock_begin = edge.cycle;
    r.timer_begin = edge.ns;
    r.clock_end = final_edge.cycle;
    r.timer_end = final_edge.ns;
  }
}

}  // namespace

const void* window_kernel_lsu(int width) {
  switch (width) {
    case 4: return reinterpret_cast<const void*>(&window_lsu<4>);
    case 8: return reinterpret_cast<const void*>(&window_lsu<8>);
    case 16: return reinterpret_cast<const void*>(&window_lsu<16>);
    default: return nullptr;
  }
}

const void* aligned_kernel_lsu(int width) {
  switch (width) {
    case 4: return reinterpret_cast<const void*>(&aligned_lsu<4>);
    case 8: return reinterpret_cast<const void*>(&aligned_lsu<8>);
    case 16: return reinterpret_cast<const void*>(&aligned_lsu<16>);
    default: return nullptr;
  }
}

}  // namespace xstage::probe
