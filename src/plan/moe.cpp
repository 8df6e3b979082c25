#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/stores.hpp"

namespace xstage::plan {
namespace {

using schedule::MoeTiling;

/// Sizes of the busiest rank.
struct Load {
  std::int64_t rows = 0;  ///< (token, expert) pairs
  std::int64_t row_blocks = 0;
  std::int64_t remote_rows = 0;
  std::int64_t remote_tokens = 0;
  std::int64_t experts_used = 0;
};

Load busiest(const MoeProblem& problem) {
  Load out;
  for (const MoeRankLoad& rank : problem.ranks) {
    Load load;
    for (const std::uint32_t tokens : rank.expert_tokens) {
      load.rows += tokens;
      load.row_blocks += schedule::rows_of(tokens, problem.block_m);
      load.experts_used += tokens > 0;
    }
    load.remote_rows = rank.remote_rows;
    load.remote_tokens = rank.remote_tokens;
    if (load.row_blocks > out.row_blocks ||
        (load.row_blocks == out.row_blocks && load.remote_rows > out.remote_rows))
      out = load;
  }
  return out;
}

Result<bool> check(const model::Profile& profile, const MoeProblem& p) {
  const auto positive = [](const char* field, std::int64_t value) -> std::optional<Error> {
    if (value >= 1) return std::nullopt;
    return bad_input("a layer has sizes", field, fmt::format("{}", value), "1 or more");
  };
  for (const auto& error : {positive("hidden", p.hidden), positive("intermediate", p.intermediate),
                            positive("topk", p.topk), positive("experts", p.experts),
                            positive("ranks", static_cast<std::int64_t>(p.ranks.size())),
                            positive("block_m", p.block_m), positive("block_n", p.block_n),
                            positive("sms", profile.node.sms)})
    if (error) return *error;
  return true;
}

double share_us(const Phase& phase, int workers) {
  return static_cast<double>(phase.tiles) / workers *
         (phase.tile_us + phase.issue_us + phase.stall_per_tile_us);
}

}  // namespace

Result<Plan> plan_moe(const model::Profile& profile, const MoeProblem& problem,
                      const MathRates& rates, const StoreChoice& store) {
  if (const auto ok = check(profile, problem); !ok) return ok.error();
  if (!(rates.first > 0 && rates.second > 0) || !std::isfinite(rates.first + rates.second))
    return bad_input("a rate is above 0", "tflops", fmt::format("{:g}", rates.first),
                     "above 0 and finite");
  const int workers = profile.node.sms;
  const bool both_ways = problem.ranks.size() > 1;
  const MoeTiling tiling =
      schedule::moe_tiling(problem.hidden, problem.intermediate, problem.block_m, problem.block_n);
  if (!tiling.valid())
    return bad_input("too many tiles a row", "hidden, intermediate",
                     fmt::format("{}, {}", problem.hidden, problem.intermediate),
                     "up to 32767 tiles a row");
  const Load load = busiest(problem);

  Plan plan;
  plan.rates = rates;
  if (rates.assumed) plan.assumed.push_back(rates.source);
  if (both_ways && !profile.drain.both_ways_gb_s)
    plan.warnings.push_back(
        "the profile has no drain rate with both directions in use; the one-way rate is taken");
  const double link = both_ways ? profile.drain.both_ways_gb_s.value_or(profile.drain.one_way_gb_s)
                                : profile.drain.one_way_gb_s;
  const double h = static_cast<double>(problem.hidden);
  const double remote = load.rows > 0 ? double(load.remote_rows) / double(load.rows) : 0;
  const double filled =
      load.row_blocks > 0 ? double(load.rows) / double(load.row_blocks * problem.block_m) : 0;
  const auto tile_us = [&](std::int64_t depth, double tflops) {
    return 2.0 * problem.block_m * problem.block_n * static_cast<double>(depth) * workers /
           (tflops * 1e6);
  };

  Phase first;
  first.name = "linear1";
  first.tiles = load.row_blocks * tiling.n1;
  first.tile_us = tile_us(problem.hidden, rates.first);
  first.cycle_us = first.natural_gap_us = first.tile_us;
  Phase wave;
  wave.name = "linear2 after all linear1 of a group (wave)";
  wave.tiles = load.row_blocks * tiling.n2;
  wave.tile_us = wave.cycle_us = tile_us(problem.intermediate, rates.second);
  wave.tile_bytes = store_size(2.0 * problem.block_m * problem.block_n * filled * remote);
  wave.remote_fraction = remote;
  wave.producers =
      static_cast<int>(std::min<std::int64_t>(workers, std::max<std::int64_t>(wave.tiles, 1)));
  Phase mixed = wave;
  mixed.name = "linear2 between linear1 tiles (interleaved)";
  mixed.cycle_us = wave.tile_us + first.tile_us * tiling.n1 / tiling.n2;

  if (const auto ok = choose_mechanism(profile, store, workers, wave.tile_bytes, both_ways, plan);
      !ok)
    return ok.error();
  for (Phase* phase : {&wave, &mixed})
    if (const auto ok = predict_phase(profile, plan, both_ways, *phase); !ok) return ok.error();

  // What no order changes: matrix work, bytes on the link, bytes from memory.
  plan.math_us = (first.tiles * first.tile_us + wave.tiles * wave.tile_us) / workers;
  plan.combine_us = model::drain_us(2.0 * h * double(load.remote_rows), link);
  const double row_bytes =
      h * problem.activation_bytes * (problem.activation_bytes < 2 ? 1 + 4.0 / 128 : 1);
  const double dispatch_slot_us = model::drain_us(row_bytes * double(load.remote_rows), link);
  const double dispatch_rank_us = model::drain_us(row_bytes * double(load.remote_tokens), link);
  plan.dispatch_by_rank = dispatch_rank_us < dispatch_slot_us;
  plan.dispatch_us = std::min(dispatch_slot_us, dispatch_rank_us);
  plan.weights_us = 3.0 * h * double(problem.intermediate) * double(load.experts_used) *
                    problem.weight_bytes / (1000 * kMemoryGbPerS);
  const double sum_us =
      double(problem.topk) * double(problem.tokens) * h * 2 / (1000 * kMemoryGbPerS);
  plan.assumed.push_back(
      fmt::format("{:g} GB/s of memory bandwidth: a copy measured on H200", kMemoryGbPerS));

  // Dispatch of the first rows and the sum over slots stand alone in every order.
  const double lead_in_us = load.row_blocks > 0 ? plan.dispatch_us / double(load.row_blocks) : 0;
  plan.outside_us = lead_in_us + sum_us;
  const double link_us = plan.combine_us + plan.dispatch_us;
  plan.bound_us = std::max({plan.math_us, link_us, plan.weights_us});
  const auto estimate = [&](const char* name, std::optional<std::int64_t> lead,
                            const Phase& second) {
    const double tiles_us = share_us(first, workers) + share_us(second, workers);
    return ScheduleEstimate{name, lead, std::max(plan.bound_us, tiles_us) + plan.outside_us,
                            double(second.tiles) / workers * second.stall_per_tile_us};
  };
  const std::int64_t lead = schedule::covering_lead(tiling, workers);
  plan.schedules = {estimate("wave", std::nullopt, wave), estimate("interleaved", lead, mixed)};
  const ScheduleEstimate& w = plan.schedules[0];
  const ScheduleEstimate& i = plan.schedules[1];
  // Within half a per cent the wave's reuse of expert weights in L2 decides.
  const double gain = i.time_us > 0 ? w.time_us / i.time_us - 1 : 0;
  plan.chosen = gain > 0.005 ? 1 : 0;
  plan.reason =
      wave.tile_bytes == 0
          ? "no row leaves its rank, so no order can stall on the link; wave reuses weights"
      : plan.chosen == 1
          ? fmt::format(
                "wave stalls {:.2f} us a Linear-2 tile (gap {:.2f} us, recovery gap {:.2f} us), "
                "interleaved {:.2f} us (gap {:.2f} us): {:.1f} % faster",
                wave.stall_per_tile_us, wave.natural_gap_us, wave.prediction->recovery_gap_us,
                mixed.stall_per_tile_us, mixed.natural_gap_us, 100 * gain)
          : fmt::format(
                "the gap of {:.2f} us after a Linear-2 tile covers the recovery gap of {:.2f} us "
                "but for {:.2f} us of stall: interleaving gains {:.1f} %, and wave reuses weights",
                wave.natural_gap_us, wave.prediction->recovery_gap_us, wave.stall_per_tile_us,
                100 * gain);

  if (link_us > plan.math_us)
    plan.warnings.push_back(fmt::format(
        "bound by the link: {:.0f} us of combine and {:.0f} us of dispatch against {:.0f} us of "
        "matrix work; no order of tiles changes that",
        plan.combine_us, plan.dispatch_us, plan.math_us));
  if (plan.weights_us > plan.math_us)
    plan.warnings.push_back(
        fmt::format("bound by memory: reading the weights once takes {:.0f} us", plan.weights_us));
  plan.phases = {first, wave, mixed};
  return plan;
}

}  // namespace xstage::plan
