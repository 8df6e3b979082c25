// A small persistent kernel that stores tiles, to measure what the distribution of tiles over the
// producers is worth: given shares, or claimed one by one from a counter.
#include "cuda/probe/align.cuh"
#include "cuda/probe/kernels.hpp"
#include "cuda/ptx/store.cuh"

namespace xstage::probe {
namespace {

__global__ void __launch_bounds__(1024, 1)
    split_tiles(const __grid_constant__ BurstArgs args, ProducerRecord* records,
                const std::uint32_t* share, std::uint32_t tiles, std::uint64_t* counter) {
  __shared__ std::uint64_t start_shared;
  __shared__ std::uint32_t claimed[2];
  const int slot = static_cast<int>(blockIdx.x);
  std::uint8_t* window = slot_window(args, slot) + threadIdx.x * 16;
  const uint4 value = make_uint4(threadIdx.x, blockIdx.x, 0x5bd1e995u, 0x9e3779b9u);
  const bool dynamic = share == nullptr;
  const std::uint32_t own = dynamic ? 0 : share[ptx::smid()];
  const TimerEdge edge = timer_edge();
  if (threadIdx.x == 0) {
    start_shared = agree_on_start(args, 0);
    if (dynamic) claimed[0] = static_cast<std::uint32_t>(ptx::atom_add_relaxed_gpu(counter, 1));
  }
  __syncthreads();
  const std::uint64_t start = start_shared;
  if (start == 0) return;
  while (ptx::globaltimer() < start) {
  }
  const std::uint64_t origin = ptx::clock64();

  std::uint64_t offset = 0, last_issue = origin, issue_sum = 0;
  std::uint32_t done = 0;
  for (;;) {
    __syncthreads();
    if (dynamic ? claimed[done & 1] >= tiles : done >= own) break;
    // The next tile is claimed before this one is stored: behind its stores the answer would wait.
    if (dynamic && threadIdx.x == 0)
      claimed[(done + 1) & 1] = static_cast<std::uint32_t>(ptx::atom_add_relaxed_gpu(counter, 1));
    const std::uint64_t work_from = ptx::clock64();
    while (ptx::clock64() - work_from < args.gap_cycles) {
    }
    const std::uint64_t t0 = ptx::clock64();
    for (std::uint32_t at = threadIdx.x * 16; at < args.bytes; at += blockDim.x * 16)
      ptx::st_global_v4(window + offset + (at - threadIdx.x * 16), value);
    __syncthreads();
    last_issue = ptx::clock64();
    issue_sum += last_issue - t0;
    offset += args.bytes;
    if (offset + args.bytes > args.slot_bytes) offset = 0;
    ++done;
  }
  ptx::fence_sys();
  __syncthreads();
  const std::uint64_t drained = ptx::clock64();
  const TimerEdge final_edge = timer_edge();
  if (threadIdx.x != 0) return;
  ProducerRecord& r = records[slot];
  r.smid = ptx::smid();
  r.slot = static_cast<std::uint32_t>(slot);
  r.bursts = done;
  r.kept = 0;
  r.issue_sum = issue_sum;
  r.last_issue = last_issue - origin;
  r.drained = drained - origin;
  r.clock_begin = edge.cycle;
  r.timer_begin = edge.ns;
  r.clock_end = final_edge.cycle;
  r.timer_end = final_edge.ns;
}

}  // namespace

const void* split_kernel() { return reinterpret_cast<const void*>(&split_tiles); }

}  // namespace xstage::probe
