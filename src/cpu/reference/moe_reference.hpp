// The MoE layer, written straightforwardly in double precision with the layer's quantisation
// points.
//
// It shares no code with the ranks: own conversions, own loops, no tiles, no protocol.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cpu/moe_data.hpp"

namespace xstage::cpu::reference {

struct MoeOptions {
  std::int64_t topk = 1;
  std::int64_t intermediate_group = 64;  ///< values that share an intermediate scale
  float clamp = 0;                       ///< 0: none
  /// Dequantised intermediate (I values) of a (rank, token·k + slot) to use in place of the
  /// reference's own; none: the reference's own.
  std::function<const float*(int rank, std::int64_t pair)> intermediate;
  /// Tokens to compute, as a step: 1 for all, n for every n-th (the others stay zero).
  std::int64_t token_step = 1;
};

struct MoeRankResult {
  std::vector<float> output;   ///< [tokens][H], rounded to bf16 once
  std::vector<float> linear1;  ///< [tokens·k][I]: w·swiglu(W1·x) before it is quantised
};

/// The outputs of every rank.
std::vector<MoeRankResult> moe(const MoeWeights& weights, const std::vector<MoeInput>& inputs,
                               const MoeOptions& options);

}  // namespace xstage::cpu::reference
