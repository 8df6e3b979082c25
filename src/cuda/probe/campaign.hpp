// Carries out planned runs and keeps what they yield: samples, failures, what every SM did. A
// failed run does not end the campaign, an interruption ends it with everything so far kept.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cuda/probe/plan.hpp"
#include "cuda/probe/samples.hpp"
#include "xstage/model/samples.hpp"

namespace xstage::probe {

/// A run whose SM clock was further from the campaign's median than this is marked and not fitted.
inline constexpr double kClockTolerance = 0.005;

struct FailedCase {
  std::string stage, experiment, point;
  Error error;
};

struct StageRecord {
  std::string name;
  std::size_t planned = 0, done = 0, failed = 0;
  double seconds = 0;
};

/// One run's producers, for what is predicted SM by SM.
struct PerSm {
  BurstRun run;
  FlowRecords records;
};

class Campaign {
 public:
  /// `progress` is told the stage and how many of its runs are done. `stop` ends the campaign
  /// between two runs.
  using Progress = std::function<void(const std::string& stage, std::size_t done, std::size_t all)>;
  Campaign(Prober& prober, Progress progress, const std::atomic<bool>& stop)
      : prober_(prober), progress_(std::move(progress)), stop_(stop) {}

  /// Runs everything in order. False when it was interrupted, or when three runs in a row failed:
  /// then the GPUs are lost, and what follows would only fail too.
  bool carry_out(const std::vector<Stage>& stages);

  /// Marks the samples whose clock moved. Call once, when all runs are done.
  void mark_clocks();

  bool interrupted() const { return stop_.load(); }
  const std::vector<Sample>& samples() const { return samples_; }
  const std::vector<FailedCase>& failures() const { return failures_; }
  const std::vector<StageRecord>& stages() const { return stages_; }
  const std::vector<PerSm>& per_sm() const { return per_sm_; }

  /// The sample files, one text each.
  std::string window_csv() const;
  std::string burst_csv() const;
  std::string per_sm_csv() const;

  /// The samples as the fit takes them, without those whose clock moved.
  Result<model::SampleSet> sample_set() const;

  /// {"median_ghz", "min_ghz", "max_ghz", "runs", "marked", "tolerance_fraction"}
  nlohmann::json clock_json() const;
  nlohmann::json stages_json() const;
  nlohmann::json failures_json() const;

 private:
  Result<std::vector<std::vector<FlowRecords>>> launch(const PlannedRun& planned);
  std::string window_rows(bool marked_too) const;
  std::string burst_rows(bool marked_too) const;

  Prober& prober_;
  Progress progress_;
  const std::atomic<bool>& stop_;
  std::vector<Sample> samples_;
  std::vector<FailedCase> failures_;
  std::vector<StageRecord> stages_;
  std::vector<PerSm> per_sm_;
};

/// "st_v4, 132 producers of 256 threads, 32768 bytes, gap 2.5 us"
std::string describe(const BurstRun& run);

}  // namespace xstage::probe
