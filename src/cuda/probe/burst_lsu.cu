// Bursts of ordinary stores, by all threads of a producer block.
//
// A warp's issue span is from the first instruction after the barrier that starts the burst to the
// first one after the warp's last store; a burst's is that of warp 0, which stores in every pass.
// No fence, barrier or access is between a span's two clock reads: whatever enters the load/store
// unit there waits behind the burst's own stores and would be measured instead. A barrier is enough
// for that: it waits for one queued store a thread (4 KB at 256 threads), which is not issue, but
// S. The spans stay in registers until the launch ends, spread over the lanes of each warp.
#include <utility>

#include "cuda/probe/align.cuh"
#include "cuda/probe/kernels.hpp"
#include "cuda/ptx/store.cuh"

namespace xstage::probe {
namespace {

/// One store at a constant distance from its address register.
template <int Width, int Offset>
__device__ __forceinline__ void store(std::uint8_t* p, const uint4& v) {
  if constexpr (Width == 16)
    asm volatile("st.global.v4.b32 [%0+%5], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w), "n"(Offset)
                 : "memory");
  if constexpr (Width == 8)
    asm volatile("st.global.v2.b32 [%0+%3], {%1, %2};" ::"l"(p), "r"(v.x), "r"(v.y), "n"(Offset)
                 : "memory");
  if constexpr (Width == 4)
    asm volatile("st.global.b32 [%0+%2], %1;" ::"l"(p), "r"(v.x), "n"(Offset) : "memory");
}

/// A value that stays in a register: it went through shared memory by a load that the compiler may
/// not repeat. Kernel arguments left as they are get re-read from constant memory inside the timed
/// loop, and those loads queue up behind the stores. Called by all threads alike.
__device__ __forceinline__ std::uint32_t pinned(std::uint32_t v) {
  __shared__ std::uint32_t words[1024];
  words[threadIdx.x] = v;
  return ptx::ld_shared_volatile(&words[threadIdx.x]);
}

// Stores of a thread behind one address register. The assembler predicates the last of them instead
// of branching over it, and so makes bursts that end one store earlier wait: with 30 that is every
// 30th burst length, from 29 stores a thread on (116 KB at 256 threads).
constexpr int kGroup = 30;

/// One thread's share of a burst, in registers.
struct Share {
  uint4 value;  // changes from store to store
  std::uint32_t salt;
  std::uint8_t* window;  // its first byte of the slot's window
  std::uint32_t groups,
      rest;             // its stores of a burst: groups * kGroup + rest, 1 to kGroup of them last
  std::uint32_t bytes;  // of the burst
  std::uint32_t wrap;   // the last offset at which a burst still fits in the window
  std::uint64_t sink;   // of no meaning, but used
};

/// The next store's value. The store before must have read its own by then.
__device__ __forceinline__ void next_value(Share& share) {
  asm volatile("xor.b32 %0, %0, %1;" : "+r"(share.value.x) : "r"(share.salt));
}

template <int Width, int Step, int... I>
__device__ __forceinline__ void store_group(std::uint8_t* p, Share& share,
                                            std::integer_sequence<int, I...>) {
  ((I > 0 ? next_value(share) : void(), store<Width, I * Step>(p, share.value)), ...);
}

template <int Width, int Step, int... I>
__device__ __forceinline__ void store_rest(std::uint8_t* p, Share& share,
                                           std::integer_sequence<int, I...>) {
  const auto one = [&](auto index) {
    constexpr int i = decltype(index)::value;
    if constexpr (i > 0) next_value(share);
    store<Width, i * Step>(p, share.value);
    return true;
  };
  // The first store that is not wanted ends the chain.
  (void)((share.rest > I && one(std::integral_constant<int, I>{})) && ...);
}

/// Issues one thread's part of a burst; `clock` is read after its last store.
///
/// A store reads its registers only when it leaves the queue between the warp and the load/store
/// unit, and whatever overwrites them before waits for that. So how many stores a warp can have in
/// that queue, and with it the issue time, depends on the registers that the compiler chose: where
/// nothing is overwritten, a burst of 16 KB disappears in the queue and seems to cost nothing, and
/// where the clock itself lands in the last store's address, the queue's drain is counted too. Here
/// every store changes a register of the one before: one queued store a warp. The last one is S;
/// nothing waits for it, since its registers stay untouched until the clock is read. A test checks
/// both in the machine code.
template <int Width, int Threads>
__device__ __forceinline__ void store_burst(Share& share, std::uint32_t at, std::uint64_t& clock) {
  constexpr int kStep = Width * Threads;
  std::uint8_t* p = share.window + at;
  std::uint8_t* const tail = p + share.groups * (kGroup * kStep);
  for (std::uint32_t left = share.groups; left != 0; --left) {
    store_group<Width, kStep>(p, share, std::make_integer_sequence<int, kGroup>{});
    next_value(share);
    p += kGroup * kStep;
  }
  store_rest<Width, kStep>(tail, share, std::make_integer_sequence<int, kGroup>{});
  clock = ptx::clock64();
  // Used after the clock, so that the clock cannot take the last store's registers.
  asm volatile("{.reg .b64 t; cvt.u64.u32 t, %2; xor.b64 t, t, %1; xor.b64 %0, %0, t;}"
               : "+l"(share.sink)
               : "l"(tail), "r"(share.value.x));
}

/// What a thread of a slot stores: neither zeros nor equal words, and known to whoever reads it
/// back.
__device__ __forceinline__ uint4 payload(int slot) {
  const std::uint32_t word =
      (static_cast<std::uint32_t>(slot) << 16 | (threadIdx.x + 1)) * 0x9e3779b9u;
  return make_uint4(word, word ^ 0x5bd1e995u, word * 5 + 1, ~word);
}

template <int Width, int Threads>
__device__ __forceinline__ Share share_of(const BurstArgs& args, int slot) {
  Share share;
  const uint4 v = payload(slot);
  share.value = make_uint4(pinned(v.x), pinned(v.y), pinned(v.z), pinned(v.w));
  constexpr std::uint32_t kStep = Width * Threads;
  const std::uint32_t first = threadIdx.x * Width;
  const std::uint32_t stores = args.bytes > first ? (args.bytes - first + kStep - 1) / kStep : 0;
  share.groups = pinned(stores > 0 ? (stores - 1) / kGroup : 0);
  share.rest = pinned(stores > 0 ? (stores - 1) % kGroup + 1 : 0);
  share.salt = pinned(0x27d4eb2fu + threadIdx.x);
  share.sink = 0;
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

constexpr int kSlots = kRing / 32;
static_assert(kMaxRounds <= kRing && kRing % 32 == 0, "one lane and slot for every kept burst");

/// Entry `index` of a ring whose entries are spread over the lanes of each warp, in registers: the
/// slot is chosen by compile-time indices.
template <class T>
__device__ __forceinline__ void keep(T (&slots)[kSlots], std::uint32_t index, T value) {
  // Selects, not branches: the compiler turns a chain of branches into an indexed array in local
  // memory, whose stores would queue up behind the burst.
#pragma unroll
  for (int i = 0; i < kSlots; ++i)
    slots[i] = index == i * 32u + (threadIdx.x & 31) ? value : slots[i];
}

/// What warp 0 kept, gathered when everything is measured.
struct Sums {
  std::uint32_t ring[kRing];
  std::uint64_t issue;
};

__device__ __forceinline__ void clear(Sums& sums) {
  for (unsigned i = threadIdx.x; i < kRing; i += blockDim.x) sums.ring[i] = 0;
  if (threadIdx.x == 0) sums.issue = 0;
  __syncthreads();
}

__device__ __forceinline__ void add_ring(Sums& sums, const std::uint32_t (&slots)[kSlots]) {
  if (threadIdx.x < 32)
#pragma unroll
    for (int i = 0; i < kSlots; ++i) sums.ring[i * 32 + threadIdx.x] = slots[i];
}

struct BlockTimes {
  std::uint64_t origin, first, last, last_issue;
  TimerEdge edge;
};

/// The record of one producer, by thread 0, behind a barrier after the sums.
__device__ void write_record(ProducerRecord& r, int slot, std::uint32_t bursts, std::uint32_t kept,
                             const Sums& sums, std::uint64_t sink, const BlockTimes& times,
                             const Tail& tail, const TimerEdge& final_edge) {
  r.smid = ptx::smid();
  r.slot = static_cast<std::uint32_t>(slot);
  r.bursts = bursts;
  r.kept = kept;
  r.issue_sum = sums.issue;
  r.first_start = times.first;
  r.last_start = times.last;
  r.last_issue = times.last_issue - times.origin;
  r.drained = tail.end - times.origin;
  r.fence = tail.end - tail.begin;
  r.enqueue_sum = r.issue_sum;
  r.clock_begin = times.edge.cycle;
  r.timer_begin = times.edge.ns;
  r.clock_end = final_edge.cycle;
  r.timer_end = final_edge.ns;
  r.sink = sink;
}

template <int Width, int Threads>
__global__ void __launch_bounds__(Threads, 1)
    window_lsu(const __grid_constant__ BurstArgs args, ProducerRecord* records,
               std::uint32_t* rings) {
  __shared__ std::uint64_t start_shared;
  __shared__ std::uint32_t quiet_word;
  __shared__ Sums sums;
  const int slot = producer_slot(args);
  if (slot < 0) return;
  Share share = share_of<Width, Threads>(args, slot);
  BlockTimes times{};
  times.edge = timer_edge();
  if (threadIdx.x == 0) {
    quiet_word = 0;
    start_shared = agree_on_start(args, 0);
  }
  __syncthreads();
  const std::uint64_t start = start_shared;
  if (start == 0) return;
  while (ptx::globaltimer() < start) {
  }
  times.origin = ptx::clock64();
  const std::uint64_t counted_from = times.origin + args.warm_cycles;
  const std::uint64_t end = counted_from + args.window_cycles;
  const std::uint32_t gap = pinned(args.gap_cycles);

  std::uint32_t offset = 0, bursts = 0, spans[kSlots] = {};
  std::uint64_t issue_sum = 0, t1 = 0;
  bool more = true;
  while (__syncthreads_and(more)) {
    const std::uint64_t t0 = ptx::clock64();
    store_burst<Width, Threads>(share, offset, t1);
    offset = next_offset(offset, share);
    times.last_issue = t1;
    if (t0 >= counted_from) {
      if (bursts == 0) times.first = t0;
      times.last = t0;
      issue_sum += t1 - t0;
      keep(spans, bursts % kRing, static_cast<std::uint32_t>(t1 - t0));
      ++bursts;
    }
    // The gap counts from the first warp's last store; what the others still issue runs beside it.
    if (threadIdx.x < 32) {
      while (ptx::clock64() - t1 < gap) {
      }
    }
    // The next tile's first memory access: what is still queued inside the SM is paid here, by the
    // loop, and not by the next burst.
    more = ptx::clock64() + ptx::ld_shared_volatile(&quiet_word) < end;
  }
  const Tail tail = drain();
  const TimerEdge final_edge = timer_edge();
  clear(sums);
  add_ring(sums, spans);
  if (threadIdx.x == 0) sums.issue = issue_sum;
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kRing; i += blockDim.x)
    rings[static_cast<std::size_t>(slot) * kRing + i] = sums.ring[i];
  if (threadIdx.x == 0)
    write_record(records[slot], slot, bursts, min(bursts, static_cast<std::uint32_t>(kRing)), sums,
                 share.sink, times, tail, final_edge);
}

template <int Width, int Threads>
__global__ void __launch_bounds__(Threads, 1)
    aligned_lsu(const __grid_constant__ BurstArgs args, ProducerRecord* records,
                RoundRecord* rings) {
  __shared__ std::uint64_t start_shared;
  __shared__ std::uint32_t probe_word;
  __shared__ Sums sums;
  const int slot = producer_slot(args);
  if (slot < 0) return;
  Share share = share_of<Width, Threads>(args, slot);
  if (threadIdx.x == 0) probe_word = 0;
  BlockTimes times{};
  times.edge = timer_edge();

  std::uint32_t offset = 0;
  std::uint64_t issue_sum = 0, t1 = 0;
  std::uint32_t issue[kSlots] = {}, after[kSlots] = {}, gap[kSlots] = {};
  const std::uint32_t shared_load = pinned(static_cast<std::uint32_t>(args.shared_load));
  const std::uint32_t drains = pinned(drain_mask(args));
  for (int round = 0; round < args.rounds; ++round) {
    if (!args.free_running || round == 0) {
      if (threadIdx.x == 0) start_shared = round_start(args, round, start_shared);
      __syncthreads();
      const std::uint64_t start = start_shared;
      if (start == 0) return;
      while (ptx::globaltimer() < start) {
      }
    } else {
      while (ptx::clock64() - t1 < args.gap_cycles) {
      }
    }
    __syncthreads();
    const std::uint64_t t0 = ptx::clock64();
    const std::uint64_t before = t1;
    store_burst<Width, Threads>(share, offset, t1);
    std::uint64_t after_burst = 0;
    // The branch makes the clock wait for the loaded word, which is zero.
    if (shared_load != 0 && ptx::ld_shared_volatile(&probe_word) == 0)
      after_burst = ptx::clock64() - t1;
    if ((drains >> (round & 1) & 1) != 0) {
      __syncthreads();
      ptx::fence_sys();
      __syncthreads();
      after_burst = ptx::clock64() - t1;
    }
    offset = next_offset(offset, share);
    if (round == 0) times.origin = times.first = t0;
    times.last = t0;
    issue_sum += t1 - t0;
    const auto index = static_cast<std::uint32_t>(round);
    keep(issue, index, static_cast<std::uint32_t>(t1 - t0));
    keep(after, index, static_cast<std::uint32_t>(after_burst));
    keep(gap, index, round == 0 ? 0u : static_cast<std::uint32_t>(t0 - before));
  }
  times.last_issue = t1;
  const Tail tail = drain();
  const TimerEdge final_edge = timer_edge();
  RoundRecord* out = rings + static_cast<std::size_t>(slot) * kMaxRounds;
  clear(sums);
  add_ring(sums, issue);
  if (threadIdx.x == 0) sums.issue = issue_sum;
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kMaxRounds; i += blockDim.x) out[i].issue = sums.ring[i];
  if (threadIdx.x == 0)
    write_record(records[slot], slot, static_cast<std::uint32_t>(args.rounds),
                 static_cast<std::uint32_t>(args.rounds), sums, share.sink, times, tail,
                 final_edge);
  __syncthreads();
  clear(sums);
  add_ring(sums, after);
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kMaxRounds; i += blockDim.x) out[i].after = sums.ring[i];
  __syncthreads();
  clear(sums);
  add_ring(sums, gap);
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kMaxRounds; i += blockDim.x) out[i].gap = sums.ring[i];
}

template <int Width, int Threads>
const void* window_kernel() {
  return reinterpret_cast<const void*>(&window_lsu<Width, Threads>);
}
template <int Width, int Threads>
const void* aligned_kernel() {
  return reinterpret_cast<const void*>(&aligned_lsu<Width, Threads>);
}

}  // namespace

const void* window_kernel_lsu(int width, int threads) {
  if (width == 4 && threads == 256) return window_kernel<4, 256>();
  if (width == 8 && threads == 256) return window_kernel<8, 256>();
  if (width != 16) return nullptr;
  switch (threads) {
    case 64: return window_kernel<16, 64>();
    case 128: return window_kernel<16, 128>();
    case 256: return window_kernel<16, 256>();
    case 512: return window_kernel<16, 512>();
    case 1024: return window_kernel<16, 1024>();
    default: return nullptr;
  }
}

const void* aligned_kernel_lsu(int width, int threads) {
  if (width == 4 && threads == 256) return aligned_kernel<4, 256>();
  if (width == 8 && threads == 256) return aligned_kernel<8, 256>();
  if (width != 16) return nullptr;
  switch (threads) {
    case 64: return aligned_kernel<16, 64>();
    case 128: return aligned_kernel<16, 128>();
    case 256: return aligned_kernel<16, 256>();
    case 512: return aligned_kernel<16, 512>();
    case 1024: return aligned_kernel<16, 1024>();
    default: return nullptr;
  }
}

}  // namespace xstage::probe
