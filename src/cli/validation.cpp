#include "cli/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace xstage::cli {
namespace {

using model::ErrorSummary;
using model::Experiment;
using model::PointError;
using model::Sample;
using nlohmann::json;

json summary_json(std::vector<double> values) {
  const ErrorSummary s = model::summarise(std::move(values));
  if (s.points == 0) return {{"median", nullptr}, {"p95", nullptr}};
  return {{"median", s.median}, {"p95", s.p95}};
}

/// One curve of a plot: everything but the abscissa is fixed.
struct CurveKey {
  Experiment experiment;
  model::Mechanism mechanism;
  int threads;
  bool both_ways;
  int producers;
  std::int64_t bytes;  ///< 0 for isolated bursts, which run over bytes
  auto operator<=>(const CurveKey&) const = default;
};

/// A straight line needs its corners; a few more points let one hover over it.
std::vector<double> abscissa(double low, double high, std::vector<double> corners) {
  std::vector<double> x;
  constexpr int kPoints = 48;
  for (int i = 0; i <= kPoints; ++i) x.push_back(low + (high - low) * i / kPoints);
  for (double corner : corners)
    if (corner > low && corner < high) x.push_back(corner);
  std::sort(x.begin(), x.end());
  return x;
}

json isolated_curve(const model::Profile& profile, const CurveKey& key,
                    const std::vector<const Sample*>& points, int gpu) {
  json volume = json::array(), issue = json::array(), low = json::array(), high = json::array();
  for (const Sample* s : points) {
    volume.push_back(static_cast<double>(s->bytes) * s->producers);
    issue.push_back(s->issue_us);
    low.push_back(s->issue_p05_us);
    high.push_back(s->issue_p95_us);
  }
  json line_volume = json::array(), line_issue = json::array();
  const std::int64_t step = 1024;
  for (std::int64_t bytes = points.front()->bytes / step * step; bytes <= points.back()->bytes;
       bytes += step) {
    if (bytes <= 0) continue;
    const auto p = model::predict(
        profile, {key.producers, bytes, 0, key.mechanism, key.threads, key.both_ways, gpu});
    if (!p || !p->isolated_issue_us) break;
    line_volume.push_back(p->volume_bytes);
    line_issue.push_back(*p->isolated_issue_us);
  }
  return {{"x", "volume_bytes"},
          {"y", json::array({"issue_us"})},
          {"measured",
           {{"volume_bytes", volume},
            {"issue_us", issue},
            {"issue_p05_us", low},
            {"issue_p95_us", high}}},
          {"model", {{"volume_bytes", line_volume}, {"issue_us", line_issue}}}};
}

json window_curve(const model::Profile& profile, const CurveKey& key,
                  const std::vector<const Sample*>& points, int gpu) {
  json gap = json::array(), period = json::array(), issue = json::array(), low = json::array(),
       high = json::array();
  for (const Sample* s : points) {
    gap.push_back(s->gap_us);
    period.push_back(s->period_us);
    issue.push_back(s->issue_us);
    low.push_back(s->issue_p05_us);
    high.push_back(s->issue_p95_us);
  }
  json line_gap = json::array(), line_period = json::array(), line_issue = json::array();
  const model::Workload at{key.producers, key.bytes,     0,  key.mechanism,
                           key.threads,   key.both_ways, gpu};
  const auto corner = model::predict(profile, at);
  const std::vector<double> corners =
      corner ? std::vector<double>{corner->drain_us - corner->issue0_us} : std::vector<double>{};
  for (double x : abscissa(points.front()->gap_us, points.back()->gap_us, corners)) {
    model::Workload w = at;
    w.gap_us = x;
    const auto p = model::predict(profile, w);
    if (!p) break;
    line_gap.push_back(x);
    line_period.push_back(p->period_us);
    line_issue.push_back(p->issue_us);
  }
  return {{"x", "gap_us"},
          {"y", json::array({"period_us", "issue_us"})},
          {"measured",
           {{"gap_us", gap},
            {"period_us", period},
            {"issue_us", issue},
            {"issue_p05_us", low},
            {"issue_p95_us", high}}},
          {"model", {{"gap_us", line_gap}, {"period_us", line_period}, {"issue_us", line_issue}}}};
}

/// Relative rates of the SMs of one run, as the groups of one GPU would have them.
std::vector<double> predicted_rates(const model::Topology& topology, const model::Drain& drain,
                                    const std::vector<const model::SmBursts*>& run,
                                    double demand_gb_s) {
  std::map<int, int> group_of;
  for (std::size_t g = 0; g < topology.groups.size(); ++g)
    for (int sm : topology.groups[g]) group_of[sm] = static_cast<int>(g);
  std::map<int, int> active;
  for (const model::SmBursts* b : run) ++active[group_of[b->sm]];
  std::map<int, int> groups_by_size;
  for (const auto& [group, sms] : active) ++groups_by_size[sms];
  std::vector<model::GroupClass> classes;
  for (const auto& [sms, groups] : groups_by_size) classes.push_back({sms, groups});
  const std::vector<double> rate = model::max_min_share(
      classes, std::vector<double>(classes.size(), demand_gb_s), drain.one_way_gb_s);
  std::map<int, double> rate_by_size;
  for (std::size_t i = 0; i < classes.size(); ++i) rate_by_size[classes[i].sms] = rate[i];
  std::vector<double> out;
  for (const model::SmBursts* b : run) out.push_back(rate_by_size[active[group_of[b->sm]]]);
  return out;
}

double misfit(const std::vector<double>& rates, const std::vector<const model::SmBursts*>& run) {
  double rate_sum = 0;
  double burst_sum = 0;
  for (std::size_t i = 0; i < run.size(); ++i) {
    rate_sum += rates[i];
    burst_sum += static_cast<double>(run[i]->bursts);
  }
  double worst = 0;
  for (std::size_t i = 0; i < run.size(); ++i)
    worst += std::abs(rates[i] / rate_sum - static_cast<double>(run[i]->bursts) / burst_sum);
  return worst;
}

}  // namespace

SampleGroup group_of(const Sample& s) {
  const bool main = s.mechanism == model::Mechanism::kStoreV4 && !s.both_ways;
  if (s.experiment == Experiment::kWindow)
    return main ? SampleGroup::kWindowed : SampleGroup::kOtherWindowed;
  return main ? SampleGroup::kIsolated : SampleGroup::kOtherIsolated;
}

std::string set_name(const Sample& s) {
  return fmt::format("{}, {}, {}", s.experiment == Experiment::kWindow ? "windowed" : "isolated",
                     name(s.mechanism), s.both_ways ? "both ways" : "one way");
}

json error_figures(const std::vector<const PointError*>& errors) {
  std::vector<double> period;
  std::vector<double> issue;
  bool windowed = false;
  for (const PointError* e : errors) {
    if (e->sample->experiment == Experiment::kWindow) {
      windowed = true;
      period.push_back(e->period_fraction);
    } else if (!e->beyond_knee) {
      continue;
    }
    issue.push_back(e->issue_us);
  }
  json out{{"n", issue.size()}, {"issue_us", summary_json(issue)}};
  if (windowed) out["period"] = summary_json(period);
  return out;
}

json error_tables(const std::vector<PointError>& errors) {
  std::vector<const PointError*> windowed;
  std::vector<const PointError*> isolated;
  std::map<std::string, std::vector<const PointError*>> by_regime;
  std::map<std::string, std::vector<const PointError*>> by_set;
  std::vector<double> law;
  std::vector<double> coupled;
  for (const PointError& e : errors) {
    by_set[set_name(*e.sample)].push_back(&e);
    if (group_of(*e.sample) == SampleGroup::kIsolated) isolated.push_back(&e);
    if (group_of(*e.sample) != SampleGroup::kWindowed) continue;
    windowed.push_back(&e);
    by_regime[std::string(name(e.regime))].push_back(&e);
    law.push_back(e.period_fraction);
    coupled.push_back(e.coupled_period_fraction);
  }
  const auto period_or_null = [](json figures) {
    if (!figures.contains("period")) figures["period"] = summary_json({});
    return figures;
  };
  json regimes = json::object();
  for (model::Regime r : {model::Regime::kIssueBound, model::Regime::kGapHidden,
                          model::Regime::kDrainLimited, model::Regime::kCapacityLimited}) {
    const std::string key(name(r));
    regimes[key] = period_or_null(error_figures(by_regime[key]));
    regimes[key]["validated"] = r != model::Regime::kCapacityLimited;
  }
  json sets = json::array();
  for (const auto& [set, points] : by_set) {
    json figures = error_figures(points);
    figures["set"] = set;
    sets.push_back(std::move(figures));
  }
  return {{"windowed", period_or_null(error_figures(windowed))},
          {"isolated", error_figures(isolated)},
          {"by_regime", regimes},
          {"by_set", sets},
          {"laws", json::array({{{"law", "max(T_iss0 + G, V/R)"}, {"period", summary_json(law)}},
                                {{"law", "G + V/R (completion-coupled)"},
                                 {"period", summary_json(coupled)}}})}};
}

json series(const model::Profile& profile, const std::vector<Sample>& samples,
            const std::string& source, int gpu) {
  std::map<CurveKey, std::vector<const Sample*>> curves;
  for (const Sample& s : samples) {
    if (!s.remote || s.experiment == Experiment::kOther || s.bytes % 16 != 0 ||
        s.producers > profile.node.sms || !profile.find(s.mechanism, s.threads))
      continue;
    const bool window = s.experiment == Experiment::kWindow;
    curves[{s.experiment, s.mechanism, s.threads, s.both_ways, s.producers, window ? s.bytes : 0}]
        .push_back(&s);
  }
  json out = json::array();
  for (auto& [key, points] : curves) {
    if (points.size() < 3) continue;
    const bool window = key.experiment == Experiment::kWindow;
    std::stable_sort(points.begin(), points.end(), [&](const Sample* a, const Sample* b) {
      return window ? a->gap_us < b->gap_us : a->bytes < b->bytes;
    });
    json curve = window ? window_curve(profile, key, points, gpu)
                        : isolated_curve(profile, key, points, gpu);
    curve["experiment"] = window ? "window" : "isolated";
    curve["mechanism"] = name(key.mechanism);
    curve["threads"] = key.threads;
    curve["direction"] = key.both_ways ? "bi" : "uni";
    curve["producers"] = key.producers;
    curve["bytes"] = window ? json(key.bytes) : json();
    curve["source"] = source;
    out.push_back(std::move(curve));
  }
  return out;
}

json sm_shares(const model::Profile& profile, const std::vector<model::SmBursts>& bursts,
               const std::string& source) {
  using Key = std::tuple<model::Mechanism, int, int, std::int64_t, double>;
  std::map<Key, std::vector<const model::SmBursts*>> runs;
  for (const model::SmBursts& b : bursts)
    runs[{b.mechanism, b.producers, b.threads, b.bytes, b.gap_us}].push_back(&b);
  json out = json::array();
  for (auto& [key, run] : runs) {
    const auto& [mechanism, producers, threads, bytes, gap] = key;
    std::sort(run.begin(), run.end(), [](const auto* a, const auto* b) { return a->sm < b->sm; });
    json sm = json::array(), count = json::array(), issue = json::array();
    for (const model::SmBursts* b : run) {
      sm.push_back(b->sm);
      count.push_back(b->bursts);
      issue.push_back(b->issue_us);
    }
    json entry{{"source", source},
               {"mechanism", name(mechanism)},
               {"producers", producers},
               {"threads", threads},
               {"bytes", bytes},
               {"gap_us", gap},
               {"sm", sm},
               {"bursts", count},
               {"issue_us", issue}};
    const auto found = profile.find(mechanism, threads);
    if (found && !profile.topology.empty()) {
      const model::MechanismProfile& m = **found;
      const auto loop = model::steady(m, {{1, 1}}, bytes, gap, 1e12);
      const double demand = static_cast<double>(bytes) / (1000.0 * loop.period_us);
      // The file does not say which GPU it was: the one whose groups fit best.
      std::vector<double> best;
      int gpu = 0;
      for (const model::Topology& t : profile.topology) {
        const auto rates = predicted_rates(t, profile.drain, run, demand);
        if (!best.empty() && misfit(rates, run) >= misfit(best, run)) continue;
        best = rates;
        gpu = t.gpu;
      }
      double sum = 0;
      for (double rate : best) sum += rate;
      json share = json::array();
      for (double rate : best) share.push_back(rate * static_cast<double>(best.size()) / sum);
      entry["gpu"] = gpu;
      entry["predicted_share"] = share;
    }
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace xstage::cli
