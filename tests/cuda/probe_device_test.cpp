// The probe on the GPUs of this machine: records that are complete, rates that agree with a plain
// copy, groups, tiles that are all stored, and signals. Two GPUs are needed.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "cuda/probe/between_gpus.hpp"
#include "cuda/probe/findings.hpp"

namespace xstage::probe {
namespace {

class OnGpus : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Prober>> opened = open_cuda_prober({});
    if (!opened) GTEST_SKIP() << "needs a GPU: " << opened.error().message();
    if ((*opened)->node().gpus < 2) GTEST_SKIP() << "needs a GPU: two of them";
    prober_ = std::move(opened).value();
  }

  double rate(const std::vector<Flow>& flows, Mechanism mechanism, int threads) {
    const BurstRun run =
        window_run(flows, mechanism, prober_->node().sms, threads, 32768, 8192, 0, 373);
    const auto records = prober_->run(run);
    EXPECT_TRUE(records) << records.error().message();
    const Sample s = summarise("window", run, {*records}).front();
    return s.producers * 32768.0 / (s.period_aggregate * 1e3);
  }

  std::unique_ptr<Prober> prober_;
};

TEST_F(OnGpus, EveryProducerRecordsEveryBurst) {
  for (const Mechanism mechanism : model::kMechanisms) {
    const int sms = prober_->node().sms;
    const BurstRun run = isolated_run(one_way(), mechanism, sms,
                                      mechanism == Mechanism::kTmaBulk ? 128 : 256, 16384, 8192);
    const auto records = prober_->run(run);
    ASSERT_TRUE(records) << records.error().message();
    const FlowRecords& flow = records->front();
    ASSERT_EQ(flow.producers.size(), static_cast<std::size_t>(sms));
    std::set<std::uint32_t> seen;
    for (std::size_t i = 0; i < flow.producers.size(); ++i) {
      seen.insert(flow.producers[i].smid);
      EXPECT_EQ(flow.producers[i].bursts, static_cast<std::uint32_t>(run.rounds));
      for (int round = 0; round < run.rounds; ++round)
        EXPECT_GT(flow.rounds[i * kMaxRounds + static_cast<std::size_t>(round)].issue, 0u);
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(sms)) << model::name(mechanism);
  }
}

TEST_F(OnGpus, StoresMoveWhatAPlainCopyMoves) {
  const auto copied = prober_->copy(CopyKind::kCopyKernel, 0, 1);
  ASSERT_TRUE(copied) << copied.error().message();
  EXPECT_NEAR(rate(one_way(), Mechanism::kStoreV4, 256) / *copied, 1, 0.03);
  EXPECT_NEAR(rate(one_way(), Mechanism::kTmaBulk, 128) / *copied, 1, 0.03);
  EXPECT_NEAR(rate(one_way(1, 0), Mechanism::kStoreV4, 1024) / *copied, 1, 0.03);
}

TEST_F(OnGpus, GroupsHoldEverySmOnce) {
  const auto found = find_groups(*prober_, 0, 1);
  ASSERT_TRUE(found) << found.error().message();
  std::set<int> seen;
  for (const auto& group : found->groups) {
    EXPECT_GE(group.size(), 2u);
    seen.insert(group.begin(), group.end());
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(prober_->node().sms));
  EXPECT_LT(found->seconds, 5);
}

TEST_F(OnGpus, TilesAreAllStoredHoweverTheyAreGivenOut) {
  SplitRun run;
  run.bytes = 32768;
  run.tiles = 7 * prober_->node().sms + 5;
  std::vector<int> given(static_cast<std::size_t>(prober_->node().sms), 7);
  for (std::size_t i = 0; i < 5; ++i) ++given[i];
  for (const auto& share : {given, std::vector<int>{}}) {
    run.tiles_of_sm = share;
    const auto done = prober_->split(run);
    ASSERT_TRUE(done) << done.error().message();
    EXPECT_EQ(std::accumulate(done->tiles_done_by_sm.begin(), done->tiles_done_by_sm.end(), 0),
              run.tiles);
    if (!share.empty()) {
      EXPECT_EQ(done->tiles_done_by_sm, share);
    }
  }
}

TEST_F(OnGpus, MessagesArriveAndEarlySignalsAreCaught) {
  for (const Mechanism mechanism : model::kMechanisms) {
    LitmusRun run;
    run.mechanism = mechanism;
    run.rounds = 50'000;
    const auto right = prober_->litmus(run);
    ASSERT_TRUE(right) << right.error().message();
    EXPECT_GE(right->messages, 100'000);
    EXPECT_EQ(right->stale_words, 0u) << model::name(mechanism);
    run.signal = LitmusSignal::kEarly;
    run.payload_bytes = 32768;
    const auto early = prober_->litmus(run);
    ASSERT_TRUE(early) << early.error().message();
    EXPECT_GT(early->stale_messages, 0u) << model::name(mechanism);
  }
}

TEST_F(OnGpus, EveryPairHasARate) {
  const nlohmann::json found = between_gpus(*prober_);
  for (const auto& pair : found["pairs"]) {
    ASSERT_FALSE(pair.contains("error")) << pair.dump();
    EXPECT_GT(pair["aggregate_gb_per_s"].get<double>(), 1);
    EXPECT_GT(pair["sources"][0]["capacity_bytes"].get<double>(), 0);
  }
}

}  // namespace
}  // namespace xstage::probe
