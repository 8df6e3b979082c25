#include "cli/plan_simulation.hpp"

#include <fmt/format.h>

#include "cli/moe_simulation.hpp"
#include "cli/ulysses_simulation.hpp"

namespace xstage::cli {

using nlohmann::json;

SimulatedPlan simulate_plan(const model::Profile& profile, const MoeLayer& layer,
                            const plan::Plan& plan, bool given_tiles) {
  SimulatedPlan out;
  sim::MoeOptions options;
  options.store.mechanism = plan.mechanism;
  options.store.threads = plan.threads;
  options.dispatch =
      plan.dispatch_by_rank ? sim::Dispatch::kOncePerRank : sim::Dispatch::kOncePerPair;
  if (given_tiles) {
    options.linear1_us = plan.phases[0].tile_us;
    options.linear2_us = plan.phases[1].tile_us;
  }
  const auto setup = moe_setup(profile, layer, options);
  if (!setup) {
    out.warnings.push_back("not simulated: " + setup.error().message());
    return out;
  }
  const auto choice = sim::choose_moe_schedule(*setup, layer.seed);
  if (!choice) {
    out.warnings.push_back("not simulated: " + choice.error().message());
    return out;
  }
  for (const sim::MoeCandidate& candidate : choice->candidates)
    out.schedules.push_back(candidate_json(candidate));
  out.choice = candidate_json(choice->candidates[choice->best]);
  out.choice["reason"] = choice->reason;
  out.assumed = setup->assumed;
  return out;
}

SimulatedPlan simulate_plan(const model::Profile& profile, const AttentionLayer& layer,
                            const plan::Plan& plan, bool given_tiles) {
  SimulatedPlan out;
  UlyssesSimulation options;
  options.store.mechanism = plan.mechanism;
  options.store.threads = plan.threads;
  if (given_tiles) options.tile_us = plan.phases[0].tile_us;
  const auto setup = ulysses_setup(profile, layer, options);
  if (!setup) {
    out.warnings.push_back("not simulated: " + setup.error().message());
    return out;
  }
  sim::UlyssesKernel kernel = setup->kernel;
  for (const auto order :
       {schedule::UlyssesOrderKind::kRemoteFirst, schedule::UlyssesOrderKind::kRowMajor}) {
    kernel.order = order;
    const sim::UlyssesResult r = sim::simulate_ulysses(setup->store.fabric, kernel, layer.seed);
    double stall = 0;
    for (const auto& rank : r.ranks) stall += rank.stall_us / static_cast<double>(r.ranks.size());
    out.schedules.push_back({{"schedule", order_name(order)},
                             {"lead", nullptr},
                             {"time_us", r.time_us},
                             {"stall_us", stall},
                             {"method", "simulation"}});
  }
  const std::size_t best =
      out.schedules[1]["time_us"].get<double>() < out.schedules[0]["time_us"].get<double>() ? 1 : 0;
  const json& chosen = out.schedules[best];
  out.choice = {
      {"order", chosen["schedule"]},
      {"time_us", chosen["time_us"]},
      {"reason", fmt::format("{}: {:.1f} us simulated against {:.1f} us for {}",
                             chosen["schedule"].get<std::string>(), chosen["time_us"].get<double>(),
                             out.schedules[1 - best]["time_us"].get<double>(),
                             out.schedules[1 - best]["schedule"].get<std::string>())}};
  out.assumed = setup->assumed;
  return out;
}

}  // namespace xstage::cli
