// Plans: what a layer's store bursts will do on a node, by the Burst-Gap model in closed form.
//
// A phase of a layer is a loop of tiles on every SM: compute for a natural gap, store a burst. The
// plan asks the model whether those bursts stall, what that costs a tile, and what another order of
// the same tiles would cost. Units: microseconds, bytes, TFLOP/s.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "xstage/model/burst_gap.hpp"
#include "xstage/plan/rates.hpp"
#include "xstage/schedule/moe.hpp"

namespace xstage::plan {

/// Stores of one kind of tile, all SMs in step with it.
struct Phase {
  std::string name;
  std::int64_t tiles = 0;       ///< on the busiest rank
  double tile_us = 0;           ///< matrix work of one tile
  std::int64_t tile_bytes = 0;  ///< what one tile stores to other ranks, on average
  double remote_fraction = 0;   ///< of the tile's rows
  int producers = 0;
  double cycle_us = 0;        ///< matrix work from one burst of an SM to its next
  double issue_us = 0;        ///< what storing occupies the SM without any stall; 0 for bulk
                              ///< stores, which go on behind the next tile
  double natural_gap_us = 0;  ///< useful time between two bursts: cycle_us, for bulk stores less
                              ///< the part that their own issue overlaps
  std::optional<model::Prediction> prediction;  ///< absent where nothing is stored remotely
  double stall_per_tile_us = 0;                 ///< ΔT
  double aligned_stall_us = 0;  ///< what one burst costs if all SMs come to it at once
};

/// One order of the tiles, in closed form.
struct ScheduleEstimate {
  std::string schedule;              ///< "wave", "interleaved", "remote-first", "row-major"
  std::optional<std::int64_t> lead;  ///< interleaved
  double time_us = 0;
  double stall_us = 0;  ///< back-pressure, per SM
};

/// What fusing an exchange into a kernel leaves of it, in the chosen order.
struct Overlap {
  double residual_us = 0;     ///< fused less the kernel alone
  double residual_share = 0;  ///< of the kernel alone
  double push_us = 0;         ///< the exchange as a kernel of its own, behind the other one
  double hidden_share = 0;    ///< 1 − residual / push
};

struct Plan {
  std::vector<Phase> phases;
  std::vector<ScheduleEstimate> schedules;
  std::size_t chosen = 0;  ///< index into schedules
  std::string reason;      ///< one sentence with the numbers it rests on
  model::Mechanism mechanism = model::Mechanism::kTmaBulk;
  int threads = 0;
  std::string mechanism_reason;
  double math_us = 0;              ///< matrix work alone
  double combine_us = 0;           ///< remote results at the drain rate
  double dispatch_us = 0;          ///< tokens from other ranks, in the cheaper of two ways
  bool dispatch_by_rank = false;   ///< once a destination rank; else once a (token, expert)
  double bound_us = 0;             ///< no order is faster: matrix work, link or weights
  double weights_us = 0;           ///< weights read once
  double outside_us = 0;           ///< what stands alone in every order: first rows, slot sum
  std::optional<Overlap> overlap;  ///< of attention on several ranks
  MathRates rates;
  std::vector<std::string> assumed;  ///< what was not measured
  std::vector<std::string> warnings;
};

/// How a rank stores; absent: the plan chooses.
struct StoreChoice {
  std::optional<model::Mechanism> mechanism;
  int threads = 0;
};

/// What one rank computes and sends.
struct MoeRankLoad {
  std::vector<std::uint32_t> expert_tokens;  ///< rows that reach each local expert
  std::int64_t remote_rows = 0;              ///< of these, rows whose token lives on another rank
  std::int64_t remote_tokens = 0;  ///< tokens of other ranks that come here, each counted once
};

struct MoeProblem {
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t topk = 0;
  std::int64_t tokens = 0;  ///< M, a rank
  std::int64_t experts = 0;
  std::vector<MoeRankLoad> ranks;
  double weight_bytes = 1;      ///< of one weight: 1 for w8a8, 2 for bf16, 0.5 for w4a8
  double activation_bytes = 1;  ///< of one dispatched value
  std::int32_t block_m = 128;
  std::int32_t block_n = 128;
};

/// Errors: no ranks, sizes below 1, a mechanism that the profile does not hold.
Result<Plan> plan_moe(const model::Profile& profile, const MoeProblem& problem,
                      const MathRates& rates, const StoreChoice& store = {});

struct UlyssesProblem {
  std::int64_t batch = 1;
  std::int64_t seq = 0;
  std::int64_t heads_local = 0;  ///< of the busiest rank
  std::int64_t head_dim = 0;
  int ranks = 1;
  std::int32_t block_m = 128;
};

/// Errors as above.
Result<Plan> plan_ulysses(const model::Profile& profile, const UlyssesProblem& problem,
                          const MathRates& rates, const StoreChoice& store = {});

}  // namespace xstage::plan
