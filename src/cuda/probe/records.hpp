// What the probe kernels take and what they leave behind. Plain data, one source for host and
// device.
#pragma once

#include <cstdint>

namespace xstage::probe {

inline constexpr int kMaxGpus = 16;
inline constexpr int kMaxRounds = 128;  ///< aligned bursts in one launch
inline constexpr int kRing = 128;       ///< issue spans of single bursts kept per producer

/// Words that the GPUs of one run share. One instance in the memory of each GPU, zeroed before
/// every launch.
struct Control {
  std::uint64_t arrived;  ///< arrivals of this GPU's producers, over all rounds
  std::uint64_t failed;   ///< 1: a wait ran into its deadline
  std::uint64_t pad0[14];
  std::uint64_t start[kMaxRounds];  ///< start instant of a round on this GPU's %globaltimer
  std::uint64_t mailbox[kMaxGpus];  ///< rounds that GPU i has reached, written by GPU i
};

/// Arguments of one launch on one GPU.
struct BurstArgs {
  Control* control;                   ///< of this GPU
  Control* peer_control[kMaxGpus];    ///< of the other GPUs of this run
  std::int32_t peer_index[kMaxGpus];  ///< their places in this GPU's mailbox
  std::int32_t peer_count;            ///< 0: this GPU starts alone
  std::int32_t self;                  ///< index of this GPU in every mailbox
  std::uint8_t* target[kMaxGpus];     ///< slot s stores into target[s % target_count] …
  std::int32_t target_count;
  std::uint64_t slot_stride;       ///< … at s · slot_stride
  std::uint64_t slot_bytes;        ///< size of a slot's window; bursts wrap inside it
  const std::int16_t* slot_of_sm;  ///< slot of an SM, -1: idle. Null: the slot is the block
  std::int32_t producers;          ///< blocks that store
  std::uint32_t bytes;             ///< of a burst
  std::uint32_t chunk;             ///< of one TMA bulk store
  std::uint32_t gap_cycles;
  std::uint32_t lead_ns;          ///< from the last arrival to the start of a round
  std::int32_t rounds;            ///< aligned bursts; 1 in a window run
  std::uint64_t warm_cycles;      ///< not counted, from the common start
  std::uint64_t window_cycles;    ///< counted, after that
  std::int32_t fence_each_round;  ///< aligned runs: drain before the next round
  std::int32_t shared_load;       ///< aligned runs: time a shared load after the burst
  std::uint32_t pair_spacing_ns;  ///< aligned runs: odd rounds start this long after the even
                                  ///< round before, without meeting or draining; 0: off
  std::int32_t free_running;      ///< aligned runs: no alignment, only the gap
  std::uint64_t deadline_ns;      ///< of every wait
};

/// One producer's record of one launch. Times in cycles of its SM unless the name says ns.
struct ProducerRecord {
  std::uint32_t smid;
  std::uint32_t slot;
  std::uint32_t bursts;  ///< counted bursts
  std::uint32_t kept;    ///< entries in its rings
  std::uint64_t issue_sum;
  std::uint64_t first_start;             ///< of the first counted burst
  std::uint64_t last_start;              ///< of the last counted burst
  std::uint64_t last_issue;              ///< common start to the end of the last burst's issue
  std::uint64_t drained;                 ///< common start to the end of the fence after it
  std::uint64_t fence;                   ///< that fence alone
  std::uint64_t enqueue_sum;             ///< TMA: until the last bulk store was handed over
  std::uint64_t clock_begin, clock_end;  ///< cycles at two ticks of the global timer …
  std::uint64_t timer_begin, timer_end;  ///< … and the ticks, ns
  std::uint64_t sink;                    ///< of no meaning: what keeps registers in use
};

/// What is kept of one aligned burst, by the producer's first warp.
struct RoundRecord {
  std::uint32_t issue;  ///< cycles
  std::uint32_t after;  ///< shared load or fence after the burst, cycles
  std::uint32_t gap;    ///< end of the burst before to this start, cycles; 0 in round 0
};

}  // namespace xstage::probe
