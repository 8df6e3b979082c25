// From measured Ulysses layers to what predictions rest on, and predictions.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/layer_options.hpp"
#include "xstage/model/profile.hpp"
#include "xstage/plan/ulysses_times.hpp"

namespace xstage::cli {

/// The "fit" of documents of `bench ulysses` and of `bench/ulysses_torch.py`, both between two
/// ranks. Beside each line the errors it makes for layers that are left out of its fit, one by one.
Result<nlohmann::json> fit_ulysses_times(const model::Profile& profile,
                                         const std::vector<nlohmann::json>& documents);

/// What a layer and its baselines are expected to take on the rank with the most heads.
nlohmann::json predict_ulysses(const model::Profile& profile, const plan::UlyssesTimes& times,
                               const AttentionLayer& layer);

}  // namespace xstage::cli
