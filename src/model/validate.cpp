#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "model/fit/parts.hpp"

namespace xstage::model {
namespace {

std::int64_t fold_value(const Sample& s, FoldBy by) {
  return by == FoldBy::kBytes ? s.bytes : s.producers;
}

PointError error_of(const Profile& profile, const MechanismProfile& m, const Sample& s, int gpu) {
  PointError out;
  out.sample = &s;
  const Workload w{s.producers, s.bytes, s.gap_us, s.mechanism, s.threads, s.both_ways, gpu};
  const Prediction p = predict(profile, w).value();
  out.regime = p.regime;
  if (s.experiment == Experiment::kWindow) {
    out.predicted_period_us = p.period_us;
    out.predicted_issue_us = p.issue_us;
    out.period_fraction = std::abs(p.period_us - s.period_us) / s.period_us;
    out.coupled_period_fraction =
        std::abs(p.completion_coupled_period_us - s.period_us) / s.period_us;
    out.paper_issue_us = std::abs(p.paper_issue_us - s.issue_us);
  } else {
    const double issue0 = staircase_us(m.isolated_issue, s.bytes, m.pass_bytes());
    out.predicted_issue_us = p.isolated_issue_us.value_or(issue0);
    out.beyond_knee = s.issue_us > kKnee * issue0;
    out.paper_issue_us = std::abs(p.paper_isolated_issue_us.value_or(issue0) - s.issue_us);
  }
  out.issue_us = std::abs(out.predicted_issue_us - s.issue_us);
  return out;
}

}  // namespace

std::vector<PointError> errors(const Profile& profile, const std::vector<Sample>& samples,
                               int gpu) {
  std::vector<PointError> out;
  for (const Sample& s : samples) {
    if (s.experiment == Experiment::kOther || !s.remote) continue;
    if (s.both_ways && !profile.drain.both_ways_gb_s) continue;
    if (s.bytes % 16 != 0 || s.producers > profile.node.sms) continue;
    const auto found = profile.find(s.mechanism, s.threads, s.chunk);
    if (!found) continue;
    out.push_back(error_of(profile, **found, s, gpu));
  }
  return out;
}

ErrorSummary summarise(std::vector<double> values) {
  ErrorSummary out;
  out.points = static_cast<std::int64_t>(values.size());
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  const auto rank = [&](double q) {
    const auto index = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size())));
    return values[std::clamp<std::size_t>(index, 1, values.size()) - 1];
  };
  out.median = rank(0.5);
  out.p95 = rank(0.95);
  return out;
}

Result<std::vector<Fold>> cross_validate(const SampleSet& set, FoldBy by) {
  std::set<std::int64_t> values;
  for (const Sample& s : set.samples)
    if (s.experiment != Experiment::kOther && s.remote) values.insert(fold_value(s, by));
  if (values.size() < 3)
    return bad_input("too few values to leave one out",
                     by == FoldBy::kBytes ? "bytes" : "producers",
                     fmt::format("{} values", values.size()), "3 or more");
  std::vector<Fold> folds;
  for (const std::int64_t value : values) {
    SampleSet rest = set;
    std::erase_if(rest.samples, [&](const Sample& s) { return fold_value(s, by) == value; });
    const Result<FitReport> fitted = fit(rest);
    if (!fitted) return fitted.error();
    Fold fold;
    fold.left_out = fmt::format("{} = {}", by == FoldBy::kBytes ? "bytes" : "producers", value);
    // The fold points into `set`, which the caller keeps.
    for (const PointError& e : errors(fitted->profile, set.samples))
      if (fold_value(*e.sample, by) == value) fold.errors.push_back(e);
    folds.push_back(std::move(fold));
  }
  return folds;
}

}  // namespace xstage::model
