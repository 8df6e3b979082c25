// Fits a profile to measured bursts, and says how well it describes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "xstage/model/burst_gap.hpp"
#include "xstage/model/profile.hpp"
#include "xstage/model/samples.hpp"
#include "xstage/result.hpp"

namespace xstage::model {

struct FitOptions {
  std::string name;  ///< of the profile
  std::string tool;  ///< for the provenance
  std::string date;
};

struct FitReport {
  Profile profile;
  std::int64_t used = 0;  ///< samples that a parameter rests on
  struct SetAside {
    std::string why;
    std::int64_t points = 0;
  };
  std::vector<SetAside> set_aside;
};

/// Fits everything that the samples determine. Errors: no usable sample (kBadInput), a drain rate
/// that cannot be determined or a model that misses the samples by more than 10 % (kPoorFit).
Result<FitReport> fit(const SampleSet& set, const FitOptions& options = {});

/// What the model says about one sample, and how far off it is.
struct PointError {
  const Sample* sample = nullptr;
  Regime regime = Regime::kIssueBound;
  double predicted_period_us = 0;  ///< windowed only
  double predicted_issue_us = 0;
  double period_fraction = 0;          ///< |predicted − measured| / measured; windowed only
  double issue_us = 0;                 ///< |predicted − measured|
  double coupled_period_fraction = 0;  ///< the same for the completion-coupled law G + V/R
  double paper_issue_us = 0;           ///< |closed form (2) or (6) − measured|
  bool beyond_knee = false;            ///< isolated: measured above 1.2·T_iss0
};

/// Errors of `profile` on every remote sample it can say something about. Samples of mechanisms or
/// directions that the profile does not hold are left out.
std::vector<PointError> errors(const Profile& profile, const std::vector<Sample>& samples,
                               int gpu = 0);

/// Median and 95th percentile (nearest rank) of some values.
ErrorSummary summarise(std::vector<double> values);

/// Values a fold can leave out.
enum class FoldBy { kBytes, kProducers };

/// One fold: what was left out, and the errors there of a profile fitted to the rest.
struct Fold {
  std::string left_out;  ///< "bytes = 32768"
  std::vector<PointError> errors;
};

/// Leaves out every value of B (or K) in turn, fits to the rest, predicts what was left out.
/// Groups of SMs and the order in which blocks fill SMs are topology and stay in.
Result<std::vector<Fold>> cross_validate(const SampleSet& set, FoldBy by);

}  // namespace xstage::model
