// From a layer and a node to a simulated MoE kernel: tile times, traffic, bytes, and which of these
// are measured and which assumed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "xstage/model/profile.hpp"
#include "xstage/plan/tile_times.hpp"
#include "xstage/result.hpp"
#include "xstage/sim/from_profile.hpp"
#include "xstage/sim/moe.hpp"

namespace xstage::sim {

/// Sizes in elements.
struct MoeLayerSpec {
  std::string name;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t topk = 0;
  std::int64_t tokens = 0;      ///< a rank
  double weight_bytes = 1;      ///< of an element: 1 (fp8), 2 (bf16), 0.5 (fp4)
  double activation_bytes = 1;  ///< 1: with a scale for 128 elements, 2: without
};

/// How tokens reach the experts' ranks.
enum class Dispatch : std::uint8_t {
  kOncePerRank,  ///< every token once to each rank that needs it
  kOncePerPair   ///< every token once for each of its experts
};

struct MoeOptions {
  StoreOptions store;
  int staging = -1;  ///< -1: one tile for bulk stores, none else (the math warps store themselves)
  std::int32_t block_m = 128;
  std::int32_t block_n = 128;
  Dispatch dispatch = Dispatch::kOncePerRank;
  bool claimed = false;
  std::int64_t buffers = 0;
  std::optional<double> linear1_us, linear2_us;  ///< time of a tile, in place of the rate table
};

/// A kernel that lacks nothing but its schedule.
struct MoeSetup {
  StoreModel store;
  MoeTraffic traffic;
  MoeKernel kernel;
  plan::TileTimes times;
  std::vector<std::string> assumed;
  std::int32_t workers = 0;
  std::int64_t most_rows = 0;  ///< of one rank
  std::int64_t pairs = 0;      ///< (token, expert) pairs of all ranks
  double remote_fraction = 0;  ///< of them
  double tile_bytes = 0;       ///< a Linear-2 tile's, all rows filled, all remote
  std::vector<std::vector<std::uint32_t>> local_tokens;  ///< [rank][local expert]
};

Result<MoeSetup> set_up_moe(const model::Profile& profile, const MoeLayerSpec& layer,
                            const MoeTraffic& traffic, const MoeOptions& options);

/// The wave schedule with the group that fills the machine about twice.
schedule::MoeSchedule wave_schedule(const MoeSetup& setup);

/// Leads worth trying: the covering lead and multiples of it, up to all rows.
std::vector<std::int64_t> candidate_leads(const MoeSetup& setup);

struct MoeCandidate {
  schedule::MoeSchedule schedule;
  double time_us = 0;
  double stall_us = 0;  ///< of an SM, mean over SMs and ranks
  double wait_us = 0;   ///< for Linear-1, likewise
};

struct MoeChoice {
  std::vector<MoeCandidate> candidates;  ///< the wave first, then leads in order
  std::size_t best = 0;                  ///< chosen
  std::string reason;
};

/// Simulates the wave and several leads and chooses: the fastest, or the wave where it is within
/// `spread` of it (run-to-run spread of a real kernel; the simpler schedule then wins).
Result<MoeChoice> choose_moe_schedule(const MoeSetup& setup, std::uint64_t seed,
                                      double spread = 0.005);

MoeResult simulate_moe(const MoeSetup& setup, const schedule::MoeSchedule& schedule,
                       std::uint64_t seed, const TimelineOptions& timeline = {});

}  // namespace xstage::sim
