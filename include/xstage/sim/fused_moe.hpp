// The fused kernel's launches predicted: the simulator with that kernel's tiles and measured times,
// and the schedule that `auto` takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xstage/model/profile.hpp"
#include "xstage/plan/fused_times.hpp"
#include "xstage/sim/moe_layer.hpp"

namespace xstage::sim {

/// The fused kernel's tile: tokens, and weight rows.
inline constexpr std::int32_t kFusedBlockM = 128, kFusedBlockN = 256;

/// One layer with one routing, ready to be predicted.
struct FusedMoe {
  MoeSetup setup;
  plan::FusedLayerChoice times;
  double link_us = 0;     ///< results that the busiest rank sends or gets, at the drain rate
  double landed_us = 0;   ///< until tokens are there, on the rank where that takes longest
  double unevenness = 1;  ///< rows of the fullest expert over the mean
};

/// What each rank's dispatch moves when a token goes once to each rank that needs it, over a link
/// of `link_rate` bytes a µs out of a rank, and as much into it.
std::vector<plan::DispatchLoad> dispatch_loads(const MoeTraffic& traffic, const MoeLayerSpec& layer,
                                               double link_rate);

/// `layer` in w8a8. The profile must stay.
Result<FusedMoe> set_up_fused_moe(const model::Profile& profile, const plan::FusedTimes& times,
                                  const MoeLayerSpec& layer, const MoeTraffic& traffic);

/// µs of a simulated launch: start, tiles and slot sum; without the layer's correction.
double simulated_us(const FusedMoe& moe, const schedule::MoeSchedule& schedule, std::uint64_t seed);

/// A launch as it is expected to be measured; stalls and waits as simulated.
MoeCandidate predict(const FusedMoe& moe, const schedule::MoeSchedule& schedule,
                     std::uint64_t seed);

/// What `auto` chooses from: the wave, and leads from half of covering_lead() on. A function of the
/// layer and of token counts that all ranks share.
std::vector<schedule::MoeSchedule> fused_candidates(const FusedMoe& moe);

/// Predicts all candidates and chooses the fastest; the wave where it is within `spread` of it.
MoeChoice choose_fused_schedule(const FusedMoe& moe, std::uint64_t seed, double spread = 0.005);

}  // namespace xstage::sim
