// Weights and inputs of a MoE layer: what a caller of the layer would bring.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/memory.hpp"
#include "shapes/routing.hpp"
#include "xstage/layout/formats.hpp"

namespace xstage::cpu {

/// Weights of all experts. W8A8: e4m3 codes and one fp32 scale for 128×128 of them; bf16: values.
///   w1 [E][2I][H], gate rows before up rows; w2 [E][H][I]
///   w1_scales [E][ceil(2I/128)][ceil(H/128)], w2_scales [E][ceil(H/128)][ceil(I/128)]
struct MoeWeights {
  WeightFormat format = WeightFormat::kW8A8;
  std::int64_t experts = 0, hidden = 0, intermediate = 0;
  Pages w1, w2;
  std::vector<float> w1_scales, w2_scales;

  static std::int64_t bytes_needed(WeightFormat format, std::int64_t experts, std::int64_t hidden,
                                   std::int64_t intermediate);
  /// Random weights of a well-behaved size (outputs are of the order of the inputs).
  static Result<MoeWeights> random(WeightFormat format, std::int64_t experts, std::int64_t hidden,
                                   std::int64_t intermediate, std::uint64_t seed);

  static std::int64_t blocks(std::int64_t size) { return (size + kScaleGroup - 1) / kScaleGroup; }
  /// Row `row` of an expert's W1 (H values) or W2 (I values): e4m3 codes, or bf16.
  const std::uint8_t* w1_codes(std::int64_t expert, std::int64_t row) const {
    return static_cast<const std::uint8_t*>(w1.base()) + (expert * 2 * intermediate + row) * hidden;
  }
  const std::uint16_t* w1_values(std::int64_t expert, std::int64_t row) const {
    return static_cast<const std::uint16_t*>(w1.base()) +
           (expert * 2 * intermediate + row) * hidden;
  }
  const std::uint8_t* w2_codes(std::int64_t expert, std::int64_t row) const {
    return static_cast<const std::uint8_t*>(w2.base()) + (expert * hidden + row) * intermediate;
  }
  const std::uint16_t* w2_values(std::int64_t expert, std::int64_t row) const {
    return static_cast<const std::uint16_t*>(w2.base()) + (expert * hidden + row) * intermediate;
  }
  /// The scales of one row's blocks.
  const float* w1_scales_of(std::int64_t expert, std::int64_t row) const {
    return w1_scales.data() +
           (expert * blocks(2 * intermediate) + row / kScaleGroup) * blocks(hidden);
  }
  const float* w2_scales_of(std::int64_t expert, std::int64_t row) const {
    return w2_scales.data() + (expert * blocks(hidden) + row / kScaleGroup) * blocks(intermediate);
  }
};

/// What one rank brings to one launch.
struct MoeInput {
  std::int64_t tokens = 0;
  std::vector<std::uint16_t> x;       ///< [tokens][H], bf16
  std::vector<std::int32_t> experts;  ///< [tokens][k], -1 for none
  std::vector<float> weights;         ///< [tokens][k]
  std::vector<std::uint16_t> addend;  ///< [tokens][H] bf16 of shared experts; empty for none
};

/// Random tokens for every rank of a routing.
std::vector<MoeInput> random_inputs(const shapes::Routing& routing, std::int64_t hidden,
                                    std::uint64_t seed);

}  // namespace xstage::cpu
