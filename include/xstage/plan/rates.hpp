// How fast a node computes: what a plan needs beside the profile of its links.
#pragma once

#include <cstdint>
#include <string>

#include "xstage/plan/tile_times.hpp"

namespace xstage::plan {

/// Dense matrix rates of one GPU, in TFLOP/s, and where they come from.
struct MathRates {
  double first = 0;     ///< Linear-1 (or attention)
  double second = 0;    ///< Linear-2
  bool assumed = true;  ///< false: measured for matrices of this size
  std::string source;
};

/// Rates of a MoE layer's two products, from tile_times().
MathRates moe_rates(const MatrixWork& work, std::int64_t experts, int ranks, std::int64_t rows,
                    std::int32_t block_m, std::int32_t block_n, int workers);

/// The same rate for everything, as the user gave it.
MathRates given_rate(double tflops);

/// What memory moves, read and write together, in GB/s: measured copy on H200.
inline constexpr double kMemoryGbPerS = 4300;

}  // namespace xstage::plan
