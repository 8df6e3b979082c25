#include "cuda/probe/samples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace xstage::probe {
namespace {

double quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

Spread spread(std::vector<double> values) {
  Spread s;
  if (values.empty()) return s;
  double sum = 0;
  for (const double v : values) sum += v;
  s.mean = sum / static_cast<double>(values.size());
  s.p05 = quantile(values, 0.05);
  s.p50 = quantile(values, 0.50);
  s.p95 = quantile(values, 0.95);
  return s;
}

void summarise_window(Sample& s, const FlowRecords& records, double us) {
  std::vector<double> spans, periods;
  double rate = 0, issue_sum = 0, enqueue_sum = 0;
  for (std::size_t i = 0; i < records.producers.size(); ++i) {
    const ProducerRecord& r = records.producers[i];
    s.bursts_total += r.bursts;
    issue_sum += static_cast<double>(r.issue_sum) * us;
    enqueue_sum += static_cast<double>(r.enqueue_sum) * us;
    for (std::uint32_t b = 0; b < r.kept; ++b) spans.push_back(records.spans[i * kRing + b] * us);
    if (r.bursts > 1) {
      const double period = static_cast<double>(r.last_start - r.first_start) * us / (r.bursts - 1);
      periods.push_back(period);
      rate += 1 / period;
    }
  }
  s.issue = spread(std::move(spans));
  if (s.bursts_total > 0) {
    s.issue.mean = issue_sum / static_cast<double>(s.bursts_total);
    s.enqueue.mean = enqueue_sum / static_cast<double>(s.bursts_total);
  }
  if (rate > 0) s.period_aggregate = static_cast<double>(periods.size()) / rate;
  s.period = spread(std::move(periods));
  s.gap_us = s.run.gap_us;
}

void summarise_aligned(Sample& s, const std::vector<std::vector<FlowRecords>>& launches,
                       std::size_t flow) {
  std::vector<double> issue, after, periods;
  double enqueue_sum = 0, gap_sum = 0;
  int gaps = 0;
  for (const std::vector<FlowRecords>& launch : launches) {
    const FlowRecords& records = launch[flow];
    const double us = 1e-3 / records.clock_ghz;
    for (std::size_t i = 0; i < records.producers.size(); ++i) {
      const ProducerRecord& r = records.producers[i];
      s.bursts_total += r.bursts;
      enqueue_sum += static_cast<double>(r.enqueue_sum) * us;
      // The first quarter is left out, as in window runs.
      for (int round = s.run.rounds / 4; round < s.run.rounds; ++round) {
        const RoundRecord& one = records.rounds[i * kMaxRounds + static_cast<std::size_t>(round)];
        issue.push_back(one.issue * us);
        after.push_back(one.after * us);
      }
      if (r.bursts > 1)
        periods.push_back(static_cast<double>(r.last_start - r.first_start) * us / (r.bursts - 1));
    }
    for (int round = std::max(1, s.run.rounds / 4); round < s.run.rounds; ++round, ++gaps) {
      std::uint32_t shortest = std::numeric_limits<std::uint32_t>::max();
      for (std::size_t i = 0; i < records.producers.size(); ++i)
        shortest = std::min(shortest,
                            records.rounds[i * kMaxRounds + static_cast<std::size_t>(round)].gap);
      gap_sum += shortest * us;
    }
  }
  if (gaps > 0) s.gap_us = gap_sum / gaps;
  s.issue = spread(std::move(issue));
  s.after = spread(std::move(after));
  s.period = spread(std::move(periods));
  s.period_aggregate = s.period.mean;
  if (s.bursts_total > 0) s.enqueue.mean = enqueue_sum / static_cast<double>(s.bursts_total);
}

}  // namespace

std::vector<Sample> summarise(const std::string& experiment, const BurstRun& run,
                              const std::vector<std::vector<FlowRecords>>& launches) {
  const std::vector<FlowRecords>& records = launches.front();
  std::vector<Sample> out;
  for (std::size_t f = 0; f < records.size(); ++f) {
    const Flow& flow = run.flows[f];
    Sample s;
    s.experiment = experiment;
    s.run = run;
    s.launches = static_cast<int>(launches.size());
    s.source = flow.source;
    s.target = flow.targets.front() == flow.source ? "local" : "remote";
    s.direction = run.flows.size() > 1 ? "bi" : "uni";
    s.producers = static_cast<int>(records[f].producers.size());
    s.clock_ghz = records[f].clock_ghz;
    const double us = 1e-3 / s.clock_ghz;
    for (const ProducerRecord& r : records[f].producers) {
      s.last_issue_us = std::max(s.last_issue_us, static_cast<double>(r.last_issue) * us);
      s.drained_us = std::max(s.drained_us, static_cast<double>(r.drained) * us);
    }
    if (run.kind == RunKind::kWindow)
      summarise_window(s, records[f], us);
    else
      summarise_aligned(s, launches, f);
    out.push_back(std::move(s));
  }
  return out;
}

std::string window_csv_header() {
  return "experiment,mechanism,target,direction,producers,threads,bytes,chunk,gap_us,window_us,"
         "bursts_total,period_aggregate,period_p05,period_p50,period_p95,issue_p05,issue_p50,"
         "issue_mean,issue_p95,source,enqueue_mean,clock_ghz,clock_moved\n";
}

std::string window_csv_row(const Sample& s) {
  return fmt::format(
      "{},{},{},{},{},{},{},{},{:.4f},{:.1f},{},{:.4f},{:.4f},{:.4f},{:.4f},{:.4f},{:.4f},{:.4f},"
      "{:.4f},{},{:.4f},{:.5f},{}\n",
      s.experiment, model::name(s.run.mechanism), s.target, s.direction, s.producers, s.run.threads,
      s.run.bytes, s.run.chunk, s.gap_us, s.run.window_us, s.bursts_total, s.period_aggregate,
      s.period.p05, s.period.p50, s.period.p95, s.issue.p05, s.issue.p50, s.issue.mean, s.issue.p95,
      s.source, s.enqueue.mean, s.clock_ghz, s.clock_moved ? 1 : 0);
}

std::string burst_csv_header() {
  return "experiment,mechanism,target,direction,producers,threads,bytes,chunk,bursts,gap_us,align,"
         "issue_p05,issue_p50,issue_mean,issue_p95,period_p50,period_mean,last_issue,drained,"
         "fence_p50,source,fence_mean,enqueue_mean,clock_ghz,clock_moved\n";
}

std::string burst_csv_row(const Sample& s) {
  return fmt::format(
      "{},{},{},{},{},{},{},{},{},{:.4f},{},{:.4f},{:.4f},{:.4f},{:.4f},{:.4f},{:.4f},{:.3f},"
      "{:.3f},{:.4f},{},{:.4f},{:.4f},{:.5f},{}\n",
      s.experiment, model::name(s.run.mechanism), s.target, s.direction, s.producers, s.run.threads,
      s.run.bytes, s.run.chunk, s.run.rounds * s.launches,
      s.experiment == "isolated" ? 0.0 : s.gap_us, s.run.free_running ? 2 : 1, s.issue.p05,
      s.issue.p50, s.issue.mean, s.issue.p95, s.period.p50, s.period.mean, s.last_issue_us,
      s.drained_us, s.after.p50, s.source, s.after.mean, s.enqueue.mean, s.clock_ghz,
      s.clock_moved ? 1 : 0);
}

std::string per_sm_csv_header() {
  return "mechanism,producers,threads,bytes,gap_us,block,smid,bursts,issue_mean_us,source,"
         "period_us\n";
}

std::string per_sm_csv_rows(const BurstRun& run, const FlowRecords& records) {
  std::string out;
  const double us = 1e-3 / records.clock_ghz;
  for (const ProducerRecord& r : records.producers) {
    const double issue = r.bursts > 0 ? static_cast<double>(r.issue_sum) * us / r.bursts : 0;
    const double period =
        r.bursts > 1 ? static_cast<double>(r.last_start - r.first_start) * us / (r.bursts - 1) : 0;
    out += fmt::format("{},{},{},{},{:.3f},{},{},{},{:.4f},{},{:.4f}\n", model::name(run.mechanism),
                       records.producers.size(), run.threads, run.bytes, run.gap_us, r.slot, r.smid,
                       r.bursts, issue, run.flows.front().source, period);
  }
  return out;
}

}  // namespace xstage::probe
