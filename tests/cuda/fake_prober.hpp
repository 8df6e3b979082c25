// A node without GPUs that behaves by the Burst-Gap law, and goes wrong where a test wants it to.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include "cuda/probe/prober.hpp"

namespace xstage::probe {

class FakeProber final : public Prober {
 public:
  explicit FakeProber(int gpus = 2) {
    node_.gpus = gpus;
    node_.sms = 8;
    node_.nominal_ghz = 2;
    node_.gpu_name = "fake";
  }

  /// Called with the number of every run, from 1: an error makes the run fail.
  std::function<std::optional<Error>(int)> fault;
  std::function<double(int)> clock = [](int) { return 2.0; };
  std::function<void(int)> before;
  int runs = 0;

  const ProbeNode& node() const override { return node_; }

  Result<std::vector<FlowRecords>> run(const BurstRun& run) override {
    ++runs;
    if (before) before(runs);
    if (fault)
      if (const auto error = fault(runs)) return *error;
    std::vector<FlowRecords> out;
    for (const Flow& flow : run.flows) {
      // A receiver that several send to at once is shared by them.
      double senders = 0;
      for (const Flow& other : run.flows)
        for (const int target : other.targets)
          if (target == flow.targets.front())
            senders += 1.0 / static_cast<double>(other.targets.size());
      const double rate = kRate / std::max(1.0, senders);
      const int k = flow.sms.empty() ? run.producers : static_cast<int>(flow.sms.size());
      const double issue0 = 0.1 + run.bytes / 50e3, volume = k * static_cast<double>(run.bytes);
      const double drain = volume / rate;
      const bool window = run.kind == RunKind::kWindow;
      const double issue = window ? std::max(issue0, drain - run.gap_us)
                                  : std::max(issue0, (volume - kCapacity * k) / rate);
      const double period = window ? std::max(issue0 + run.gap_us + 0.1, drain) : drain + 10;
      out.push_back(records(flow, k, issue, period, clock(runs)));
    }
    return out;
  }

  Result<double> copy(CopyKind, int, int) override { return kRate * 1e-3; }
  Result<std::vector<double>> round_trip(int, int, std::uint32_t) override {
    return std::vector<double>(100, 2.5);
  }
  Result<LitmusResult> litmus(const LitmusRun& run) override {
    const bool wrong = run.signal != LitmusSignal::kRelease;
    return LitmusResult{2 * run.rounds, wrong ? 5u : 0u, wrong ? 1u : 0u, 0.1};
  }
  Result<SplitResult> split(const SplitRun& run) override {
    SplitResult out;
    out.drained_us = run.tiles * static_cast<double>(run.bytes) / kRate;
    return out;
  }

  static constexpr double kRate = 100e3;      // bytes/us
  static constexpr double kCapacity = 20000;  // bytes a producer

 private:
  FlowRecords records(const Flow& flow, int k, double issue, double period, double ghz) const {
    FlowRecords out;
    out.clock_ghz = ghz;
    const double cycles = ghz * 1e3;
    const auto span = static_cast<std::uint32_t>(std::lround(issue * cycles));
    out.spans.assign(static_cast<std::size_t>(k) * kRing, span);
    out.rounds.assign(static_cast<std::size_t>(k) * kMaxRounds, {span, span / 2, 100});
    for (int i = 0; i < k; ++i) {
      ProducerRecord r{};
      r.smid =
          static_cast<std::uint32_t>(flow.sms.empty() ? i : flow.sms[static_cast<std::size_t>(i)]);
      r.slot = static_cast<std::uint32_t>(i);
      r.bursts = 100;
      r.kept = 100;
      r.issue_sum = std::uint64_t{100} * span;
      r.enqueue_sum = r.issue_sum;
      r.last_start = static_cast<std::uint64_t>(std::llround(99 * period * cycles));
      out.producers.push_back(r);
    }
    return out;
  }

  ProbeNode node_;
};

}  // namespace xstage::probe
