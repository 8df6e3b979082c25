// Plans: their numbers follow from the model's, and their choice from their numbers.
#include "xstage/plan/plan.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <numeric>

namespace xstage::plan {
namespace {

const model::Profile& profile() {
  static const model::Profile p =
      model::load_profile(std::string(XSTAGE_SOURCE_DIR) + "/profiles/h200-nv18-x2.json").value();
  return p;
}

/// Every expert of every rank gets `tokens` rows; `remote_percent` of them come from elsewhere.
MoeProblem even(std::int64_t hidden, std::int64_t intermediate, int ranks, std::uint32_t tokens,
                int remote_percent) {
  MoeProblem p;
  p.hidden = hidden;
  p.intermediate = intermediate;
  p.topk = 8;
  p.experts = 16 * ranks;
  p.tokens = 16 * tokens / 8;
  for (int r = 0; r < ranks; ++r) {
    MoeRankLoad load;
    load.expert_tokens.assign(16, tokens);
    load.remote_rows = std::int64_t{16} * tokens * remote_percent / 100;
    load.remote_tokens = load.remote_rows / 4;
    p.ranks.push_back(load);
  }
  return p;
}

TEST(MoePlan, LinkBoundLayerInterleavesAndSaysWhy) {
  const auto plan = plan_moe(profile(), even(2048, 768, 2, 1024, 50), given_rate(1000));
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  ASSERT_EQ(plan->phases.size(), 3u);
  const Phase& wave = plan->phases[1];
  const Phase& mixed = plan->phases[2];
  EXPECT_EQ(wave.tile_bytes, 128 * 128 * 2 / 2);
  EXPECT_NEAR(wave.tile_us, 2.0 * 128 * 128 * 768 * 132 / 1000e6, 1e-9);
  EXPECT_EQ(wave.prediction->regime, model::Regime::kDrainLimited);
  EXPECT_GT(wave.stall_per_tile_us, 1);
  EXPECT_LT(mixed.stall_per_tile_us, 0.1);
  EXPECT_EQ(plan->schedules[plan->chosen].schedule, "interleaved");
  EXPECT_GE(*plan->schedules[plan->chosen].lead, 1);
  EXPECT_NE(plan->reason.find("stalls"), std::string::npos);
  EXPECT_EQ(plan->mechanism, model::Mechanism::kTmaBulk);
}

TEST(MoePlan, ComputeBoundLayerKeepsTheWave) {
  const auto plan = plan_moe(profile(), even(7168, 3072, 2, 1024, 50), given_rate(1000));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->schedules[plan->chosen].schedule, "wave");
  EXPECT_EQ(plan->phases[1].stall_per_tile_us, 0);
}

TEST(MoePlan, NothingRemoteNothingStored) {
  for (const int ranks : {1, 2}) {
    const auto plan = plan_moe(profile(), even(2048, 768, ranks, 1024, 0), given_rate(1000));
    ASSERT_TRUE(plan.ok());
    EXPECT_FALSE(plan->phases[1].prediction.has_value());
    EXPECT_EQ(plan->schedules[0].time_us, plan->schedules[1].time_us);
  }
}

TEST(MoePlan, EmptyRanksAreNormal) {
  const auto plan = plan_moe(profile(), even(2048, 768, 2, 0, 0), given_rate(1000));
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  EXPECT_EQ(plan->math_us, 0);
}

TEST(MoePlan, Laws) {
  EXPECT_TRUE(rc::check(
      "choice is the faster order; nothing beats the bound; more traffic never helps", [] {
        const std::int64_t hidden = 128 * *rc::gen::inRange(1, 65);
        const std::int64_t intermediate = 128 * *rc::gen::inRange(1, 49);
        const int ranks = *rc::gen::inRange(2, 9);
        const auto tokens = static_cast<std::uint32_t>(*rc::gen::inRange(1, 2000));
        const int remote = *rc::gen::inRange(0, 91);
        const MathRates rates = given_rate(*rc::gen::inRange(100, 2000));
        const auto plan =
            plan_moe(profile(), even(hidden, intermediate, ranks, tokens, remote), rates);
        RC_ASSERT(plan.ok());
        const ScheduleEstimate& wave = plan->schedules[0];
        const ScheduleEstimate& mixed = plan->schedules[1];
        RC_ASSERT(wave.time_us >= plan->bound_us * (1 - 1e-9));
        RC_ASSERT(mixed.time_us >= plan->bound_us * (1 - 1e-9));
        RC_ASSERT(mixed.stall_us <= wave.stall_us * (1 + 1e-6) + 1e-6);
        RC_ASSERT(plan->schedules[plan->chosen].time_us <=
                  std::min(wave.time_us, mixed.time_us) * 1.0051);
        const auto more =
            plan_moe(profile(), even(hidden, intermediate, ranks, tokens, remote + 10), rates);
        RC_ASSERT(more->schedules[0].time_us >= wave.time_us * (1 - 1e-9));
      }));
}

TEST(MoePlan, BadInputIsNamed) {
  MoeProblem p = even(2048, 768, 2, 1024, 50);
  p.hidden = 0;
  EXPECT_EQ(plan_moe(profile(), p, given_rate(1000)).error().field, "hidden");
  p = even(2048, 768, 2, 1024, 50);
  EXPECT_EQ(plan_moe(profile(), p, given_rate(0)).error().field, "tflops");
  EXPECT_EQ(plan_moe(profile(), p, given_rate(std::nan(""))).error().field, "tflops");
  EXPECT_EQ(
      plan_moe(profile(), p, given_rate(1000), {model::Mechanism::kStoreV4, 77}).error().field,
      "threads");
  p.ranks.clear();
  EXPECT_EQ(plan_moe(profile(), p, given_rate(1000)).error().field, "ranks");
}

TEST(Rates, MeasuredLayersComeFromTheTable) {
  const MatrixWork lingbot{"lingbot-video", 2048, 768, 1, 1};
  // 64 local experts of 1024 tokens: 512 rows, as in the measured run of 8192 tokens a rank.
  const MathRates many = moe_rates(lingbot, 128, 2, 512, 128, 128, 132);
  EXPECT_FALSE(many.assumed);
  const double measured = 2.0 * 8192 * 8 * 2048 * 2 * 768 / 327e6;
  EXPECT_NEAR(many.first / measured, 1,
              0.12);  // experts' rows are spread by 20 %: part-filled rows
  const MathRates few = moe_rates(lingbot, 128, 2, 64, 128, 128, 132);
  EXPECT_LT(few.first, many.first) << "weights are read once however few rows there are";
  EXPECT_TRUE(moe_rates({"lingbot-video", 2048, 768, 2, 2}, 128, 2, 512, 128, 128, 132).assumed);
  EXPECT_TRUE(moe_rates({"another", 1152, 4608, 1, 1}, 8, 2, 512, 128, 128, 132).assumed);
}

TEST(Rates, AssumedWeightsComeNoFasterThanMemoryGivesThem) {
  // One row an expert, so that reading weights is all there is: times of both linears of a rank.
  const MatrixWork layer{"custom", 8192, 4096, 1, 1};
  const auto tiling = schedule::moe_tiling(layer.hidden, layer.intermediate, 128, 128);
  const TileTimes times = tile_times(layer, 256, 2, 128, tiling, 132);
  EXPECT_TRUE(times.assumed);
  const double us = 128.0 * (tiling.n1 * times.linear1_us + tiling.n2 * times.linear2_us) / 132;
  EXPECT_GE(us, 128.0 * 3 * 8192 * 4096 / (1000 * kMemoryGbPerS));
  EXPECT_NE(times.source.find("weights read at 4.3 TB/s"), std::string::npos) << times.source;
  EXPECT_EQ(times.source.find("assumed"), std::string::npos) << "said by who prints it";
}

TEST(UlyssesPlan, LongSequencesHideTheirOutput) {
  UlyssesProblem p;
  p.seq = 8192;
  p.heads_local = 4;
  p.head_dim = 128;
  p.ranks = 8;
  const auto plan = plan_ulysses(profile(), p, given_rate(650));
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  EXPECT_EQ(plan->schedules[plan->chosen].schedule, "remote-first");
  EXPECT_EQ(plan->phases[0].stall_per_tile_us, 0);
  EXPECT_LE(plan->schedules[0].time_us, plan->schedules[1].time_us);
  EXPECT_LT(plan->schedules[0].time_us / plan->math_us, 1.02);
  ASSERT_TRUE(plan->overlap.has_value());
  EXPECT_NEAR(plan->overlap->residual_us, plan->schedules[plan->chosen].time_us - plan->math_us,
              1e-9);
  EXPECT_NEAR(plan->overlap->hidden_share, 1 - plan->overlap->residual_us / plan->overlap->push_us,
              1e-12);
  EXPECT_GT(plan->overlap->push_us, plan->combine_us);
  EXPECT_GT(plan->overlap->hidden_share, 0.9);
  p.ranks = 1;
  EXPECT_FALSE(plan_ulysses(profile(), p, given_rate(650))->phases[0].prediction.has_value());
  EXPECT_FALSE(plan_ulysses(profile(), p, given_rate(650))->overlap.has_value());
  p.seq = 0;
  EXPECT_EQ(plan_ulysses(profile(), p, given_rate(650)).error().field, "seq");
}

}  // namespace
}  // namespace xstage::plan
