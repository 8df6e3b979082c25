// How producers start together: the producers of one GPU agree on an instant of its %globaltimer;
// GPUs, whose timers differ, agree by flags that all of them are ready (skew: one flag's flight).
#pragma once

#include "cuda/probe/records.hpp"
#include "cuda/ptx/clock.cuh"
#include "cuda/ptx/sync.cuh"

namespace xstage::probe {

/// Called by one thread of every producer. Returns the start instant of `round`, 0 when a wait ran
/// into its deadline. Every access is relaxed: a release would drain the stores under measurement.
__device__ inline std::uint64_t agree_on_start(const BurstArgs& args, int round) {
  Control* control = args.control;
  const std::uint64_t deadline = ptx::globaltimer() + args.deadline_ns;
  const std::uint64_t reached = static_cast<std::uint64_t>(round) + 1;
  const std::uint64_t before = ptx::atom_add_relaxed_gpu(&control->arrived, 1);
  if (before + 1 == reached * static_cast<std::uint64_t>(args.producers)) {
    for (int peer = 0; peer < args.peer_count; ++peer)
      ptx::st_relaxed_sys(&args.peer_control[peer]->mailbox[args.self], reached);
    for (int peer = 0; peer < args.peer_count; ++peer) {
      while (ptx::ld_relaxed_sys(&control->mailbox[args.peer_index[peer]]) < reached) {
        if (ptx::globaltimer() > deadline) {
          ptx::st_relaxed_sys(&control->failed, 1);
          return 0;
        }
      }
    }
    const std::uint64_t start = ptx::globaltimer() + args.lead_ns;
    ptx::st_relaxed_sys(&control->start[round], start);
    return start;
  }
  for (;;) {
    const std::uint64_t start = ptx::ld_relaxed_sys(&control->start[round]);
    if (start != 0) return start;
    if (ptx::globaltimer() > deadline) {
      ptx::st_relaxed_sys(&control->failed, 1);
      return 0;
    }
  }
}

/// The start instant of a round of an aligned run, by one thread of every producer. `previous` is
/// the start of the round before.
__device__ inline std::uint64_t round_start(const BurstArgs& args, int round,
                                            std::uint64_t previous) {
  if (args.pair_spacing_ns == 0) return agree_on_start(args, round);
  return (round & 1) != 0 ? previous + args.pair_spacing_ns : agree_on_start(args, round / 2);
}

/// Whether the X-Stage is drained after even (bit 0) and odd (bit 1) rounds.
__device__ inline std::uint32_t drain_mask(const BurstArgs& args) {
  if (args.fence_each_round == 0) return 0;
  return args.pair_spacing_ns == 0 ? 3 : 2;
}

/// A tick of the global timer and the SM's cycle at it. The timer moves in steps of 32 ns and more;
/// read at an edge, two such pairs give the SM's clock to a few ns over their distance.
struct TimerEdge {
  std::uint64_t cycle;
  std::uint64_t ns;
};

__device__ inline TimerEdge timer_edge() {
  const std::uint64_t before = ptx::globaltimer();
  std::uint64_t now = ptx::globaltimer();
  while (now == before) now = ptx::globaltimer();
  return {ptx::clock64(), now};
}

/// The slot of this block, -1 when its SM takes no part.
__device__ inline int producer_slot(const BurstArgs& args) {
  return args.slot_of_sm != nullptr ? args.slot_of_sm[ptx::smid()] : static_cast<int>(blockIdx.x);
}

/// The target window of a slot.
__device__ inline std::uint8_t* slot_window(const BurstArgs& args, int slot) {
  return args.target[slot % args.target_count] +
         static_cast<std::uint64_t>(slot) * args.slot_stride;
}

}  // namespace xstage::probe
