// One MoE layer to try: configuration, weights, inputs.
#pragma once

#include <gtest/gtest.h>

#include "cpu/moe_errors.hpp"
#include "cpu/moe_group.hpp"

namespace xstage::cpu {

using Outputs = std::vector<std::vector<std::uint16_t>>;

struct MoeCase {
  layout::MoeConfig config;
  MoeWeights weights;
  std::vector<MoeInput> inputs;

  static layout::MoeConfig small(std::int32_t ranks) {
    layout::MoeConfig c;
    c.ranks = ranks;
    c.topk = 3;
    c.experts = ranks * 3;
    c.hidden = 256;
    c.intermediate = 128;
    c.capacity = 40;
    c.block_m = 16;
    c.workers = 3;
    return c;
  }

  explicit MoeCase(const layout::MoeConfig& c, std::int64_t tokens,
                   const char* routing = "balanced", std::uint64_t seed = 1)
      : config(c),
        weights(MoeWeights::random(c.format, c.experts, c.hidden, c.intermediate, seed).value()) {
    const auto drawn = shapes::make_routing(shapes::parse_routing(routing).value(),
                                            {c.experts, c.topk, c.ranks, tokens, seed})
                           .value();
    inputs = random_inputs(drawn, c.hidden, seed);
  }

  std::vector<layout::MoeConfig> of_rank() const {
    return std::vector<layout::MoeConfig>(static_cast<std::size_t>(config.ranks), config);
  }

  MoeGroup group() const {
    auto made = MoeGroup::create(of_rank());
    EXPECT_TRUE(made.ok()) << made.error().message();
    return std::move(made).value();
  }

  Outputs run() const {
    auto g = group();
    g.poison();
    return g.launch(weights, inputs).value();
  }

  /// Runs and compares with the reference at the limits of the layer.
  MoeErrors check() const {
    auto g = group();
    g.poison();
    MoeLaunchOptions options;
    options.keep_linear1 = true;
    const auto outputs = g.launch(weights, inputs, options).value();
    const MoeErrors errors = compare_with_reference(g, weights, inputs, outputs);
    EXPECT_TRUE(errors.finite);
    EXPECT_LE(errors.linear1, MoeErrors::kLinear1Limit);
    EXPECT_LE(errors.given_intermediate, MoeErrors::kGivenLimit);
    EXPECT_LE(errors.end_to_end, MoeErrors::kEndToEndLimit);
    return errors;
  }
};

}  // namespace xstage::cpu
