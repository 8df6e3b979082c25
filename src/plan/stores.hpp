// What both planners ask the model: one phase of tiles, and the mechanism to store by.
#pragma once

#include "xstage/plan/plan.hpp"

namespace xstage::plan {

/// Chooses (or checks) the mechanism and writes the reason into the plan.
Result<bool> choose_mechanism(const model::Profile& profile, const StoreChoice& store,
                              int producers, std::int64_t tile_bytes, bool both_ways, Plan& plan);

/// Asks the model about a phase whose name, tiles, bytes, producers and cycle are set.
Result<bool> predict_phase(const model::Profile& profile, const Plan& plan, bool both_ways,
                           Phase& phase);

/// Whole pieces of 16 bytes, at least one where anything is sent.
std::int64_t store_size(double bytes);

}  // namespace xstage::plan
