// From measured launches of the fused kernel to the times that predictions rest on.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/layer_options.hpp"
#include "xstage/model/profile.hpp"
#include "xstage/sim/fused_moe.hpp"

namespace xstage::cli {

/// A layer and its routing, ready to be predicted.
Result<sim::FusedMoe> fused_moe(const model::Profile& profile, const plan::FusedTimes& times,
                                const MoeLayer& layer, const shapes::Routing& routing);

/// The "fit" of a document of `bench moe --table kernel`. `rows` are its rows, `layers` the layers
/// that they were measured with, in the same order.
Result<nlohmann::json> fit_fused_times(const model::Profile& profile,
                                       const std::vector<MoeLayer>& layers,
                                       const nlohmann::json& rows);

}  // namespace xstage::cli
