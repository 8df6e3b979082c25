#include "cuda/probe/campaign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

namespace xstage::probe {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median_clock(const std::vector<Sample>& samples) {
  std::vector<double> clocks;
  for (const Sample& s : samples)
    if (s.clock_ghz > 0) clocks.push_back(s.clock_ghz);
  if (clocks.empty()) return 0;
  const auto middle = clocks.begin() + static_cast<std::ptrdiff_t>(clocks.size() / 2);
  std::nth_element(clocks.begin(), middle, clocks.end());
  return *middle;
}

}  // namespace

std::string describe(const BurstRun& run) {
  return fmt::format("{}{}, {} producers of {} threads, {} bytes, gap {:.3f} us",
                     model::name(run.mechanism),
                     run.chunk > 0 ? fmt::format(" in pieces of {} bytes", run.chunk) : "",
                     run.producers, run.threads, run.bytes, run.gap_us);
}

Result<std::vector<std::vector<FlowRecords>>> Campaign::launch(const PlannedRun& planned) {
  std::vector<std::vector<FlowRecords>> out;
  for (int i = 0; i < planned.launches; ++i) {
    Result<std::vector<FlowRecords>> records = prober_.run(planned.run);
    if (!records) return records.error();
    out.push_back(std::move(records).value());
  }
  return out;
}

bool Campaign::carry_out(const std::vector<Stage>& stages) {
  int failed_in_a_row = 0;
  for (const Stage& stage : stages) {
    stages_.push_back({stage.name, stage.runs.size(), 0, 0, 0});
    StageRecord& record = stages_.back();
    const auto start = std::chrono::steady_clock::now();
    for (const PlannedRun& planned : stage.runs) {
      if (stop_.load() || failed_in_a_row >= 3) {
        record.seconds = seconds_since(start);
        return false;
      }
      Result<std::vector<std::vector<FlowRecords>>> records = launch(planned);
      if (!records) {
        failures_.push_back(
            {stage.name, planned.experiment, describe(planned.run), records.error()});
        ++record.failed;
        ++failed_in_a_row;
        continue;
      }
      failed_in_a_row = 0;
      for (Sample& sample : summarise(planned.experiment, planned.run, *records))
        samples_.push_back(std::move(sample));
      if (planned.per_sm) {
        per_sm_.push_back({planned.run, std::move(records->front().front())});
        per_sm_.back().records.spans.clear();
      }
      ++record.done;
      if (progress_) progress_(stage.name, record.done + record.failed, stage.runs.size());
    }
    record.seconds = seconds_since(start);
  }
  return failed_in_a_row < 3;
}

void Campaign::mark_clocks() {
  const double median = median_clock(samples_);
  for (Sample& s : samples_)
    s.clock_moved = !(s.clock_ghz > 0) || std::abs(s.clock_ghz / median - 1) > kClockTolerance;
}

std::string Campaign::window_rows(bool marked_too) const {
  std::string out;
  for (const Sample& s : samples_)
    if (s.run.kind == RunKind::kWindow && (marked_too || !s.clock_moved)) out += window_csv_row(s);
  return out;
}

std::string Campaign::burst_rows(bool marked_too) const {
  std::string out;
  for (const Sample& s : samples_)
    if (s.run.kind == RunKind::kAligned && (marked_too || !s.clock_moved)) out += burst_csv_row(s);
  return out;
}

std::string Campaign::window_csv() const { return window_csv_header() + window_rows(true); }
std::string Campaign::burst_csv() const { return burst_csv_header() + burst_rows(true); }

std::string Campaign::per_sm_csv() const {
  std::string out = per_sm_csv_header();
  for (const PerSm& one : per_sm_) out += per_sm_csv_rows(one.run, one.records);
  return out;
}

Result<model::SampleSet> Campaign::sample_set() const {
  model::SampleSet set;
  const auto read = [&set](const std::string& text, const char* name) -> Result<bool> {
    std::istringstream in(text);
    Result<model::SampleSet> part = model::read_samples(in, name);
    if (!part) return part.error();
    set.merge(std::move(part).value());
    return true;
  };
  const std::string windows = window_rows(false), bursts = burst_rows(false);
  if (!windows.empty())
    if (Result<bool> ok = read(window_csv_header() + windows, "window_samples.csv"); !ok)
      return ok.error();
  if (!bursts.empty())
    if (Result<bool> ok = read(burst_csv_header() + bursts, "remote_store_samples.csv"); !ok)
      return ok.error();
  if (!per_sm_.empty())
    if (Result<bool> ok = read(per_sm_csv(), "per_sm_bursts.csv"); !ok) return ok.error();
  return set;
}

nlohmann::json Campaign::clock_json() const {
  if (samples_.empty()) return nullptr;
  double low = samples_.front().clock_ghz, high = low;
  std::size_t marked = 0;
  for (const Sample& s : samples_) {
    low = std::min(low, s.clock_ghz);
    high = std::max(high, s.clock_ghz);
    marked += s.clock_moved ? 1 : 0;
  }
  return {{"median_ghz", median_clock(samples_)},
          {"min_ghz", low},
          {"max_ghz", high},
          {"runs", samples_.size()},
          {"marked", marked},
          {"tolerance_fraction", kClockTolerance}};
}

nlohmann::json Campaign::stages_json() const {
  nlohmann::json out = nlohmann::json::array();
  for (const StageRecord& s : stages_)
    out.push_back({{"stage", s.name},
                   {"planned", s.planned},
                   {"done", s.done},
                   {"failed", s.failed},
                   {"seconds", s.seconds}});
  return out;
}

nlohmann::json Campaign::failures_json() const {
  nlohmann::json out = nlohmann::json::array();
  for (const FailedCase& f : failures_)
    out.push_back({{"stage", f.stage},
                   {"experiment", f.experiment},
                   {"point", f.point},
                   {"message", f.error.message()}});
  return out;
}

}  // namespace xstage::probe
