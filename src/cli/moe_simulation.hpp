// A MoE layer of the command line as a simulated kernel; shared by simulate and plan.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/layer_options.hpp"
#include "xstage/sim/moe_layer.hpp"

namespace xstage::cli {

/// Tiles of one schedule beyond which nothing is simulated: a plan simulates up to ten schedules,
/// at one to five µs a tile. For every layer and every verb that simulates.
inline constexpr std::int64_t kMostSimulatedTiles = std::int64_t{1} << 20;

/// (token, expert) pairs beyond which no routing is drawn to simulate or plan with: as many as that
/// many tiles hold in the narrowest layer, drawn in seconds.
inline constexpr std::int64_t kMostPlannedPairs = std::int64_t{1} << 26;

/// Why the layer, with so many tokens a rank, is not drawn or simulated; nothing: it is.
std::optional<Error> too_many_pairs(const MoeLayer& layer, std::int64_t tokens);
std::optional<Error> too_many_tiles(const MoeLayer& layer, std::int64_t tokens,
                                    std::int32_t block_n = 128);

/// A layer and who sends how many tokens to which expert, as the simulator takes them.
struct SimulatedLayer {
  sim::MoeLayerSpec spec;
  sim::MoeTraffic traffic;
};
SimulatedLayer simulated_layer(const MoeLayer& layer, const shapes::Routing& routing);

/// Draws the routing, counts who sends what to whom, and sets the kernel up. `layer` gets its
/// number of tokens from the routing where a file decides it.
Result<sim::MoeSetup> moe_setup(const model::Profile& profile, const MoeLayer& layer,
                                const sim::MoeOptions& options);

/// A schedule with the simulated times that it was chosen by.
struct ChosenMoeSchedule {
  schedule::MoeSchedule schedule;
  nlohmann::json choice;      ///< as candidate_json(), with "reason"
  nlohmann::json candidates;  ///< candidate_json() of all that were simulated
  nlohmann::json assumed;
};

/// What `simulate moe` chooses for the layer. Every input is the same on all ranks: sizes, profile,
/// seed, and the counts of the whole group (a group of processes gathers those first). So every
/// rank that computes it gets the same schedule, and layout::agreed() would name one that did not.
Result<ChosenMoeSchedule> choose_schedule(const model::Profile& profile, const MoeLayer& layer,
                                          sim::Dispatch dispatch);

/// {"schedule", "lead", "group", "time_us", "stall_us", "method": "simulation"}
nlohmann::json candidate_json(const sim::MoeCandidate& candidate);

/// Tiling, tile times with their source, store mechanism and staging.
nlohmann::json kernel_json(const sim::MoeSetup& setup);

}  // namespace xstage::cli
