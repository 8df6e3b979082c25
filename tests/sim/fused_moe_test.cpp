// Predictions of the fused kernel's launches, and what `auto` takes.
#include "xstage/sim/fused_moe.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

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
