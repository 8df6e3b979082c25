#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/stores.hpp"
#include "xstage/plan/ulysses_times.hpp"

namespace xstage::plan {
namespace {

Result<bool> check(const model::Profile& profile, const UlyssesProblem& p) {
  const auto positive = [](const char* field, std::int64_t value) -> std::optional<Error> {
    if (value >= 1) return std::nullopt;
    return bad_input("a layer has sizes", field, fmt::format("{}", value), "1 or more");
  };
  for (const auto& error :
       {positive("batch", p.batch), positive("seq", p.seq), positive("heads_local", p.heads_local),
        positive("head_dim", p.head_dim), positive("ranks", p.ranks),
        positive("block_m", p.block_m), positive("sms", profile.node.sms)})
    if (error) return *error;
  return true;
}

}  // namespace

Result<Plan> plan_ulysses(const model::Profile& profile, const UlyssesProblem& problem,
                          const MathRates& rates, const StoreChoice& store) {
  if (const auto ok = check(profile, problem); !ok) return ok.error();
  if (!(rates.first > 0) || !std::isfinite(rates.first))
    return bad_input("a rate is above 0", "tflops", fmt::format("{:g}", rates.first),
                     "above 0 and finite");
  const int workers = profile.node.sms;
  const bool both_ways = problem.ranks > 1;
  const std::int64_t blocks = (problem.seq + problem.block_m - 1) / problem.block_m;
  const std::int64_t tiles = problem.batch * problem.heads_local * blocks;
  const double remote = static_cast<double>(problem.ranks - 1) / problem.ranks;
  const double bytes = 2.0 * problem.block_m * static_cast<double>(problem.head_dim);

  Plan plan;
  plan.rates = rates;
  if (rates.assumed) plan.assumed.push_back(rates.source);
  const UlyssesTimes& times = ulysses_times();
  plan.assumed.push_back(fmt::format(
      "{:.1f} us and {:.3f} % of attention for the fused output without stalls: measured on two "
      "H200",
      times.residual_us, 100 * times.residual_share));
  plan.assumed.push_back(
      fmt::format("{:.0f} us and {:.2f} of its bytes' time for a push behind attention: measured "
                  "on two H200",
                  times.push_us, times.push_per_link_us));
  const double link = both_ways ? profile.drain.both_ways_gb_s.value_or(profile.drain.one_way_gb_s)
                                : profile.drain.one_way_gb_s;

  Phase first;
  first.name = "remote-bound tiles (remote-first)";
  first.tiles = static_cast<std::int64_t>(static_cast<double>(tiles) * remote);
  // Two products over the whole sequence: 4·BLOCK_M·S·D operations.
  first.tile_us = 4.0 * problem.block_m * static_cast<double>(problem.seq) *
                  static_cast<double>(problem.head_dim) * workers / (rates.first * 1e6);
  first.cycle_us = first.tile_us;
  first.tile_bytes = problem.ranks > 1 ? store_size(bytes) : 0;
  first.remote_fraction = problem.ranks > 1 ? 1 : 0;
  first.producers =
      static_cast<int>(std::min<std::int64_t>(workers, std::max<std::int64_t>(first.tiles, 1)));
  Phase mixed = first;
  mixed.name = "remote and own tiles mixed (row-major)";
  mixed.tiles = tiles;
  mixed.tile_bytes = store_size(bytes * remote);
  mixed.remote_fraction = remote;
  mixed.producers = static_cast<int>(std::min<std::int64_t>(workers, tiles));

  if (const auto ok = choose_mechanism(profile, store, workers, first.tile_bytes, both_ways, plan);
      !ok)
    return ok.error();
  for (Phase* phase : {&first, &mixed})
    if (const auto ok = predict_phase(profile, plan, both_ways, *phase); !ok) return ok.error();

  const std::int64_t whole_rounds = (tiles + workers - 1) / workers;
  const auto rounds = static_cast<double>(whole_rounds);
  plan.math_us = rounds * first.tile_us;
  plan.combine_us = model::drain_us(static_cast<double>(tiles) * bytes * remote, link);
  plan.bound_us = std::max(plan.math_us, plan.combine_us);
  plan.outside_us = problem.ranks > 1 ? times.residual(plan.math_us) : 0;
  // Behind the last tile: what that burst still has to drain. Own tiles at the end hide it.
  const double burst_us = model::drain_us(static_cast<double>(first.tile_bytes) * workers, link);
  const auto estimate = [&](const char* name, const Phase& phase, double tail_us) {
    const double per_sm = static_cast<double>(phase.tiles) / workers;
    const double stall = per_sm * phase.stall_per_tile_us;
    const double issue = per_sm * phase.issue_us;
    return ScheduleEstimate{
        name, std::nullopt,
        std::max(plan.bound_us, plan.math_us + issue + stall) + tail_us + plan.outside_us, stall};
  };
  const double own_us = rounds * first.tile_us * (1 - remote);
  plan.schedules = {
      estimate("remote-first", first, problem.ranks > 1 ? std::max(0.0, burst_us - own_us) : 0),
      estimate("row-major", mixed, problem.ranks > 1 ? burst_us * remote : 0)};
  plan.chosen = plan.schedules[1].time_us < plan.schedules[0].time_us ? 1 : 0;
  if (problem.ranks == 1) {
    plan.reason = "one rank: every tile stays here";
    plan.phases = {first, mixed};
    return plan;
  }
  const ScheduleEstimate& best = plan.schedules[plan.chosen];
  const double residual = best.time_us - plan.math_us;
  const double push_us = times.push(plan.combine_us);
  plan.overlap = {residual, residual / plan.math_us, push_us, 1 - residual / push_us};
  plan.reason = fmt::format(
      "a tile's {:.1f} us of matrix work cover its recovery gap of {:.1f} us{}; residual {:.1f} us "
      "({:.2f} % of attention) against a push of {:.0f} us, of which {:.0f} % is hidden{}",
      first.tile_us, first.prediction->recovery_gap_us,
      first.stall_per_tile_us > 0 ? fmt::format(" but for {:.1f} us", first.stall_per_tile_us) : "",
      residual, 100 * residual / plan.math_us, push_us, 100 * plan.overlap->hidden_share,
      plan.chosen == 0 ? "; the rank's own tiles come last, so nothing drains behind the end" : "");
  if (first.aligned_stall_us > 0)
    plan.warnings.push_back(fmt::format(
        "if all SMs end a tile at the same instant, that burst stalls {:.1f} us: it exceeds the "
        "capacity; drifting SMs do not do this, and the kernel paces its stores",
        first.aligned_stall_us));
  plan.phases = {first, mixed};
  return plan;
}

}  // namespace xstage::plan
