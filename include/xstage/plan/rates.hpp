// How fast a node computes: what a plan needs beside the profile of its links.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "xstage/result.hpp"

namespace xstage::plan {

/// Dense matrix rates of one GPU, in TFLOP/s, and where they come from.
struct MathRates {
  double first = 0;     ///< Linear-1 (or attention)
  double second = 0;    ///< Linear-2
  bool assumed = true;  ///< false: measured for this very layer
  std::string source;
};

/// Rates of a MoE layer's two products. Measured ones where the shipped table (data/h200x2/
/// peers.json, a grouped GEMM alone) holds the layer in this format, between its token counts by
/// the logarithm of the tokens; elsewhere the rate a grouped GEMM reaches on large layers, assumed.
/// `weights`: "w8a8", "bf16" or "w4a8".
MathRates moe_rates(std::string_view layer, std::string_view weights, std::int64_t tokens,
                    std::int64_t hidden, std::int64_t intermediate, std::int64_t topk);

/// Rate of attention forward by head dimension, assumed from library kernels on H200.
MathRates attention_rates(std::int64_t head_dim);

/// The same rate for everything, as the user gave it.
MathRates given_rate(double tflops);

/// What memory moves, read and write together, in GB/s: measured copy on H200.
inline constexpr double kMemoryGbPerS = 4300;

}  // namespace xstage::plan
