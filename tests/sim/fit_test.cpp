// A node that exists only here is probed by the simulated loop and fitted: the fit must give back
// what the node was made of.
#include <gtest/gtest.h>

#include <cmath>

#include "xstage/model/burst_gap.hpp"
#include "xstage/model/fit.hpp"
#include "xstage/sim/burst_loop.hpp"

namespace xstage::sim {
namespace {

struct Made {
  double drain_gb_s;
  double queue_bytes;  // of an SM
  double residual;
};

EgressParameters node(const Made& made) {
  EgressParameters p;
  p.drain_rate = made.drain_gb_s * 1000;
  p.sm_rate = 50700;
  p.queue_per_sm = made.queue_bytes;
  p.grain = 300;
  // 18 groups of 6 and 6 groups of 4.
  int sm = 0;
  for (int g = 0; g < 24; ++g) {
    p.groups.emplace_back();
    for (int i = 0; i < (g % 4 == 3 ? 4 : 6); ++i) p.groups.back().push_back(sm++);
  }
  return p;
}

/// A staircase: one pass of 256 threads takes 4096 bytes.
double issue_us(std::int64_t bytes) {
  return 0.08 +
         0.081 * std::ceil(static_cast<double>(bytes) / 4096 - 1) * (bytes > 16384 ? 1 : 0.35);
}

model::SampleSet probe(const Made& made) {
  const EgressParameters p = node(made);
  model::SampleSet set;
  model::SmGroups groups;
  groups.groups = p.groups;
  set.sm_groups.push_back(groups);
  for (int producers : {4, 33, 66, 132}) {
    // One SM of each group after the other, as blocks fill a GPU.
    std::vector<int> order;
    for (std::size_t i = 0; i < 6; ++i)
      for (const auto& group : p.groups)
        if (i < group.size() && static_cast<int>(order.size()) < producers)
          order.push_back(group[i]);
    for (std::size_t i = 0; i < order.size() && producers == 132; ++i) {
      model::SmBursts b;
      b.producers = producers;
      b.threads = 256;
      b.bytes = 32768;
      b.block = static_cast<int>(i);
      b.sm = order[i];
      b.bursts = 1;
      b.issue_us = 1;
      set.sm_bursts.push_back(b);
    }
    for (std::int64_t bytes : {4096, 8192, 16384, 24576, 32768, 65536, 131072})
      for (double share : {-1.0, 0.0, 0.3, 0.6, 0.9, 1.1, 1.5, 3.0}) {
        BurstLoop loop;
        loop.producers = order;
        loop.bytes = static_cast<double>(bytes);
        loop.issue_us = issue_us(bytes);
        model::Sample s;
        s.producers = producers;
        s.threads = 256;
        s.bytes = bytes;
        if (share < 0) {
          loop.alignment = Alignment::kIsolated;
          loop.bursts = 6;
          s.experiment = model::Experiment::kIsolated;
        } else {
          const double drain = static_cast<double>(bytes) * producers / p.drain_rate;
          s.gap_us = share * drain;
          loop.gap_us = std::max(0.2, s.gap_us);  // the loop itself costs something
          loop.residual = made.residual;
          loop.window_us = std::max(300.0, 40 * (loop.gap_us + drain));
          s.experiment = model::Experiment::kWindow;
        }
        const BurstLoopResult r = run_burst_loop(p, loop);
        s.period_us = r.period_us;
        s.issue_us = r.issue_mean;
        s.issue_p05_us = r.issue_p05;
        s.issue_p50_us = r.issue_p50;
        s.issue_p95_us = r.issue_p95;
        set.samples.push_back(s);
      }
  }
  return set;
}

TEST(FitOfSimulation, GivesBackTheSimulatorsParameters) {
  for (const Made& made : {Made{300, 30000, 4096}, Made{420, 18000, 0}}) {
    SCOPED_TRACE(made.drain_gb_s);
    const auto report = model::fit(probe(made));
    ASSERT_TRUE(report.ok()) << report.error().message();
    const model::Profile& p = report->profile;
    EXPECT_NEAR(p.drain.one_way_gb_s, made.drain_gb_s, 0.005 * made.drain_gb_s);
    const auto mechanism = p.find(model::Mechanism::kStoreV4, 256);
    ASSERT_TRUE(mechanism.ok());
    const model::MechanismProfile& m = **mechanism;
    for (std::int64_t bytes : {8192, 32768, 65536})
      EXPECT_NEAR(model::staircase_us(m.isolated_issue, bytes, m.pass_bytes()), issue_us(bytes),
                  0.02 + 0.03 * issue_us(bytes));
    ASSERT_TRUE(m.capacity.has_value());
    const double queue = model::capacity_bytes(m, *m.capacity, p.classes(132), 1 << 17) / 132;
    EXPECT_NEAR(queue, made.queue_bytes, 0.1 * made.queue_bytes);
    ASSERT_TRUE(m.loop.has_value());
    EXPECT_NEAR(m.loop->residue_bytes, made.residual, 1200);
  }
}

}  // namespace
}  // namespace xstage::sim
