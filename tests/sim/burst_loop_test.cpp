#include "xstage/sim/burst_loop.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace xstage::sim {
namespace {

EgressParameters one_group(int sms, double drain_rate, double queue) {
  EgressParameters p;
  p.drain_rate = drain_rate;
  p.sm_rate = 50700;
  p.queue_per_sm = queue;
  p.groups.emplace_back();
  for (int sm = 0; sm < sms; ++sm) p.groups[0].push_back(sm);
  return p;
}

BurstLoop loop_of(const EgressParameters& p, double bytes, double gap, double issue) {
  BurstLoop loop;
  loop.producers = p.groups[0];
  loop.bytes = bytes;
  loop.gap_us = gap;
  loop.issue_us = issue;
  loop.window_us = 4000;
  return loop;
}

// Bulk stores (S = 0), one group, even service, in the steady state: max(T_iss0 + G, V/R) and
// max(T_iss0, V/R - G) to a nanosecond, as long as the gap drains no more than the queue holds.
TEST(BurstLoop, TheClosedFormsFirstTwoEquations) {
  EXPECT_TRUE(rc::check("period and issue time", [] {
    const int sms = *rc::gen::inRange(1, 133);
    const double rate = *rc::gen::inRange(100000, 400000);
    const double bytes = 16.0 * *rc::gen::inRange(64, 4096);
    EgressParameters p = one_group(sms, rate, 0);
    const double share = std::min(rate / sms, p.sm_rate);
    const double issue = bytes / p.sm_rate * (0.3 + 0.01 * *rc::gen::inRange(0, 70));
    const double gap = 0.01 * *rc::gen::inRange(0, 2000);
    p.queue_per_sm = std::max(bytes, gap * share) + 1;
    const BurstLoopResult r = run_burst_loop(p, loop_of(p, bytes, gap, issue));
    const double drain = bytes / share;  // V/R, or one SM's own limit
    RC_ASSERT(std::abs(r.period_us - std::max(issue + gap, drain)) < 1e-3);
    RC_ASSERT(std::abs(r.issue_mean - std::max(issue, drain - gap)) < 1e-3);
  }));
}

TEST(BurstLoop, IsolatedBurstsFollowTheCapacityLaw) {
  const EgressParameters p = one_group(132, 373000, 22500);
  BurstLoop loop = loop_of(p, 65536, 0, 1.1);
  loop.alignment = Alignment::kIsolated;
  loop.bursts = 5;
  const BurstLoopResult r = run_burst_loop(p, loop);
  EXPECT_EQ(r.bursts, 5 * 132);
  EXPECT_NEAR(r.issue_mean, 132 * (65536 - 22500) / 373000.0, 1e-3);
  EXPECT_NEAR(r.drained_us, 132 * 65536 / 373000.0, 1e-3);
  EXPECT_LE(r.most_backlog, 132 * 22500);
}

// What is still inside the SM is paid by the next burst's first store, not by the burst's own
// clock.
TEST(BurstLoop, TheResidualIsPaidAfterTheBurst) {
  const EgressParameters p = one_group(132, 373000, 22500);
  BurstLoop loop = loop_of(p, 32768, 0, 0.45);
  loop.residual = 5000;
  const BurstLoopResult r = run_burst_loop(p, loop);
  EXPECT_NEAR(r.period_us, 132 * 32768 / 373000.0, 1e-3);
  EXPECT_NEAR(r.issue_mean, 132 * (32768 - 5000) / 373000.0, 1e-3);
}

// Producers that start together drift apart: bursts beyond the capacity then hardly stall, although
// every one of them would if it were aligned.
TEST(BurstLoop, ProducersDriftApart) {
  EgressParameters p = one_group(132, 373000, 22500);
  p.grain = 700;
  BurstLoop loop = loop_of(p, 65536, 28, 1.1);
  loop.window_us = 20000;
  EXPECT_LT(run_burst_loop(p, loop).issue_mean, 1.15);
  loop.alignment = Alignment::kIsolated;
  loop.bursts = 5;
  EXPECT_GT(run_burst_loop(p, loop).issue_mean, 14);
}

}  // namespace
}  // namespace xstage::sim
