// A fused MoE layer on a simulated node: dispatch, Linear-1, Linear-2, combine and slot sum of
// every rank, in the order of the schedule headers, over the fabric of `egress.hpp`.
//
// An SM takes its tiles from the schedule one after the other. A Linear-1 tile waits for its row's
// tokens (which peers' links deliver in row order) and for an output buffer; a Linear-2 tile waits
// for its row's Linear-1. Math takes the tile's time; then the tile's rows go to the token owners
// as one burst, either by the math warps themselves (staging 0) or from `staging` output tiles
// beside the next tile's math.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "xstage/schedule/moe.hpp"
#include "xstage/sim/egress.hpp"
#include "xstage/sim/timeline.hpp"

namespace xstage::sim {

/// Tokens that each rank sends to each expert.
struct MoeTraffic {
  int ranks = 1;
  int experts = 1;                    ///< over all ranks; rank e / (experts / ranks) owns expert e
  std::vector<std::uint32_t> tokens;  ///< [expert][source rank]
  /// [receiver][source rank]: tokens of the source that some expert there gets; empty: not counted.
  std::vector<std::uint32_t> distinct;

  int experts_local() const { return experts / ranks; }
  std::uint32_t at(int expert, int source) const {
    return tokens[static_cast<std::size_t>(expert) * static_cast<std::size_t>(ranks) +
                  static_cast<std::size_t>(source)];
  }
  /// Tokens of the source, `of` in all, that the receiver gets when each comes once: as counted, or
  /// what is expected when a token's experts are drawn one by one.
  double distinct_at(int receiver, int source, std::int64_t of) const;
};

/// A signal that is lost, to see the deadlock detector name it.
enum class Fault : std::uint8_t { kNone, kLostLinear1Signal, kLostBufferRelease, kLostTokens };

/// The kernel that runs on every rank. Times in µs, sizes in bytes.
struct MoeKernel {
  schedule::MoeTiling tiling;
  schedule::MoeSchedule schedule;
  bool claimed = false;   ///< tiles are claimed one by one; else fixed strides
  int workers = 0;        ///< SMs that compute; 0: all
  double linear1_us = 0;  ///< math of a Linear-1 tile
  double linear2_us = 0;
  /// Of these, with all SMs at work: what a tile takes for weights from memory that they share.
  /// With fewer at work it is less by as much.
  double linear1_memory_us = 0, linear2_memory_us = 0;
  double fixed_us = 0;     ///< a tile
  double math_spread = 0;  ///< of a tile's math: it takes 1 - spread to 1 + spread times its time
  double signal_us = 0;    ///< from a row's last Linear-1 tile until other SMs see it
  /// Claimed tiles: how long before the math of a Linear-1 or Linear-2 tile ends the next one is
  /// claimed. It then waits behind that tile, while others may wait for its result.
  double claim_first_us = 0, claim_second_us = 0;
  double refill_us = 0;      ///< until a tile's math has its first operands, where it had to wait
  double piece_bytes = 256;  ///< a token's piece of a Linear-2 tile
  int staging = 0;           ///< finished tiles that can wait for the link beside math
  std::vector<double> issue_us;  ///< T_iss0 of a tile with 0 … block_m filled rows
  double residual = 0;           ///< S of a tile whose rows are all remote; 0 for bulk stores
  std::int64_t buffers = 0;      ///< rows of Linear-1 output, used in a ring; 0: one for each row
  double start_us = 0;           ///< until counts are known everywhere and tokens can be pulled
  double token_bytes = 0;        ///< a dispatched token; 0: tokens are there from the start
  double pull_us = 0;            ///< flight of a pull
  double flag_us = 0;            ///< from the last byte's departure until the owner knows
  double slot_sum_us = 0;        ///< the sum over slots, after everything has arrived
  Fault fault = Fault::kNone;
  std::int64_t fault_row = 0;  ///< of rank 0
};

struct MoeRankResult {
  std::int64_t rows = 0;
  std::int64_t tiles = 0;
  std::int64_t remote_bytes = 0;  ///< combine, sent
  double dispatched_us = 0;       ///< when the last pulled token arrived
  double issued_us = 0;           ///< when the last tile was issued: the sender's view
  double drained_us = 0;
  double done_us = 0;   ///< all results there and summed
  double math_us = 0;   ///< mean over SMs
  double issue_us = 0;  ///< stores at their unloaded pace, mean over SMs
  double stall_us = 0;  ///< back-pressure: issue beyond that, settling, staging; mean over SMs
  double wait_tokens_us = 0, wait_linear1_us = 0, wait_buffer_us = 0;  ///< mean over SMs
  double issue_mean = 0;            ///< a Linear-2 tile's issue time, mean
  double most_backlog = 0;          ///< bytes, at the ends of bursts
  std::int64_t most_live_rows = 0;  ///< rows with Linear-1 finished and Linear-2 not
};

struct MoeResult {
  double time_us = 0;  ///< the last rank's done_us; until the deadlock, where there is one
  std::vector<MoeRankResult> ranks;
  std::optional<std::string> deadlock;  ///< who waits for whom, as a cycle
  Timeline timeline;
  std::int64_t events = 0;
};

/// `fabric`: one a rank, or one for all. The same seed gives the same result.
MoeResult simulate_moe(const std::vector<EgressParameters>& fabric, const MoeTraffic& traffic,
                       const MoeKernel& kernel, std::uint64_t seed,
                       const TimelineOptions& timeline = {});

}  // namespace xstage::sim
