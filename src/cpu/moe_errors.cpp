#include "cpu/moe_errors.hpp"

#include <algorithm>
#include <cmath>

#include "cpu/reference/moe_reference.hpp"

namespace xstage::cpu {
namespace {

/// Sum of squared differences and of squared reference values.
struct Squares {
  double difference = 0, size = 0;
  void add(double value, double expected) {
    difference += (value - expected) * (value - expected);
    size += expected * expected;
  }
  /// Zeros must be met exactly.
  double relative() const {
    if (size == 0) return difference == 0 ? 0.0 : HUGE_VAL;
    return std::sqrt(difference / size);
  }
};

/// Linear-1 of one pair; where only groups' largest magnitudes are known, those; in bf16, which has
/// no groups, what it was rounded to.
void add_linear1(const layout::MoeLayout& layout, const MoeGroup::Middle& middle, std::size_t rank,
                 std::int64_t pair, const float* expected, Squares& sum) {
  const std::int64_t size = layout.config.intermediate, first = pair * size;
  if (!middle.linear1.empty()) {
    for (std::int64_t i = first; i < first + size; ++i)
      sum.add(static_cast<double>(middle.linear1[rank][static_cast<std::size_t>(i)]),
              static_cast<double>(expected[i]));
    return;
  }
  if (layout.intermediate_groups == 0) {
    for (std::int64_t i = first; i < first + size; ++i)
      sum.add(static_cast<double>(middle.quantised[rank][static_cast<std::size_t>(i)]),
              static_cast<double>(bf16_to_float(float_to_bf16(expected[i]))));
    return;
  }
  for (std::int64_t group = 0; group < layout.intermediate_groups; ++group) {
    float largest = 0;
    for (std::int64_t i = group * layout.intermediate_group;
         i < std::min(size, (group + 1) * layout.intermediate_group); ++i)
      largest = std::max(largest, std::fabs(expected[first + i]));
    const auto at = static_cast<std::size_t>(pair * layout.intermediate_groups + group);
    sum.add(static_cast<double>(middle.largest[rank][at]), static_cast<double>(largest));
  }
}

}  // namespace

MoeErrors compare_with_reference(const MoeGroup& group, const MoeWeights& weights,
                                 const std::vector<MoeInput>& inputs,
                                 const std::vector<std::vector<std::uint16_t>>& outputs,
                                 std::int64_t token_step) {
  return compare_with_reference(group.layout(), group.middle(inputs), weights, inputs, outputs,
                                token_step);
}

MoeErrors compare_with_reference(const layout::MoeLayout& layout, const MoeGroup::Middle& middle,
                                 const MoeWeights& weights, const std::vector<MoeInput>& inputs,
                                 const std::vector<std::vector<std::uint16_t>>& outputs,
                                 std::int64_t token_step) {
  const layout::MoeConfig& config = layout.config;
  reference::MoeOptions options;
  options.topk = config.topk;
  options.intermediate_group = layout.intermediate_group;
  options.clamp = config.activation.clamp;
  options.token_step = token_step;
  const auto own = reference::moe(weights, inputs, options);
  options.intermediate = [&](int rank, std::int64_t pair) {
    return middle.quantised[static_cast<std::size_t>(rank)].data() + pair * config.intermediate;
  };
  const auto given = reference::moe(weights, inputs, options);

  MoeErrors errors;
  Squares linear1, with_given, all;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank)
    for (std::int64_t token = 0; token < inputs[rank].tokens; token += token_step) {
      ++errors.tokens_checked;
      const std::int64_t pairs = token * config.topk;
      for (std::int64_t pair = pairs; pair < pairs + config.topk; ++pair)
        add_linear1(layout, middle, rank, pair, own[rank].linear1.data(), linear1);
      Squares row;
      for (std::int64_t i = token * config.hidden; i < (token + 1) * config.hidden; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const auto value = static_cast<double>(bf16_to_float(outputs[rank][at]));
        errors.finite = errors.finite && std::isfinite(value);
        with_given.add(value, static_cast<double>(given[rank].output[at]));
        all.add(value, static_cast<double>(own[rank].output[at]));
        row.add(value, static_cast<double>(own[rank].output[at]));
      }
      if (row.relative() > errors.worst_row || errors.worst_row_rank < 0) {
        errors.worst_row = row.relative();
        errors.worst_row_rank = static_cast<int>(rank);
        errors.worst_row_token = token;
      }
    }
  errors.linear1 = linear1.relative();
  errors.given_intermediate = with_given.relative();
  errors.end_to_end = all.relative();
  return errors;
}

}  // namespace xstage::cpu
