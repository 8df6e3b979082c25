#include "cuda/probe/between_gpus.hpp"

#include <algorithm>

#include "cuda/probe/plan.hpp"
#include "cuda/probe/samples.hpp"

namespace xstage::probe {
namespace {

using nlohmann::json;

constexpr int kThreads = 256;
constexpr std::uint32_t kWindowBytes = 65536;
// Long enough to stall at every number of producers: 132 of them hold about 25 KB each.
constexpr std::uint32_t kBurstBytes = 131072;

double period_us(const ProducerRecord& r, double clock_ghz) {
  return static_cast<double>(r.last_start - r.first_start) / (clock_ghz * 1e3) / (r.bursts - 1);
}

/// Rates of one source in a run without a gap, GB/s: to each of its targets. Slots store into the
/// targets in turn.
std::vector<double> rates_of(const Flow& flow, const FlowRecords& records) {
  std::vector<double> out(flow.targets.size(), 0.0);
  for (const ProducerRecord& r : records.producers)
    if (r.bursts > 1)
      out[r.slot % out.size()] += kWindowBytes / (period_us(r, records.clock_ghz) * 1e3);
  return out;
}

/// What the producers that store into target `to` of `targets` sent at once, and how long they took
/// on average.
struct Bursts {
  double bytes = 0, issue_us = 0;
};
Bursts bursts_to(std::size_t to, std::size_t targets, const FlowRecords& records, int rounds) {
  double sum = 0;
  int count = 0, producers = 0;
  for (std::size_t i = 0; i < records.producers.size(); ++i) {
    if (records.producers[i].slot % targets != to) continue;
    ++producers;
    for (int round = rounds / 4; round < rounds; ++round, ++count)
      sum += records.rounds[i * kMaxRounds + static_cast<std::size_t>(round)].issue;
  }
  if (count == 0) return {};
  return {static_cast<double>(producers) * kBurstBytes, sum / count / (records.clock_ghz * 1e3)};
}

/// One pattern of flows: a run without a gap, then bursts that start at one instant on all GPUs.
json pattern(Prober& prober, const std::vector<Flow>& flows) {
  const int sms = prober.node().sms;
  const BurstRun window =
      window_run(flows, Mechanism::kStoreV4, sms, kThreads, kWindowBytes, 0, 0, 373);
  const BurstRun burst = isolated_run(flows, Mechanism::kStoreV4, sms, kThreads, kBurstBytes, 0);
  const Result<std::vector<FlowRecords>> looped = prober.run(window);
  if (!looped) return {{"error", looped.error().message()}};
  const Result<std::vector<FlowRecords>> single = prober.run(burst);
  if (!single) return {{"error", single.error().message()}};
  json sources = json::array();
  double all = 0, all_capacity = 0;
  for (std::size_t f = 0; f < flows.size(); ++f) {
    const std::vector<double> rates = rates_of(flows[f], (*looped)[f]);
    json peers = json::array();
    double own = 0;
    for (std::size_t i = 0; i < rates.size(); ++i) {
      const Bursts to = bursts_to(i, rates.size(), (*single)[f], burst.rounds);
      peers.push_back({{"to", flows[f].targets[i]},
                       {"gb_per_s", rates[i]},
                       {"capacity_bytes", to.bytes - rates[i] * 1e3 * to.issue_us}});
      own += rates[i];
    }
    all += own;
    const auto [volume, issue] = bursts_to(0, 1, (*single)[f], burst.rounds);
    all_capacity += volume - own * 1e3 * issue;
    sources.push_back({{"from", flows[f].source},
                       {"gb_per_s", own},
                       {"peers", peers},
                       {"isolated_issue_us", issue},
                       {"capacity_bytes", volume - own * 1e3 * issue}});
  }
  return {{"sources", sources},
          {"aggregate_gb_per_s", all},
          {"aggregate_capacity_bytes", all_capacity}};
}

}  // namespace

json between_gpus(Prober& prober) {
  const int gpus = prober.node().gpus;
  json pairs = json::array(), to_one = json::array();
  for (int from = 0; from < gpus; ++from)
    for (int to = 0; to < gpus; ++to) {
      if (from == to) continue;
      json one = pattern(prober, one_way(from, to));
      one["from"] = from;
      one["to"] = to;
      pairs.push_back(std::move(one));
    }
  // With two GPUs that is a pair once more.
  for (int to = 0; to < gpus && gpus > 2; ++to) {
    json one = pattern(prober, all_to_one(gpus, to));
    one["to"] = to;
    to_one.push_back(std::move(one));
  }
  return {{"mechanism", "st_v4"},           {"threads", kThreads},
          {"producers", prober.node().sms}, {"window_bytes", kWindowBytes},
          {"burst_bytes", kBurstBytes},     {"pairs", pairs},
          {"all_to_one", to_one},           {"all_to_all", pattern(prober, all_to_all(gpus))}};
}

}  // namespace xstage::probe
