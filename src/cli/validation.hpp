// The parts of a validation document.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "xstage/model/fit.hpp"

namespace xstage::cli {

/// Which samples a figure is about. The goals speak of the first two.
enum class SampleGroup { kWindowed, kIsolated, kOtherWindowed, kOtherIsolated };

/// 16-byte stores, one way, are the main set; everything else stands apart under its own name.
SampleGroup group_of(const model::Sample& sample);
/// "windowed, tma_bulk, one way"
std::string set_name(const model::Sample& sample);

/// {"n", "period": {"median", "p95"}, "issue_us": {"median", "p95"}} over some errors. Isolated
/// bursts have no period, and only those beyond the knee count.
nlohmann::json error_figures(const std::vector<const model::PointError*>& errors);

/// "windowed", "isolated", "by_regime", "by_set" and "laws".
nlohmann::json error_tables(const std::vector<model::PointError>& errors);

/// Measured points and the model's lines through them, for plots.
nlohmann::json series(const model::Profile& profile, const std::vector<model::Sample>& samples,
                      const std::string& source, int gpu);

/// Each SM's share in windowed runs, beside the predicted one.
nlohmann::json sm_shares(const model::Profile& profile, const std::vector<model::SmBursts>& bursts,
                         const std::string& source);

}  // namespace xstage::cli
