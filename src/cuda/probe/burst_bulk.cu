// Bursts of TMA bulk stores, by one thread of a producer block.
//
// Three spans end here: `enqueue` (the last bulk store was handed over), `issue` (local completion:
// the shared source may be reused, which is when an epilogue may go on) and the drain. The spans
// are kept in shared memory: bulk stores leave the load/store unit free, so that costs nothing.
#include "cuda/probe/align.cuh"
#include "cuda/probe/kernels.hpp"
#include "cuda/ptx/bulk.cuh"

namespace xstage::probe {
namespace {

extern __shared__ __align__(128) std::uint8_t source[];

__device__ __forceinline__ void fill_source(int slot) {
  auto* words = reinterpret_cast<std::uint32_t*>(source);
  for (unsigned i = threadIdx.x; i < kBulkSourceBytes / 4; i += blockDim.x)
    words[i] = (static_cast<std::uint32_t>(slot) << 16 | (i + 1)) * 0x9e3779b9u;
  ptx::fence_proxy_async_shared();
  __syncthreads();
}

__device__ __forceinline__ void store_burst(std::uint8_t* base, const BurstArgs& args) {
  std::uint32_t from = 0;
  for (std::uint32_t offset = 0; offset < args.bytes; offset += args.chunk) {
    const std::uint32_t size = min(args.chunk, args.bytes - offset);
    if (from + size > kBulkSourceBytes) from = 0;
    ptx::bulk_store(base + offset, source + from, size);
    from += size;
  }
  ptx::bulk_commit();
}

__device__ __forceinline__ std::uint64_t next_offset(std::uint64_t offset, const BurstArgs& args) {
  const std::uint64_t next = offset + args.bytes;
  return next + args.bytes > args.slot_bytes ? 0 : next;
}

__device__ __forceinline__ void drain() {
  ptx::bulk_wait_done();
  ptx::fence_proxy_async();
  ptx::fence_sys();
}

__global__ void __launch_bounds__(1024, 1)
    window_bulk(const __grid_constant__ BurstArgs args, ProducerRecord* records,
                std::uint32_t* rings) {
  __shared__ std::uint32_t ring[kRing];
  const int slot = producer_slot(args);
  if (slot < 0) return;
  fill_source(slot);
  if (threadIdx.x != 0) return;
  std::uint8_t* window = slot_window(args, slot);
  const TimerEdge edge = timer_edge();
  const std::uint64_t start = agree_on_start(args, 0);
  if (start == 0) return;
  while (ptx::globaltimer() < start) {
  }
  const std::uint64_t origin = ptx::clock64();
  const std::uint64_t counted_from = origin + args.warm_cycles;
  const std::uint64_t end = counted_from + args.window_cycles;

  std::uint64_t offset = 0, issue_sum = 0, enqueue_sum = 0, first = 0, last = 0, last_issue = 0;
  std::uint32_t bursts = 0;
  do {
    const std::uint64_t t0 = ptx::clock64();
    store_burst(window + offset, args);
    const std::uint64_t handed_over = ptx::clock64();
    ptx::bulk_wait_source();
    const std::uint64_t t1 = ptx::clock64();
    offset = next_offset(offset, args);
    last_issue = t1;
    if (t0 >= counted_from) {
      if (bursts == 0) first = t0;
      last = t0;
      issue_sum += t1 - t0;
      enqueue_sum += handed_over - t0;
      ring[bursts % kRing] = static_cast<std::uint32_t>(t1 - t0);
      ++bursts;
    }
    while (ptx::clock64() - t1 < args.gap_cycles) {
    }
  } while (ptx::clock64() < end);
  const std::uint64_t fence_from = ptx::clock64();
  drain();
  const std::uint64_t drained = ptx::clock64();
  const TimerEdge final_edge = timer_edge();
  const std::uint32_t kept = min(bursts, static_cast<std::uint32_t>(kRing));
  for (std::uint32_t i = 0; i < kept; ++i)
    rings[static_cast<std::size_t>(slot) * kRing + i] = ring[i];
  ProducerRecord& r = records[slot];
  r.smid = ptx::smid();
  r.slot = static_cast<std::uint32_t>(slot);
  r.bursts = bursts;
  r.kept = kept;
  r.issue_sum = issue_sum;
  r.first_start = first;
  r.last_start = last;
  r.last_issue = last_issue - origin;
  r.drained = drained - origin;
  r.fence = drained - fence_from;
  r.enqueue_sum = enqueue_sum;
  r.clock_begin = edge.cycle;
  r.timer_begin = edge.ns;
  r.clock_end = final_edge.cycle;
  r.timer_end = final_edge.ns;
}

__global__ void __launch_bounds__(1024, 1)
    aligned_bulk(const __grid_constant__ BurstArgs args, ProducerRecord* records,
                 RoundRecord* rings) {
  __shared__ RoundRecord ring[kMaxRounds];
  const int slot = producer_slot(args);
  if (slot < 0) return;
  fill_source(slot);
  if (threadIdx.x != 0) return;
  std::uint8_t* window = slot_window(args, slot);
  const TimerEdge edge = timer_edge();

  std::uint64_t offset = 0, issue_sum = 0, enqueue_sum = 0, first = 0, last = 0, t1 = 0, origin = 0;
  std::uint64_t start = 0;
  for (int round = 0; round < args.rounds; ++round) {
    if (!args.free_running || round == 0) {
      start = round_start(args, round, start);
      if (start == 0) return;
      while (ptx::globaltimer() < start) {
      }
    } else {
      while (ptx::clock64() - t1 < args.gap_cycles) {
      }
    }
    const std::uint64_t t0 = ptx::clock64();
    store_burst(window + offset, args);
    const std::uint64_t handed_over = ptx::clock64();
    ptx::bulk_wait_source();
    const std::uint64_t before = t1;
    t1 = ptx::clock64();
    std::uint64_t after = 0;
    if ((drain_mask(args) >> (round & 1) & 1) != 0) {
      drain();
      after = ptx::clock64() - t1;
    }
    offset = next_offset(offset, args);
    if (round == 0) {
      origin = t0;
      first = t0;
    }
    last = t0;
    issue_sum += t1 - t0;
    enqueue_sum += handed_over - t0;
    ring[round] = {static_cast<std::uint32_t>(t1 - t0), static_cast<std::uint32_t>(after),
                   round == 0 ? 0u : static_cast<std::uint32_t>(t0 - before)};
  }
  const std::uint64_t fence_from = ptx::clock64();
  drain();
  const std::uint64_t drained = ptx::clock64();
  const TimerEdge final_edge = timer_edge();
  for (int i = 0; i < args.rounds; ++i)
    rings[static_cast<std::size_t>(slot) * kMaxRounds + i] = ring[i];
  ProducerRecord& r = records[slot];
  r.smid = ptx::smid();
  r.slot = static_cast<std::uint32_t>(slot);
  r.bursts = static_cast<std::uint32_t>(args.rounds);
  r.kept = static_cast<std::uint32_t>(args.rounds);
  r.issue_sum = issue_sum;
  r.first_start = first;
  r.last_start = last;
  r.last_issue = t1 - origin;
  r.drained = drained - origin;
  r.fence = drained - fence_from;
  r.enqueue_sum = enqueue_sum;
  r.clock_begin = edge.cycle;
  r.timer_begin = edge.ns;
  r.clock_end = final_edge.cycle;
  r.timer_end = final_edge.ns;
}

}  // namespace

const void* window_kernel_bulk() { return reinterpret_cast<const void*>(&window_bulk); }
const void* aligned_kernel_bulk() { return reinterpret_cast<const void*>(&aligned_bulk); }

}  // namespace xstage::probe
