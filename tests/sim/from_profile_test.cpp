// The simulator on the shipped profile, against what was measured on the node and against the
// closed form.
#include "xstage/sim/from_profile.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "xstage/model/burst_gap.hpp"
#include "xstage/model/fit.hpp"
#include "xstage/sim/burst_loop.hpp"
#include "xstage/sim/spin_kernel.hpp"

namespace xstage::sim {
namespace {

const std::string kRoot = XSTAGE_SOURCE_DIR;

/// The profile that ships, measured by `calibrate`.
const model::Profile& shipped() {
  static const model::Profile p =
      model::load_profile(std::filesystem::path(kRoot + "/profiles/h200-nv18-x2.json")).value();
  return p;
}

/// Fitted to the samples in data/h200x2, which other kernels measured on another pair of GPUs:
/// their loops cost less than those of `calibrate`.
const model::Profile& of_the_data() {
  static const model::Profile p = [] {
    model::SampleSet set;
    for (const char* file :
         {"window_samples.csv", "remote_store_samples.csv", "per_sm_bursts.csv", "sm_groups.json"})
      set.merge(model::read_samples(std::filesystem::path(kRoot + "/data/h200x2/" + file)).value());
    return model::fit(set).value().profile;
  }();
  return p;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

/// One sample through the simulated loop.
BurstLoopResult simulate(const model::Profile& profile, const model::Sample& s,
                         const model::Prediction& p) {
  StoreOptions options;
  options.mechanism = s.mechanism;
  options.threads = s.threads;
  options.producers = s.producers;
  options.both_ways = s.both_ways;
  const StoreModel store = store_model(profile, options).value();
  BurstLoop loop;
  loop.producers = store.order;
  loop.bytes = static_cast<double>(s.bytes);
  loop.residual = store.residual;
  loop.seed = 3;
  if (s.experiment == model::Experiment::kIsolated) {
    loop.alignment = Alignment::kIsolated;
    loop.bursts = 4;
    loop.issue_us = store.isolated_issue_us(loop.bytes);
  } else {
    loop.gap_us = p.gap_us;
    loop.residual_us = store.residual_us;
    loop.issue_us = store.issue_us(loop.bytes);
    loop.window_us = std::max(500.0, 50 * p.period_us);
  }
  return run_burst_loop(store.fabric[0], loop);
}

std::vector<model::Sample> samples(const std::string& file) {
  return model::read_samples(std::filesystem::path(kRoot + "/" + file)).value().samples;
}

/// In the long suite every sample, else every fifth.
std::size_t stride() { return std::getenv("XSTAGE_LONG_TESTS") != nullptr ? 1 : 5; }

struct Errors {
  std::vector<double> period, issue;
};

/// Of windowed runs, every `stride`-th.
Errors windowed_errors(const model::Profile& profile, const std::string& file, std::size_t stride) {
  Errors out;
  const auto all = samples(file);
  for (std::size_t i = 0; i < all.size(); i += stride) {
    const model::Sample& s = all[i];
    if (!s.remote || s.both_ways || s.threads != 256) continue;
    model::Workload w{s.producers, s.bytes, s.gap_us, s.mechanism, s.threads, s.both_ways, 0};
    const auto p = model::predict(profile, w);
    if (!p) continue;
    const BurstLoopResult r = simulate(profile, s, *p);
    out.period.push_back(std::abs(r.period_us / s.period_us - 1));
    out.issue.push_back(std::abs(r.issue_mean - s.issue_us));
  }
  return out;
}

// As well as the closed form does: the goals of the model are met by the simulator too.
TEST(FromProfile, WindowedSamplesAreReproduced) {
  const Errors errors = windowed_errors(of_the_data(), "data/h200x2/window_samples.csv", stride());
  ASSERT_GT(errors.period.size(), 100U);
  EXPECT_LE(quantile(errors.period, 0.5), 0.0025);
  EXPECT_LE(quantile(errors.period, 0.95), 0.012);
  EXPECT_LE(quantile(errors.issue, 0.5), 0.015);
  EXPECT_LE(quantile(errors.issue, 0.95), 0.12);
}

// Points that `calibrate` drew at random and did not fit.
TEST(FromProfile, UnseenPointsAreReproducedByTheShippedOne) {
  const Errors errors =
      windowed_errors(shipped(), "results/h200x2/samples_unseen.csv", (stride() + 1) / 2);
  ASSERT_GT(errors.period.size(), 60U);
  EXPECT_LE(quantile(errors.period, 0.5), 0.0025);
  EXPECT_LE(quantile(errors.period, 0.95), 0.012);
  // The closed form reaches 0.006 and 0.065: it knows what the loop's next memory instruction waits
  // for as an expectation, the simulator in grains that were chosen for other kernels.
  EXPECT_LE(quantile(errors.issue, 0.5), 0.02);
  EXPECT_LE(quantile(errors.issue, 0.95), 0.6);
}

TEST(FromProfile, IsolatedSamplesBeyondTheKneeAreReproduced) {
  std::vector<double> issue;
  for (const model::Sample& s : samples("data/h200x2/remote_store_samples.csv")) {
    if (s.experiment != model::Experiment::kIsolated || !s.remote || s.threads != 256) continue;
    model::Workload w{s.producers, s.bytes, 0, s.mechanism, s.threads, false, 0};
    const auto p = model::predict(of_the_data(), w);
    if (!p || s.issue_us <= 1.2 * p->isolated_issue0_us) continue;
    issue.push_back(std::abs(simulate(of_the_data(), s, *p).issue_mean - s.issue_us));
  }
  ASSERT_GT(issue.size(), 20U);
  EXPECT_LE(quantile(issue, 0.5), 0.2);
  EXPECT_LE(quantile(issue, 0.95), 0.7);
}

// SM by SM: 24 SMs are fast, and by as much as measured. Which ones differs from GPU to GPU, and
// these runs were not made on either of those in sm_groups.json, so shares are compared in order of
// size.
TEST(FromProfile, EverySmIsReproduced) {
  const auto set =
      model::read_samples(std::filesystem::path(kRoot + "/data/h200x2/per_sm_bursts.csv")).value();
  std::vector<double> errors;
  std::vector<const model::SmBursts*> run;
  const auto check = [&] {
    if (run.empty()) return;
    const model::SmBursts& first = *run[0];
    const auto store = of_the_data().find(first.mechanism, first.threads);
    if (first.threads == 256 && first.mechanism == model::Mechanism::kStoreV4 && store) {
      model::Sample s;
      s.experiment = model::Experiment::kWindow;
      s.mechanism = first.mechanism;
      s.producers = first.producers;
      s.threads = first.threads;
      s.bytes = first.bytes;
      s.gap_us = first.gap_us;
      model::Workload w{s.producers, s.bytes, s.gap_us, s.mechanism, s.threads, false, 0};
      const BurstLoopResult r =
          simulate(of_the_data(), s, model::predict(of_the_data(), w).value());
      std::vector<double> measured, simulated;
      double all_measured = 0, all_simulated = 0;
      for (const auto* m : run) {
        measured.push_back(static_cast<double>(m->bursts));
        all_measured += measured.back();
      }
      for (const auto& p : r.producers) {
        simulated.push_back(static_cast<double>(p.bursts));
        all_simulated += simulated.back();
      }
      std::sort(measured.begin(), measured.end());
      std::sort(simulated.begin(), simulated.end());
      ASSERT_EQ(measured.size(), simulated.size());
      for (std::size_t i = 0; i < measured.size(); ++i)
        errors.push_back(std::abs(simulated[i] / all_simulated - measured[i] / all_measured) *
                         static_cast<double>(run.size()));
    }
    run.clear();
  };
  for (const model::SmBursts& b : set.sm_bursts) {
    if (!run.empty() && (b.producers != run[0]->producers || b.bytes != run[0]->bytes ||
                         b.gap_us != run[0]->gap_us || b.threads != run[0]->threads ||
                         b.mechanism != run[0]->mechanism))
      check();
    run.push_back(&b);
  }
  check();
  ASSERT_GT(errors.size(), 800U);
  EXPECT_LE(quantile(errors, 0.5),
            0.03);  // shares, 1 on average; bursts are counted in whole numbers
  EXPECT_LE(quantile(errors, 0.95), 0.08);
}

TEST(FromProfile, MeasuredSchedulesAreReproduced) {
  std::ifstream file(kRoot + "/data/h200x2/synthetic_schedule.csv");
  const auto rows = read_schedule_samples(file).value();
  StoreOptions options;
  options.threads = 256;
  const StoreModel store = store_model(shipped(), options).value();
  ScheduleSampleKernel kernel;
  kernel.issue_us = store.issue_us(32768);
  kernel.residual = store.residual;
  const ScheduleValidation v = validate_schedules(store.fabric[0], kernel, rows);
  EXPECT_LE(v.speedup_mean, 0.01);
  EXPECT_LE(v.speedup_worst, 0.025);
  EXPECT_LE(v.time_mean, 0.02);
  EXPECT_LE(v.time_worst, 0.04);
}

TEST(FromProfile, WhatAProfileLacksIsNamed) {
  model::Profile p = shipped();
  p.drain.both_ways_gb_s.reset();
  EXPECT_NE(store_model(p, {}).error().message().find("both"), std::string::npos);
  p = shipped();
  for (auto& m : p.mechanisms) m.capacity.reset();
  EXPECT_NE(store_model(p, {}).error().message().find("capacity"), std::string::npos);
  StoreOptions many;
  many.producers = 1000;
  EXPECT_NE(store_model(shipped(), many).error().message().find("1 to 132"), std::string::npos);
  p = shipped();
  p.topology.clear();
  EXPECT_EQ(store_model(p, {}).value().fabric[0].groups.size(), 1U);
}

}  // namespace
}  // namespace xstage::sim
