// What a calibration keeps when something goes wrong in the middle of it.
#include "cuda/probe/campaign.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "cuda/fake_prober.hpp"
#include "cuda/probe/between_gpus.hpp"
#include "cuda/probe/calibration.hpp"

namespace xstage::probe {
namespace {

std::vector<Stage> three_stages() {
  std::vector<Stage> stages{{"first", {}}, {"second", {}}, {"third", {}}};
  for (Stage& stage : stages)
    for (int i = 0; i < 4; ++i)
      stage.runs.push_back({"window",
                            window_run(one_way(), model::Mechanism::kStoreV4, 4, 256,
                                       4096u * static_cast<unsigned>(i + 1), 0, 1.0, 100),
                            true});
  return stages;
}

TEST(Campaign, AFailedRunIsKeptUnderItsStageAndEndsNothing) {
  FakeProber prober;
  prober.fault = [](int run) -> std::optional<Error> {
    if (run == 6) return Error{ErrorKind::kTimeout, "a wait ran out", "gpu", "1", "answers"};
    return std::nullopt;
  };
  const std::atomic<bool> stop{false};
  Campaign campaign(prober, {}, stop);
  EXPECT_TRUE(campaign.carry_out(three_stages()));
  EXPECT_EQ(campaign.samples().size(), 11u);
  ASSERT_EQ(campaign.failures().size(), 1u);
  EXPECT_EQ(campaign.failures()[0].stage, "second");
  EXPECT_NE(campaign.failures()[0].point.find("8192 bytes"), std::string::npos);
  EXPECT_EQ(campaign.stages()[1].done, 3u);
  EXPECT_EQ(campaign.stages()[1].failed, 1u);
  const nlohmann::json failures = campaign.failures_json();
  EXPECT_NE(failures[0]["message"].get<std::string>().find("a wait ran out"), std::string::npos);
}

TEST(Campaign, LostGpusEndIt) {
  FakeProber prober;
  prober.fault = [](int run) -> std::optional<Error> {
    if (run > 5) return Error{ErrorKind::kNoGpu, "the device is lost", {}, {}, {}};
    return std::nullopt;
  };
  const std::atomic<bool> stop{false};
  Campaign campaign(prober, {}, stop);
  EXPECT_FALSE(campaign.carry_out(three_stages()));
  EXPECT_EQ(prober.runs, 8);  // three failures in a row, then no more
  EXPECT_EQ(campaign.samples().size(), 5u);
}

TEST(Campaign, InterruptionKeepsWhatIsDone) {
  FakeProber prober;
  std::atomic<bool> stop{false};
  prober.before = [&](int run) {
    if (run == 7) stop = true;
  };
  Campaign campaign(prober, {}, stop);
  EXPECT_FALSE(campaign.carry_out(three_stages()));
  EXPECT_EQ(campaign.samples().size(), 7u);
  const auto set = campaign.sample_set();
  ASSERT_TRUE(set);
  EXPECT_EQ(set->samples.size(), 7u);
}

TEST(Campaign, RunsWhoseClockMovedAreMarkedAndNotFitted) {
  FakeProber prober;
  prober.clock = [](int run) { return run == 3 ? 1.9 : 2.0; };
  const std::atomic<bool> stop{false};
  Campaign campaign(prober, {}, stop);
  ASSERT_TRUE(campaign.carry_out(three_stages()));
  campaign.mark_clocks();
  EXPECT_TRUE(campaign.samples()[2].clock_moved);
  EXPECT_FALSE(campaign.samples()[3].clock_moved);
  EXPECT_EQ(campaign.clock_json()["marked"], 1);
  EXPECT_DOUBLE_EQ(campaign.clock_json()["median_ghz"].get<double>(), 2.0);
  EXPECT_EQ(campaign.sample_set()->samples.size(), 11u);
  // Marked runs stay in the file.
  const std::string csv = campaign.window_csv();
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 13);
}

TEST(Calibration, InterruptedOneSaysSoAndHasItsSamples) {
  FakeProber prober;
  std::atomic<bool> stop{false};
  prober.before = [&](int run) {
    if (run == 200) stop = true;
  };
  const Calibration done = calibrate(prober, {}, {}, stop);
  ASSERT_TRUE(done.error);
  EXPECT_EQ(done.error->kind, ErrorKind::kInterrupted);
  EXPECT_FALSE(done.fit);
  EXPECT_GT(std::count(done.window_csv.begin(), done.window_csv.end(), '\n'), 10);
}

TEST(Calibration, AFailedCaseEndsItWithCheckFailedAndEverythingElse) {
  FakeProber prober;
  prober.fault = [](int run) -> std::optional<Error> {
    if (run == 300) return Error{ErrorKind::kTimeout, "a wait ran out", {}, {}, {}};
    return std::nullopt;
  };
  const std::atomic<bool> stop{false};
  CalibrationOptions options;
  options.depth = Depth::kQuick;
  const Calibration done = calibrate(prober, options, {}, stop);
  ASSERT_TRUE(done.error);
  EXPECT_EQ(done.error->kind, ErrorKind::kCheckFailed);
  EXPECT_EQ(done.findings["failed_cases"].size(), 1u);
  EXPECT_TRUE(done.fit);
}

TEST(Calibration, FindsTheRateOfTheFakeNodeAndWritesNoEnvironment) {
  ::setenv("XSTAGE_TEST_TOKEN", "do-not-write-me-4711", 1);
  FakeProber prober;
  const std::atomic<bool> stop{false};
  CalibrationOptions options;
  options.depth = Depth::kQuick;
  options.validate = 20;
  options.litmus_rounds = 1000;
  const Calibration done = calibrate(prober, options, {}, stop);
  ASSERT_TRUE(done.fit);
  EXPECT_NEAR(done.fit->profile.drain.one_way_gb_s, FakeProber::kRate * 1e-3, 1);
  const std::string all = done.findings.dump() + done.validation.dump() + done.window_csv +
                          done.burst_csv + done.per_sm_csv + done.groups_csv +
                          model::to_json(done.fit->profile).dump();
  EXPECT_EQ(all.find("4711"), std::string::npos);
  const char* home = std::getenv("HOME");
  if (home != nullptr && std::string(home).size() > 1) {
    EXPECT_EQ(all.find(home), std::string::npos);
  }
}

RC_GTEST_PROP(Plan, SameSeedSamePointsAndAllOfThemAllowed, (std::uint64_t seed)) {
  ProbeNode node;
  node.gpus = 2;
  node.sms = 132;
  const auto one = validation_plan(node, 40, 16, seed, 373);
  const auto two = validation_plan(node, 40, 16, seed, 373);
  RC_ASSERT(one[0].runs.size() == 56u);
  for (std::size_t i = 0; i < one[0].runs.size(); ++i) {
    const BurstRun& run = one[0].runs[i].run;
    RC_ASSERT(describe(run) == describe(two[0].runs[i].run));
    RC_ASSERT(run.producers >= 1 && run.producers <= node.sms);
    RC_ASSERT(run.bytes % 256 == 0 && run.bytes > 0);
    RC_ASSERT(run.gap_us >= 0);
  }
}

TEST(Plan, FullCoversEveryMechanismDirectionAndControl) {
  ProbeNode node;
  node.gpus = 4;
  node.sms = 132;
  int local = 0, both = 0;
  std::map<model::Mechanism, int> mechanisms;
  for (const Stage& stage : calibration_plan(node, {}))
    for (const PlannedRun& planned : stage.runs) {
      ++mechanisms[planned.run.mechanism];
      const auto& flows = planned.run.flows;
      local += flows[0].targets[0] == flows[0].source ? 1 : 0;
      both += flows.size() == 2 ? 1 : 0;
    }
  EXPECT_EQ(mechanisms.size(), 4u);
  EXPECT_GT(local, 0);
  EXPECT_GT(both, 0);
}

// A switch: every GPU sends and receives at most the node's rate, and shares fairly.
TEST(BetweenGpus, EveryPatternOfFourAndEightHasItsRatesAndCapacities) {
  for (const int gpus : {2, 4, 8}) {
    FakeProber prober(gpus);
    const nlohmann::json found = between_gpus(prober);
    const double rate = FakeProber::kRate * 1e-3;
    ASSERT_EQ(found["pairs"].size(), static_cast<std::size_t>(gpus * (gpus - 1)));
    for (const auto& pair : found["pairs"]) {
      EXPECT_NEAR(pair["aggregate_gb_per_s"].get<double>(), rate, 0.01 * rate);
      EXPECT_NEAR(pair["sources"][0]["capacity_bytes"].get<double>(),
                  FakeProber::kCapacity * prober.node().sms, 2e3);
    }
    ASSERT_EQ(found["all_to_one"].size(), gpus > 2 ? static_cast<std::size_t>(gpus) : 0u);
    for (const auto& one : found["all_to_one"]) {
      EXPECT_EQ(one["sources"].size(), static_cast<std::size_t>(gpus - 1));
      EXPECT_NEAR(one["aggregate_gb_per_s"].get<double>(), rate, 0.01 * rate);
      for (const auto& source : one["sources"]) {
        EXPECT_NE(source["from"], one["to"]);
        EXPECT_NEAR(source["gb_per_s"].get<double>(), rate / (gpus - 1), 0.01 * rate);
        EXPECT_NEAR(source["capacity_bytes"].get<double>(),
                    FakeProber::kCapacity * prober.node().sms, 2e3);
      }
    }
    const auto& all = found["all_to_all"];
    ASSERT_EQ(all["sources"].size(), static_cast<std::size_t>(gpus));
    EXPECT_NEAR(all["aggregate_gb_per_s"].get<double>(), gpus * rate, 0.01 * gpus * rate);
    double all_capacity = 0;
    for (const auto& source : all["sources"]) {
      ASSERT_EQ(source["peers"].size(), static_cast<std::size_t>(gpus - 1));
      double sum = 0, capacity = 0;
      for (const auto& peer : source["peers"]) {
        EXPECT_NE(peer["to"], source["from"]);
        sum += peer["gb_per_s"].get<double>();
        capacity += peer["capacity_bytes"].get<double>();
      }
      EXPECT_NEAR(capacity, source["capacity_bytes"].get<double>(), 2e3);
      all_capacity += source["capacity_bytes"].get<double>();
      EXPECT_NEAR(sum, source["gb_per_s"].get<double>(), 1e-6 * rate);
    }
    EXPECT_NEAR(all["aggregate_capacity_bytes"].get<double>(), all_capacity, 1);
  }
}

TEST(BetweenGpus, APatternThatFailsLeavesTheOthers) {
  FakeProber prober(4);
  prober.fault = [](int run) -> std::optional<Error> {
    if (run == 3) return Error{ErrorKind::kTimeout, "a wait ran out", {}, {}, {}};
    return std::nullopt;
  };
  const nlohmann::json found = between_gpus(prober);
  ASSERT_EQ(found["pairs"].size(), 12u);
  EXPECT_TRUE(found["pairs"][1].contains("error"));
  EXPECT_EQ(found["pairs"][1]["to"], 2);
  EXPECT_FALSE(found["pairs"][2].contains("error"));
  EXPECT_TRUE(found["all_to_all"].contains("sources"));
}

TEST(Calibration, OfFourGpusHasAllPatternsAndOneProfile) {
  FakeProber prober(4);
  const std::atomic<bool> stop{false};
  CalibrationOptions options;
  options.depth = Depth::kQuick;
  const Calibration done = calibrate(prober, options, {}, stop);
  ASSERT_FALSE(done.error) << done.error->message();
  ASSERT_TRUE(done.fit);
  EXPECT_EQ(done.fit->profile.node.gpus, 4);
  EXPECT_EQ(done.findings["between_gpus"]["all_to_one"].size(), 4u);
  EXPECT_EQ(done.findings["sm_groups"].size(), 4u);
}

}  // namespace
}  // namespace xstage::probe
