#include "cpu/reference/attention_reference.hpp"

#include <cmath>
#include <limits>

#include "cpu/reference/numbers.hpp"

namespace xstage::cpu::reference {
namespace {

/// bf16_value() of all 65536 patterns: it is called once for every key, row and dimension.
const std::vector<double>& bf16_values() {
  static const std::vector<double> values = [] {
    std::vector<double> out;
    for (int bits = 0; bits < 0x10000; ++bits)
      out.push_back(bf16_value(static_cast<std::uint16_t>(bits)));
    return out;
  }();
  return values;
}

}  // namespace

AttentionRow attention(const AttentionHead& head, const std::uint16_t* query) {
  const auto dim = static_cast<std::size_t>(head.head_dim);
  AttentionRow out{std::vector<double>(dim, 0.0), std::vector<double>(dim, 0.0),
                   -std::numeric_limits<double>::infinity()};
  if (head.keys == 0) return out;
  const std::vector<double>& bf16 = bf16_values();
  std::vector<double> q(dim), p(static_cast<std::size_t>(head.keys));
  for (std::size_t d = 0; d < dim; ++d) q[d] = bf16[query[d]];
  double largest = -std::numeric_limits<double>::infinity();
  for (std::size_t j = 0; j < p.size(); ++j) {
    const std::uint16_t* const key = head.key(static_cast<std::int64_t>(j));
    double logit = 0;
    for (std::size_t d = 0; d < dim; ++d) logit += q[d] * bf16[key[d]];
    p[j] = logit * head.scale;
    largest = std::max(largest, p[j]);
  }
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - largest);
  out.log_sum_exp = largest + std::log(sum);
  for (std::size_t j = 0; j < p.size(); ++j) {
    const std::uint16_t* const value = head.value(static_cast<std::int64_t>(j));
    const double probability = p[j] / sum, rounded = to_bf16(probability);
    for (std::size_t d = 0; d < dim; ++d) {
      const double v = bf16[value[d]];
      out.exact[d] += probability * v;
      out.bf16[d] += rounded * v;
    }
  }
  for (double& value : out.bf16) value = to_bf16(value);
  return out;
}

}  // namespace xstage::cpu::reference
