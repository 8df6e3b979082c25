// The fused MoE layer with random weights and tokens made on the GPUs, for measurements; beside it
// what its products cost alone. No CUDA types: the command line compiles where there is no CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "xstage/layout/check.hpp"
#include "xstage/result.hpp"

namespace xstage::moe {

/// Where a rank's tokens go.
struct TimedRouting {
  std::int64_t tokens = 0;
  const std::int32_t* experts = nullptr;  ///< [tokens][k]
  const float* weights = nullptr;         ///< [tokens][k]
};

struct TimedLaunches {
  schedule::MoeSchedule schedule;
  layout::MoeDispatch dispatch = layout::MoeDispatch::kPerRank;
  int warm_up = 2;
  int launches = 9;
  bool cold = false;  ///< L2 is overwritten before each launch
};

/// Where the time of a launch went, µs.
struct LaunchPhases {
  /// From the first block's begin until the last block of the slowest rank had begun with tiles,
  /// had all results for its own tokens, and was done.
  double start = 0, combined = 0, end = 0;
  /// All marks of the kernel by name: points in time as above, then durations, a block's on
  /// average.
  std::vector<std::pair<std::string, double>> marks;
};

class TimedLayer {
 public:
  virtual ~TimedLayer() = default;
  virtual const layout::MoeLayout& layout() const = 0;

  virtual Result<bool> set_routing(const std::vector<TimedRouting>& of_rank) = 0;

  /// µs of each launch, by events around it: the slowest rank's.
  virtual Result<std::vector<double>> time(const TimedLaunches& what) = 0;

  /// The last of `launches` launches in a row.
  virtual Result<LaunchPhases> phases(const TimedLaunches& what) = 0;

  /// µs of Linear-1 and Linear-2 as grouped GEMMs around the same tiles, without anything else, for
  /// the rows of the routing; all GPUs at once, the slowest one's.
  virtual Result<std::array<std::vector<double>, 2>> time_products(int launches) = 0;

  /// The same with one matrix for all rows of the busiest rank, by cuBLAS, one scale a tensor.
  /// Absent where the library is not installed.
  virtual Result<std::optional<std::array<std::vector<double>, 2>>> time_cublas(int launches) = 0;
};

/// Memory of its GPU that a rank of a timed layer takes, with what its products alone need.
/// `config` with the kernel's tiles and workers; what it refuses has no size.
Result<std::int64_t> timed_bytes(const layout::MoeConfig& config);

/// Rank r on GPU r. Tile sizes and workers of `config` are replaced by the kernel's own. What does
/// not fit into the memory of the GPUs is refused before anything is allocated.
Result<std::unique_ptr<TimedLayer>> open_timed_layer(layout::MoeConfig config, std::uint64_t seed);

}  // namespace xstage::moe
