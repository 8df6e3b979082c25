// An attention layer of the command line as a simulated kernel; shared by simulate and plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/layer_options.hpp"
#include "xstage/sim/from_profile.hpp"
#include "xstage/sim/ulysses.hpp"

namespace xstage::cli {

struct UlyssesSimulation {
  sim::StoreOptions store;
  std::optional<int> staging;     ///< absent: one tile for bulk stores, none else
  std::optional<double> tile_us;  ///< absent: the measured rate of attention
};

/// A kernel that lacks nothing but its order.
struct UlyssesSetup {
  sim::StoreModel store;
  sim::UlyssesKernel kernel;
  std::vector<std::string> assumed;
};

Result<UlyssesSetup> ulysses_setup(const model::Profile& profile, const AttentionLayer& layer,
                                   const UlyssesSimulation& options);

std::string order_name(schedule::UlyssesOrderKind order);

}  // namespace xstage::cli
