// The simulated half of a plan: every schedule of the layer timed on the fabric of the profile.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/layer_options.hpp"
#include "xstage/plan/plan.hpp"

namespace xstage::cli {

/// What simulation adds to a plan document.
struct SimulatedPlan {
  nlohmann::json schedules = nlohmann::json::array();  ///< with "method": "simulation"
  nlohmann::json choice;  ///< schedule, lead, reason; null: not simulated
  nlohmann::json assumed = nlohmann::json::array();
  std::vector<std::string> warnings;  ///< why nothing was simulated
};

/// `given_tiles`: take the plan's tile times, which rest on a rate that the user gave.
SimulatedPlan simulate_plan(const model::Profile& profile, const MoeLayer& layer,
                            const plan::Plan& plan, bool given_tiles);
SimulatedPlan simulate_plan(const model::Profile& profile, const AttentionLayer& layer,
                            const plan::Plan& plan, bool given_tiles);

}  // namespace xstage::cli
