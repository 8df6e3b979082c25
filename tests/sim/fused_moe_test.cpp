// Predictions of the fused kernel's launches, and what `auto` takes.
#include "xstage/sim/fused_moe.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

namespace xstage::sim {
namespace {

using schedule::MoeScheduleKind;

const model::Profile& profile() {
  static const model::Profile shipped =
      model::load_profile(std::filesystem::path(XSTAGE_SHIPPED_PROFILE)).value();
  return shipped;
}

FusedMoe layer(std::int64_t hidden, std::int64_t intermediate, int experts, std::int64_t topk,
               std::int64_t tokens) {
  MoeTraffic traffic;
  traffic.ranks = 2;
  traffic.experts = experts;
  traffic.tokens.assign(static_cast<std::size_t>(2 * experts),
                        static_cast<std::uint32_t>(tokens * topk / experts));
  MoeLayerSpec spec;
  spec.name = "test";
  spec.hidden = hidden;
  spec.intermediate = intermediate;
  spec.topk = topk;
  spec.tokens = tokens;
  return set_up_fused_moe(profile(), plan::fused_times(), spec, traffic).value();
}

TEST(FusedMoe, MoreTokensAndLargerMatricesTakeLonger) {
  const auto us = [](const FusedMoe& moe) {
    return predict(moe, fused_candidates(moe).back(), 1).time_us;
  };
  const double base = us(layer(2048, 768, 64, 4, 2048));
  EXPECT_GT(us(layer(2048, 768, 64, 4, 8192)), 2 * base);
  EXPECT_GT(us(layer(4096, 2048, 64, 4, 2048)), 2 * base);
}

TEST(FusedMoe, TheLinkTimeIsWhatTheOtherRankGets) {
  const FusedMoe moe = layer(2048, 768, 64, 4, 8192);
  // Half of 32768 rows of 4096 bytes leave, at about 368.5 GB/s.
  EXPECT_NEAR(moe.link_us, 16384.0 * 4096 / 368500, 0.02 * moe.link_us);
}

TEST(FusedMoe, ATokenGoesOnceToEachRankThatNeedsIt) {
  MoeTraffic traffic;
  traffic.ranks = 8;
  traffic.experts = 64;
  traffic.tokens.assign(8 * 64, 64);  // 1024 tokens of 4 experts each, drawn evenly
  MoeLayerSpec spec;
  spec.hidden = 2048;
  spec.topk = 4;
  spec.tokens = 1024;
  constexpr double kRate = 1e5;
  // A token misses a rank's eight experts with (1 - 1/16)^8 here, where they are drawn one by one.
  const double here = 1 - std::pow(1 - 1.0 / 16, 8);
  for (const plan::DispatchLoad& load : dispatch_loads(traffic, spec, kRate)) {
    EXPECT_NEAR(load.link_us, 7 * here * 1024 * 2048 * (1 + 1.0 / 32) / kRate, 1e-6);
    EXPECT_NEAR(load.read_mb, 8 * here * 1024 * 2048e-6, 1e-9);
    EXPECT_NEAR(load.written_mb, 4 * 1024 * 2048e-6, 1e-9);
    EXPECT_NEAR(load.own_mb, 1024 * 2048e-6, 1e-12);
  }
  // As counted, where it was; all of rank 3's senders meet there.
  traffic.distinct.assign(64, 0);
  for (int source = 0; source < 8; ++source)
    traffic.distinct[static_cast<std::size_t>(3 * 8 + source)] = 1000;
  const auto loads = dispatch_loads(traffic, spec, kRate);
  EXPECT_NEAR(loads[3].link_us, 7000 * 2048 * (1 + 1.0 / 32) / kRate, 1e-6);
  EXPECT_NEAR(loads[0].link_us, 1000 * 2048 * (1 + 1.0 / 32) / kRate, 1e-6);
  EXPECT_NEAR(loads[3].read_mb, 8000 * 2048e-6, 1e-9);
}

TEST(FusedMoe, TheChoiceIsTheFastestPredictionOrTheWaveBesideIt) {
  EXPECT_TRUE(rc::check("choice", [] {
    const auto hidden = 256 * *rc::gen::inRange<std::int64_t>(2, 9);
    const auto intermediate = 128 * *rc::gen::inRange<std::int64_t>(1, 9);
    const FusedMoe moe =
        layer(hidden, intermediate, *rc::gen::element(8, 32, 64),
              *rc::gen::inRange<std::int64_t>(1, 9), *rc::gen::element(0, 64, 700, 2048));
    const MoeChoice choice = choose_fused_schedule(moe, 1, 0.01);
    const MoeChoice again = choose_fused_schedule(moe, 1, 0.01);
    RC_ASSERT(choice.best == again.best);
    RC_ASSERT(!choice.reason.empty());
    const double taken = choice.candidates[choice.best].time_us;
    const std::int64_t cover = schedule::covering_lead(moe.setup.kernel.tiling, moe.setup.workers);
    for (const MoeCandidate& candidate : choice.candidates) {
      RC_ASSERT(taken <= candidate.time_us * 1.01 + 1e-9);
      RC_ASSERT(candidate.schedule.kind == MoeScheduleKind::kWave ||
                2 * candidate.schedule.lead >= cover);
    }
  }));
}

}  // namespace
}  // namespace xstage::sim
