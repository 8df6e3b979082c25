// A MoE layer of the command line as a simulated kernel; shared by simulate and plan.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/layer_options.hpp"
#include "xstage/sim/moe_layer.hpp"

namespace xstage::cli {

/// Draws the routing, counts who sends what to whom, and sets the kernel up. `layer` gets its
/// number of tokens from the routing where a file decides it.
Result<sim::MoeSetup> moe_setup(const model::Profile& profile, const MoeLayer& layer,
                                const sim::MoeOptions& options);

/// {"schedule", "lead", "group", "time_us", "stall_us", "method": "simulation"}
nlohmann::json candidate_json(const sim::MoeCandidate& candidate);

/// Tiling, tile times with their source, store mechanism and staging.
nlohmann::json kernel_json(const sim::MoeSetup& setup);

}  // namespace xstage::cli
