#include "cli/sim_prober.hpp"

#include <algorithm>
#include <cmath>

#include "xstage/sim/burst_loop.hpp"
#include "xstage/sim/from_profile.hpp"

namespace xstage::cli {
namespace {

using namespace probe;

// The simulated SM counts picoseconds: fine enough for every span, and 2^32 of them are 4 ms.
constexpr double kClockGhz = 1000;
constexpr double kCyclesPerUs = kClockGhz * 1e3;

Error unsupported(const char* what) {
  return {ErrorKind::kUnsupported, std::string("the simulated node has no ") + what, {}, {}, {}};
}

class SimProber final : public Prober {
 public:
  SimProber(model::Profile profile, int gpus) : profile_(std::move(profile)) {
    node_.gpus = gpus > 0 ? gpus : std::max(2, profile_.node.gpus);
    node_.sms = profile_.node.sms;
    node_.nominal_ghz = kClockGhz;
    node_.gpu_name = "simulated " + profile_.node.description;
    node_.simulated = true;
  }

  const ProbeNode& node() const override { return node_; }

  Result<std::vector<FlowRecords>> run(const BurstRun& run) override {
    std::vector<FlowRecords> out;
    for (const Flow& flow : run.flows) {
      Result<FlowRecords> records = run_flow(run, flow);
      if (!records) return records.error();
      out.push_back(std::move(records).value());
    }
    return out;
  }

  Result<double> copy(CopyKind, int, int) override { return unsupported("copy engine"); }
  Result<std::vector<double>> round_trip(int, int, std::uint32_t) override {
    return unsupported("flags");
  }
  Result<LitmusResult> litmus(const LitmusRun&) override { return unsupported("memory model"); }
  Result<SplitResult> split(const SplitRun&) override { return unsupported("tiles to claim"); }

 private:
  /// A GPU receives no faster than one sends: what its senders share where they are many, in turn
  /// over their targets.
  static double share_of(const std::vector<Flow>& flows, const Flow& of) {
    double most = 1;
    for (const int target : of.targets) {
      double load = 0;
      for (const Flow& flow : flows)
        load += static_cast<double>(std::count(flow.targets.begin(), flow.targets.end(), target)) /
                static_cast<double>(flow.targets.size());
      most = std::max(most, load);
    }
    return 1 / most;
  }

  Result<FlowRecords> run_flow(const BurstRun& run, const Flow& flow) {
    sim::StoreOptions options;
    options.mechanism = run.mechanism;
    options.threads = run.threads;
    options.producers = flow.sms.empty() ? run.producers : static_cast<int>(flow.sms.size());
    options.both_ways = run.flows.size() > 1;
    const Result<sim::StoreModel> store = sim::store_model(profile_, options);
    if (!store) return store.error();
    const auto gpu = static_cast<std::size_t>(flow.source) % store->fabric.size();
    sim::EgressParameters fabric = store->fabric[gpu];
    fabric.drain_rate *= share_of(run.flows, flow);
    sim::BurstLoop loop;
    loop.producers = store->order;
    if (!flow.sms.empty()) loop.producers = flow.sms;
    if (flow.targets.front() == flow.source) {
      // The control: local memory takes whatever the SMs send.
      fabric.drain_rate = 1e9;
      fabric.sm_rate = 1e9;
    }
    loop.bytes = run.bytes;
    loop.gap_us = run.gap_us;
    loop.residual = store->residual;
    loop.seed = ++seed_;
    const bool window = run.kind == RunKind::kWindow;
    if (!window && !run.drain_each_round) return unsupported("runs of this kind");
    loop.alignment = window ? sim::Alignment::kFree : sim::Alignment::kIsolated;
    loop.issue_us = window ? store->issue_us(run.bytes) : store->isolated_issue_us(run.bytes);
    loop.window_us = (run.warm_us + run.window_us) / 2;
    loop.bursts = 4;
    return records_of(sim::run_burst_loop(fabric, loop), run);
  }

  static FlowRecords records_of(const sim::BurstLoopResult& result, const BurstRun& run) {
    FlowRecords out;
    out.clock_ghz = kClockGhz;
    const std::size_t count = result.producers.size();
    out.spans.resize(count * kRing);
    out.rounds.resize(count * kMaxRounds);
    const double mean_bursts = static_cast<double>(result.bursts) / static_cast<double>(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto& producer = result.producers[i];
      const auto issue =
          static_cast<std::uint32_t>(std::lround(producer.issue_mean * kCyclesPerUs));
      ProducerRecord r{};
      r.smid = static_cast<std::uint32_t>(producer.sm);
      r.slot = static_cast<std::uint32_t>(i);
      r.bursts = static_cast<std::uint32_t>(producer.bursts);
      r.kept = std::min<std::uint32_t>(r.bursts, kRing);
      r.issue_sum = static_cast<std::uint64_t>(issue) * r.bursts;
      r.enqueue_sum = r.issue_sum;
      if (run.kind == RunKind::kWindow && r.bursts > 1) {
        // A producer's own period, in proportion to its bursts: their harmonic mean is the run's.
        const double period = result.period_us * mean_bursts / r.bursts;
        r.last_start =
            static_cast<std::uint64_t>(std::llround(period * (r.bursts - 1) * kCyclesPerUs));
      }
      r.drained = static_cast<std::uint64_t>(std::llround(result.drained_us * kCyclesPerUs));
      std::fill_n(out.spans.begin() + static_cast<std::ptrdiff_t>(i * kRing), r.kept, issue);
      for (int round = 0; round < run.rounds; ++round)
        out.rounds[i * kMaxRounds + static_cast<std::size_t>(round)].issue = issue;
      out.producers.push_back(r);
    }
    return out;
  }

  model::Profile profile_;
  ProbeNode node_;
  std::uint64_t seed_ = 0;
};

}  // namespace

std::unique_ptr<Prober> open_sim_prober(model::Profile profile, int gpus) {
  return std::make_unique<SimProber>(std::move(profile), gpus);
}

}  // namespace xstage::cli
