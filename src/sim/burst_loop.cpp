#include "xstage/sim/burst_loop.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

namespace xstage::sim {
namespace {

double quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))];
}

/// One run of the loop; all producers start at 0.
class Loop {
 public:
  Loop(const EgressParameters& parameters, const BurstLoop& loop)
      : loop_(loop), egress_(parameters, loop.seed) {
    state_.resize(static_cast<std::size_t>(egress_.sms()));
    for (const int sm : loop.producers) wake(sm, 0);
  }

  BurstLoopResult run() {
    if (loop_.alignment == Alignment::kIsolated)
      for (int i = 0; i < loop_.bursts; ++i) {
        const double start = egress_.now();
        if (i > 0)
          for (const int sm : loop_.producers) wake(sm, start);
        run_until_quiet();
        result_.drained_us += (egress_.now() - start) / loop_.bursts;
      }
    else
      run_until_quiet();
    summarise();
    return std::move(result_);
  }

 private:
  struct Producer {
    double start = 0;
    double issued = 0;
    int waits = 1;  // of the next burst: for the gap, and for what sits inside the SM
    std::int64_t bursts = 0;
    double issue_sum = 0;
    std::int64_t starts = 0;  // of bursts that count
    double first_start = 0;
  };
  using Wake = std::pair<double, int>;

  void wake(int sm, double time) {
    wakes_.emplace_back(time, sm);
    std::push_heap(wakes_.begin(), wakes_.end(), std::greater<>());
  }

  void run_until_quiet() {
    while (true) {
      const double next =
          std::min(egress_.next_event(),
                   wakes_.empty() ? std::numeric_limits<double>::infinity() : wakes_.front().first);
      if (std::isinf(next)) return;
      egress_.advance(next);
      for (Egress::Event event; egress_.poll(event);) on(event);
      while (!wakes_.empty() && wakes_.front().first <= next) {
        const int sm = wakes_.front().second;
        std::pop_heap(wakes_.begin(), wakes_.end(), std::greater<>());
        wakes_.pop_back();
        ready(sm);
      }
    }
  }

  void on(const Egress::Event& event) {
    Producer& producer = state_[static_cast<std::size_t>(event.sm)];
    if (event.kind == EgressEvent::kIssued) {
      const double now = egress_.now();
      result_.most_backlog = std::max(result_.most_backlog, egress_.backlog());
      const bool counts =
          loop_.alignment == Alignment::kIsolated || producer.start >= loop_.window_us / 4;
      if (counts) {
        issues_.push_back(now - producer.start);
        ++producer.bursts;
        producer.issue_sum += now - producer.start;
      }
      producer.issued = now;
      if (loop_.alignment == Alignment::kFree) wake(event.sm, now + loop_.gap_us);
    } else if (event.kind == EgressEvent::kSettled) {
      const double now = egress_.now();
      if (now > producer.issued && loop_.residual_us > 0)
        wake(event.sm, now + loop_.residual_us);
      else
        ready(event.sm);
    }
  }

  /// The gap is over, or what was inside the SM has gone; the next burst needs both.
  void ready(int sm) {
    if (--state_[static_cast<std::size_t>(sm)].waits <= 0) try_start(sm);
  }

  void try_start(int sm) {
    Producer& producer = state_[static_cast<std::size_t>(sm)];
    if (loop_.alignment == Alignment::kFree && egress_.now() >= loop_.window_us) return;
    producer.waits = 2;
    producer.start = egress_.now();
    if (producer.start >= loop_.window_us / 4 && producer.starts++ == 0)
      producer.first_start = producer.start;
    egress_.start(sm, {loop_.bytes, loop_.issue_us, loop_.residual, 0});
  }

  void summarise() {
    std::sort(issues_.begin(), issues_.end());
    double sum = 0;
    for (const double issue : issues_) sum += issue;
    result_.bursts = static_cast<std::int64_t>(issues_.size());
    if (!issues_.empty()) result_.issue_mean = sum / static_cast<double>(issues_.size());
    result_.issue_p05 = quantile(issues_, 0.05);
    result_.issue_p50 = quantile(issues_, 0.5);
    result_.issue_p95 = quantile(issues_, 0.95);
    for (const int sm : loop_.producers) {
      const Producer& p = state_[static_cast<std::size_t>(sm)];
      result_.producers.push_back(
          {sm, p.bursts, p.bursts > 0 ? p.issue_sum / static_cast<double>(p.bursts) : 0});
    }
    if (loop_.alignment == Alignment::kIsolated) return;
    double rate = 0;  // bursts per µs, each producer's from its first start that counts to its last
    for (const int sm : loop_.producers) {
      const Producer& p = state_[static_cast<std::size_t>(sm)];
      if (p.starts > 1) rate += static_cast<double>(p.starts - 1) / (p.start - p.first_start);
    }
    result_.period_us = rate > 0 ? static_cast<double>(loop_.producers.size()) / rate : 0;
  }

  const BurstLoop& loop_;
  Egress egress_;
  std::vector<Producer> state_;
  std::vector<Wake> wakes_;  // heap
  std::vector<double> issues_;
  BurstLoopResult result_;
};

}  // namespace

BurstLoopResult run_burst_loop(const EgressParameters& parameters, const BurstLoop& loop) {
  return Loop(parameters, loop).run();
}

}  // namespace xstage::sim
