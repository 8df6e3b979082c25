// From measured launches of the fused kernel to the times that predictions rest on, and
// predictions.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cli/in_parallel.hpp"
#include "cli/layer_options.hpp"
#include "cli/moe_simulation.hpp"
#include "xstage/model/profile.hpp"
#include "xstage/sim/fused_moe.hpp"

namespace xstage::cli {

/// The size that the fused kernel refuses, and what it takes in its place.
std::optional<Error> why_no_fused_tiles(const shapes::MoeShape& shape);

/// A layer and its routing, ready to be predicted. The times are those of the kernel in w8a8; other
/// formats are an error, and so are sizes that the kernel refuses.
Result<sim::FusedMoe> fused_moe(const model::Profile& profile, const plan::FusedTimes& times,
                                const MoeLayer& layer, const shapes::Routing& routing);

/// The schedule that `auto` takes for the fused kernel, with the predicted times that it rests on.
/// Every input is the same on all ranks, so every rank that asks gets the same schedule.
Result<ChosenMoeSchedule> choose_fused(const model::Profile& profile, const plan::FusedTimes& times,
                                       const MoeLayer& layer, const shapes::Routing& routing);

/// The "fit" of a document of `bench moe --table kernel`: its rows.
Result<nlohmann::json> fit_fused_times(const model::Profile& profile, const nlohmann::json& rows);

/// Every second number of tokens in `rows` left out, the first and the last one kept: a fit of the
/// others, what it predicts for the runs that were left out, and what `auto` would have taken of
/// them, beside the measured times.
Result<nlohmann::json> cross_validate(const model::Profile& profile, const nlohmann::json& rows);

}  // namespace xstage::cli
