// How far a launch is from the reference.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/moe_group.hpp"

namespace xstage::cpu {

/// Relative Frobenius errors, and the worst row (one token of one rank) of the output end to end.
struct MoeErrors {
  double linear1 = 0;             ///< Linear-1 before quantisation
  double given_intermediate = 0;  ///< output, reference fed with the ranks' own intermediate
  double end_to_end = 0;
  double worst_row = 0;
  int worst_row_rank = -1;
  std::int64_t worst_row_token = -1;
  std::int64_t tokens_checked = 0;
  bool finite = true;  ///< no NaN or infinity in any output

  bool within_limits() const {
    return finite && linear1 <= kLinear1Limit && given_intermediate <= kGivenLimit &&
           end_to_end <= kEndToEndLimit;
  }
  static constexpr double kLinear1Limit = 1e-3;
  static constexpr double kGivenLimit = 3e-3;
  static constexpr double kEndToEndLimit = 1.5e-2;
};

/// Compares the outputs of the group's last launch (made with keep_linear1) with the reference.
/// Every `token_step`-th token is compared.
MoeErrors compare_with_reference(const MoeGroup& group, const MoeWeights& weights,
                                 const std::vector<MoeInput>& inputs,
                                 const std::vector<std::vector<std::uint16_t>>& outputs,
                                 std::int64_t token_step = 1);

/// The same for outputs made elsewhere, by `middle.linear1` or `middle.largest`.
MoeErrors compare_with_reference(const layout::MoeLayout& layout, const MoeGroup::Middle& middle,
                                 const MoeWeights& weights, const std::vector<MoeInput>& inputs,
                                 const std::vector<std::vector<std::uint16_t>>& outputs,
                                 std::int64_t token_step);

}  // namespace xstage::cpu
