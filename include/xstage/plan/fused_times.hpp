// What the fused MoE kernel's parts were measured to take on a node, and what its whole launches
// took beside the simulated ones: made by `xstage bench moe --table kernel`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "xstage/plan/tile_times.hpp"
#include "xstage/result.hpp"

namespace xstage::plan {

/// base_us + per_unit·units; the unit is said where one is used.
struct FusedLine {
  double base_us = 0;
  double per_unit = 0;
  double at(double units) const { return base_us + per_unit * units; }
};

/// What a rank's dispatch moves; MB are 10^6 bytes of token values.
struct DispatchLoad {
  double link_us = 0;     ///< its tokens on the way out or others' on the way in, the longer one
  double own_mb = 0;      ///< its own tokens, quantised once
  double read_mb = 0;     ///< tokens that landed here, each once
  double written_mb = 0;  ///< tokens in the rows of their experts
};

/// Until tiles begin. Tokens have landed after what their way over the link takes, and a line in
/// the rank's own tokens beside it; then they are put into rows.
struct FusedStart {
  FusedLine landed;  ///< beside the link; a MB of own tokens
  double fill_us = 0, per_read_mb = 0, per_written_mb = 0;

  double landed_us(const DispatchLoad& load) const { return load.link_us + landed.at(load.own_mb); }
  double at(const DispatchLoad& load) const {
    return landed_us(load) + fill_us + per_read_mb * load.read_mb +
           per_written_mb * load.written_mb;
  }
};

/// One linear alone, as a grouped GEMM: expert_us for each expert that has tokens, row_us for each
/// row of 128 tokens.
struct FusedProducts {
  double expert_us = 0;
  double row_us = 0;
};

/// A launch as the simulator sees it.
struct FusedLaunch {
  double simulated_us = 0;
  double link_us = 0;     ///< that the busiest rank's results take on the link
  double unevenness = 1;  ///< rows of the fullest expert over the mean
};

/// What a measured launch took over what the line says.
struct FusedResidual {
  FusedLaunch launch;
  double over_line = 1;
};

/// From a simulated launch to a measured one under one schedule: a line,
/// base_us + per_us · simulated µs + per_link_us · link µs, times what measured launches of about
/// this size, link share and unevenness took over it. Far from all of them the line remains.
struct FusedCorrection {
  std::int64_t lead = 0;  ///< 0: the expert wave
  double base_us = 0;
  double per_us = 1;
  double per_link_us = 0;
  std::vector<FusedResidual> residuals = {};

  double line(const FusedLaunch& launch) const {
    return base_us + per_us * launch.simulated_us + per_link_us * launch.link_us;
  }
  double at(const FusedLaunch& launch) const;
};

struct FusedLayerTimes {
  std::string name;
  std::int64_t hidden = 0, intermediate = 0;
  FusedProducts linear1, linear2;
  std::vector<FusedCorrection>
      corrections;  ///< the wave first, then leads in order; none: as simulated

  /// Of the wave (lead 0), or of the measured lead nearest by ratio.
  FusedCorrection correction(std::int64_t lead) const;
};

struct FusedTimes {
  std::string node;
  FusedStart start;
  /// The sum over slots; a MB read and written.
  FusedLine slot_sum;
  std::vector<FusedLayerTimes> layers;
};

/// The reader of the file; errors name the field.
Result<FusedTimes> parse_fused_times(std::string_view json);

/// data/h200x2/moe_kernel.json.
const FusedTimes& fused_times();

/// Times for a layer: of the measured one of its name, else of its sizes; else assumed, the median
/// of the measured rates and corrections. `measured` says which.
struct FusedLayerChoice {
  FusedLayerTimes times;
  std::string source;
  bool measured = false;
};
FusedLayerChoice times_of(const FusedTimes& times, const std::string& name, std::int64_t hidden,
                          std::int64_t intermediate);

}  // namespace xstage::plan
