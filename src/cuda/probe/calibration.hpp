// A whole calibration: warm-up, groups of SMs, the planned runs, the fit, unseen points, and the
// findings beside the fit.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cuda/probe/campaign.hpp"
#include "cuda/probe/findings.hpp"
#include "xstage/model/fit.hpp"

namespace xstage::probe {

struct CalibrationOptions {
  Depth depth = Depth::kFull;
  int validate = 0;  ///< unseen windowed points
  std::uint64_t seed = 1;
  std::int64_t litmus_rounds = 0;  ///< messages a mechanism and direction; 0: none
  std::string name;                ///< of the profile
  std::string tool;                ///< for its provenance
  std::string date;
  std::string node_description;
  std::vector<model::Topology> topology;  ///< groups that are known without looking
};

/// What came of it. `error` says why it is not complete; everything found before is there.
struct Calibration {
  std::optional<model::FitReport> fit;
  nlohmann::json findings = nlohmann::json::object();  ///< parts of the result document
  nlohmann::json validation;                           ///< null without unseen points
  std::string window_csv, burst_csv, per_sm_csv, groups_csv;
  std::string unseen_window_csv, unseen_burst_csv;  ///< empty without unseen points
  std::optional<Error> error;
};

/// `progress` is told the stage and how far it is. `stop` ends the calibration between two runs.
Calibration calibrate(Prober& prober, const CalibrationOptions& options,
                      const Campaign::Progress& progress, const std::atomic<bool>& stop);

/// Errors of `profile` on unseen samples: {"windowed", "isolated", "laws", …}, as in
/// xstage.validation/1.
nlohmann::json error_table(const model::Profile& profile, const model::SampleSet& unseen);

}  // namespace xstage::probe
