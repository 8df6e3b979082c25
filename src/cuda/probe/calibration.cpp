#include "cuda/probe/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "cuda/probe/between_gpus.hpp"

namespace xstage::probe {
namespace {

using nlohmann::json;

json summary_json(std::vector<double> values) {
  if (values.empty()) return {{"median", nullptr}, {"p95", nullptr}};
  const model::ErrorSummary s = model::summarise(std::move(values));
  return {{"median", s.median}, {"p95", s.p95}};
}

/// Brings the GPUs to the clock they hold under load: until two launches in a row agree, at most
/// 200 of a millisecond or so.
Result<bool> warm_up(Prober& prober) {
  for (int gpu = 0; gpu < prober.node().gpus; ++gpu) {
    double before = 0;
    for (int i = 0; i < 200; ++i) {
      const int peer = (gpu + 1) % prober.node().gpus;
      const Result<std::vector<FlowRecords>> records =
          prober.run(window_run(one_way(gpu, peer), model::Mechanism::kStoreV4, prober.node().sms,
                                256, 32768, 0, 0, 373));
      if (!records) return records.error();
      const double clock = records->front().clock_ghz;
      if (i >= 20 && std::abs(clock / before - 1) < 2e-4) break;
      before = clock;
    }
  }
  return true;
}

/// The drain rate as the samples of this run have it, for everything that needs one.
double measured_rate(const std::vector<Sample>& samples, int sms, const std::string& direction) {
  std::vector<double> rates;
  for (const Sample& s : samples)
    if (s.experiment == "window" && s.target == "remote" && s.direction == direction &&
        s.producers == sms && s.run.bytes >= 16384 && s.run.gap_us == 0 && s.run.threads == 256 &&
        s.period_aggregate > 0)
      rates.push_back(s.producers * static_cast<double>(s.run.bytes) / (s.period_aggregate * 1e3));
  if (rates.empty()) return 0;
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

class Run {
 public:
  Run(Prober& prober, const CalibrationOptions& options, const Campaign::Progress& progress,
      const std::atomic<bool>& stop)
      : prober_(prober),
        options_(options),
        progress_(progress),
        stop_(stop),
        campaign_(prober, progress, stop),
        unseen_(prober, progress, stop) {}

  Calibration execute() {
    steps();
    campaign_.mark_clocks();
    unseen_.mark_clocks();
    out_.findings["stages"] = campaign_.stages_json();
    out_.findings["failed_cases"] = campaign_.failures_json();
    for (const json& failure : unseen_.failures_json())
      out_.findings["failed_cases"].push_back(failure);
    out_.findings["clock"] = campaign_.clock_json();
    out_.window_csv = campaign_.window_csv();
    out_.burst_csv = campaign_.burst_csv();
    out_.per_sm_csv = campaign_.per_sm_csv();
    if (!unseen_.samples().empty()) {
      out_.unseen_window_csv = unseen_.window_csv();
      out_.unseen_burst_csv = unseen_.burst_csv();
    }
    if (!out_.error && !out_.findings["failed_cases"].empty()) {
      const json& first = out_.findings["failed_cases"].front();
      out_.error = Error{
          ErrorKind::kCheckFailed,
          fmt::format("{} of the runs failed; the first: {}", out_.findings["failed_cases"].size(),
                      first["message"].get<std::string>()),
          {},
          {},
          {}};
    }
    if (stop_.load())
      out_.error =
          Error{ErrorKind::kInterrupted, "interrupted; what was measured is kept", {}, {}, {}};
    return std::move(out_);
  }

 private:
  void steps() {
    if (prober_.node().simulated) return simulated_steps();
    tell("warm-up");
    if (const Result<bool> warm = warm_up(prober_); !warm) {
      out_.error = warm.error();
      return;
    }
    if (!find_all_groups()) return;
    PlanOptions plan;
    plan.depth = options_.depth;
    const bool complete = campaign_.carry_out(calibration_plan(prober_.node(), plan));
    campaign_.mark_clocks();
    rates();
    if (!complete) return;
    fit();
    if (options_.validate > 0 && !validate()) return;
    more_findings();
  }

  /// Groups are part of what is simulated, and beside the bursts there are only the other GPUs to
  /// find.
  void simulated_steps() {
    const bool complete = campaign_.carry_out(calibration_plan(prober_.node(), {}));
    campaign_.mark_clocks();
    rates();
    if (!complete) return;
    fit();
    tell("between_gpus");
    out_.findings["between_gpus"] = between_gpus(prober_);
  }

  void tell(const char* what) const {
    if (progress_) progress_(what, 0, 1);
  }

  bool find_all_groups() {
    tell("groups of SMs");
    out_.findings["sm_groups"] = json::array();
    for (int gpu = 0; gpu < prober_.node().gpus; ++gpu) {
      if (stop_.load()) return false;
      Result<FoundGroups> found = find_groups(prober_, gpu, (gpu + 1) % prober_.node().gpus);
      if (!found) {
        // Without groups the profile says less, but all else can be measured.
        out_.findings["sm_groups"].push_back({{"gpu", gpu}, {"error", found.error().message()}});
        if (found.error().kind == ErrorKind::kTimeout || found.error().kind == ErrorKind::kNoGpu) {
          out_.error = found.error();
          return false;
        }
        continue;
      }
      out_.findings["sm_groups"].push_back(to_json(*found));
      out_.groups_csv += found->csv;
      groups_.push_back(std::move(found).value());
    }
    return true;
  }

  void rates() {
    const int sms = prober_.node().sms;
    one_way_ = measured_rate(campaign_.samples(), sms, "uni");
    const double both = measured_rate(campaign_.samples(), sms, "bi");
    out_.findings["drain_rate"] = {
        {"one_way_gb_per_s", one_way_ > 0 ? json(one_way_) : json(nullptr)},
        {"both_ways_gb_per_s", both > 0 ? json(both) : json(nullptr)}};
  }

  void fit() {
    tell("fit");
    Result<model::SampleSet> set = campaign_.sample_set();
    if (!set) {
      out_.error = set.error();
      return;
    }
    for (const FoundGroups& found : groups_) set->sm_groups.push_back({found.gpu, found.groups});
    for (const model::Topology& gpu : options_.topology)
      set->sm_groups.push_back({gpu.gpu, gpu.groups});
    Result<model::FitReport> report =
        model::fit(*set, {options_.name, options_.tool, options_.date});
    if (!report) {
      out_.error = report.error();
      return;
    }
    model::Node& node = report->profile.node;
    node.description = options_.node_description;
    node.gpus = prober_.node().gpus;
    node.sms = prober_.node().sms;
    node.sm_clock_ghz = campaign_.clock_json()["median_ghz"].get<double>();
    out_.fit = std::move(report).value();
  }

  bool validate() {
    const int isolated = std::max(20, options_.validate * 2 / 5);
    if (!unseen_.carry_out(
            validation_plan(prober_.node(), options_.validate, isolated, options_.seed, 373)))
      return false;
    unseen_.mark_clocks();
    const Result<model::SampleSet> set = unseen_.sample_set();
    if (!set || !out_.fit) return true;
    out_.validation = error_table(out_.fit->profile, *set);
    if (!groups_.empty())
      out_.validation["sm_groups"] =
          group_errors(unseen_.per_sm(), groups_.front(), out_.fit->profile);
    out_.validation["seed"] = options_.seed;
    return true;
  }

  void more_findings() {
    const bool full = options_.depth == Depth::kFull;
    const model::Profile* profile = out_.fit ? &out_.fit->profile : nullptr;
    out_.findings["residue"] = residue(campaign_.samples(), one_way_);
    const auto part = [&](const char* name, auto&& measure) {
      if (stop_.load()) return;
      tell(name);
      out_.findings[name] = measure();
    };
    part("completion", [&] { return completion(prober_); });
    part("yardsticks", [&] { return yardsticks(prober_, one_way_); });
    part("between_gpus", [&] { return between_gpus(prober_); });
    if (options_.litmus_rounds > 0)
      part("litmus", [&] { return litmus(prober_, options_.litmus_rounds); });
    if (!full) return;
    part("capacity", [&] { return capacity_estimates(prober_, one_way_); });
    part("onset", [&] { return onset(prober_, profile); });
    if (!groups_.empty()) {
      part("by_sm_and_group", [&] { return by_sm_and_group(prober_, groups_.front()); });
      part("work_split", [&] { return work_split(prober_, groups_.front(), profile); });
    }
  }

  Prober& prober_;
  const CalibrationOptions& options_;
  const Campaign::Progress& progress_;
  const std::atomic<bool>& stop_;
  Campaign campaign_, unseen_;
  std::vector<FoundGroups> groups_;
  double one_way_ = 0;
  Calibration out_;
};

}  // namespace

json error_table(const model::Profile& profile, const model::SampleSet& unseen) {
  std::vector<double> period, issue, isolated, coupled, paper_issue, paper_isolated;
  for (const model::PointError& e : model::errors(profile, unseen.samples)) {
    if (e.sample->experiment == model::Experiment::kWindow) {
      period.push_back(e.period_fraction);
      issue.push_back(e.issue_us);
      coupled.push_back(e.coupled_period_fraction);
      paper_issue.push_back(e.paper_issue_us);
    } else if (e.beyond_knee) {
      isolated.push_back(e.issue_us);
      paper_isolated.push_back(e.paper_issue_us);
    }
  }
  json laws = json::array();
  laws.push_back({{"law", "max(T_iss0 + G, V/R), refined"}, {"period", summary_json(period)}});
  laws.push_back({{"law", "G + V/R (completion-coupled)"}, {"period", summary_json(coupled)}});
  return {
      {"windowed",
       {{"n", period.size()}, {"period", summary_json(period)}, {"issue_us", summary_json(issue)}}},
      {"isolated", {{"n", isolated.size()}, {"issue_us", summary_json(isolated)}}},
      {"closed_form",
       {{"windowed_issue_us", summary_json(paper_issue)},
        {"isolated_issue_us", summary_json(paper_isolated)}}},
      {"laws", laws}};
}

Calibration calibrate(Prober& prober, const CalibrationOptions& options,
                      const Campaign::Progress& progress, const std::atomic<bool>& stop) {
  return Run(prober, options, progress, stop).execute();
}

}  // namespace xstage::probe
