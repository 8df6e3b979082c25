// Which runs a calibration is made of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/probe/prober.hpp"

namespace xstage::probe {

enum class Depth { kQuick, kFull };

/// One run and the experiment its samples belong to.
struct PlannedRun {
  std::string experiment;  ///< window, isolated, aligned, free or shared_load
  BurstRun run;
  bool per_sm = false;  ///< keep what every SM did
  int launches = 1;     ///< of the same run, whose bursts make one sample
};

/// Runs that belong together, in the order in which they are made: what the model needs most comes
/// first, so that an interrupted calibration has the best part.
struct Stage {
  std::string name;
  std::vector<PlannedRun> runs;
};

/// A drain rate to plan windows with, before one is measured; a wrong one only makes windows
/// longer or shorter than needed.
struct PlanOptions {
  Depth depth = Depth::kFull;
  double expected_gb_s = 373;
};

std::vector<Stage> calibration_plan(const ProbeNode& node, const PlanOptions& options);

/// `windowed` runs at random K, B and G, and `isolated` bursts at random K and B, most of them
/// beyond the knee. The same seed gives the same points; none of them is on the calibration's grid.
std::vector<Stage> validation_plan(const ProbeNode& node, int windowed, int isolated,
                                   std::uint64_t seed, double expected_gb_s);

/// A window run long enough for a period to be counted to 0.1 %: many periods, warm before.
BurstRun window_run(std::vector<Flow> flows, Mechanism mechanism, int producers, int threads,
                    std::uint32_t bytes, std::uint32_t chunk, double gap_us, double expected_gb_s);

/// Bursts that all start at one instant, drained before each.
BurstRun isolated_run(std::vector<Flow> flows, Mechanism mechanism, int producers, int threads,
                      std::uint32_t bytes, std::uint32_t chunk);

/// GPU `from` stores into GPU `to` (the local control where they are equal), from `sms` alone or
/// from blocks where the hardware places them.
std::vector<Flow> one_way(int from = 0, int to = 1, std::vector<int> sms = {});
/// GPU 0 and GPU 1 store into each other.
std::vector<Flow> both_ways();
/// Every GPU stores into all others in turn.
std::vector<Flow> all_to_all(int gpus);
/// Every other GPU stores into GPU `to`.
std::vector<Flow> all_to_one(int gpus, int to);

}  // namespace xstage::probe
