#include "cpu/reference/moe_reference.hpp"

#include <atomic>
#include <thread>

#include "cpu/reference/numbers.hpp"

namespace xstage::cpu::reference {
namespace {

/// Sum of products in double; four partial sums so that the loop is no chain of additions.
double dot(const float* a, const float* b, std::int64_t n) {
  double sum[4] = {0, 0, 0, 0};
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int j = 0; j < 4; ++j)
      sum[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  for (; i < n; ++i) sum[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/// A vector as codes (exact in float) and one scale for each `group` of them.
struct Quantised {
  std::vector<float> codes;
  std::vector<double> scales;
  std::int64_t group = 0;
};

/// The format's rule: scale = largest magnitude / 448 in fp32, floor 1e-30 on the magnitude; the
/// quotient in fp32 is rounded to e4m3.
Quantised quantise(const float* values, std::int64_t n, std::int64_t group) {
  Quantised out{std::vector<float>(static_cast<std::size_t>(n)), {}, group};
  for (std::int64_t begin = 0; begin < n; begin += group) {
    const std::int64_t end = std::min(n, begin + group);
    float largest = 1e-30f;
    for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float scale = largest / 448.0f;
    for (std::int64_t i = begin; i < end; ++i)
      out.codes[static_cast<std::size_t>(i)] =
          static_cast<float>(to_e4m3(static_cast<double>(values[i] / scale)));
    out.scales.push_back(static_cast<double>(scale));
  }
  return out;
}

/// An unquantised vector: one group, scale 1.
Quantised plain(const float* values, std::int64_t n) { return {{values, values + n}, {1.0}, n}; }

/// Row of a weight matrix, its scales repeated to `group` values each.
struct WeightRow {
  std::vector<float> codes;
  std::vector<double> scales;  ///< one for each 128 values; empty in bf16
};

double product(const Quantised& a, const WeightRow& w) {
  const auto n = static_cast<std::int64_t>(a.codes.size());
  if (w.scales.empty()) return dot(a.codes.data(), w.codes.data(), n);
  double sum = 0;
  for (std::int64_t begin = 0; begin < n; begin += a.group) {
    const std::int64_t length = std::min(a.group, n - begin);
    sum += dot(a.codes.data() + begin, w.codes.data() + begin, length) *
           a.scales[static_cast<std::size_t>(begin / a.group)] *
           w.scales[static_cast<std::size_t>(begin / 128)];
  }
  return sum;
}

WeightRow w1_row(const MoeWeights& weights, std::int64_t expert, std::int64_t row) {
  static const auto table = [] {
    std::array<float, 256> out{};
    for (int code = 0; code < 256; ++code)
      out[static_cast<std::size_t>(code)] =
          static_cast<float>(e4m3_value(static_cast<std::uint8_t>(code)));
    return out;
  }();
  WeightRow out;
  out.codes.resize(static_cast<std::size_t>(weights.hidden));
  for (std::int64_t i = 0; i < weights.hidden; ++i)
    out.codes[static_cast<std::size_t>(i)] =
        weights.format == WeightFormat::kBf16
            ? static_cast<float>(bf16_value(weights.w1_values(expert, row)[i]))
            : table[weights.w1_codes(expert, row)[i]];
  if (weights.format != WeightFormat::kBf16)
    out.scales.assign(weights.w1_scales_of(expert, row),
                      weights.w1_scales_of(expert, row) + (weights.hidden + 127) / 128);
  return out;
}

WeightRow w2_row(const MoeWeights& weights, std::int64_t expert, std::int64_t row) {
  WeightRow out;
  out.codes.resize(static_cast<std::size_t>(weights.intermediate));
  for (std::int64_t i = 0; i < weights.intermediate; ++i)
    out.codes[static_cast<std::size_t>(i)] = static_cast<float>(
        weights.format == WeightFormat::kBf16 ? bf16_value(weights.w2_values(expert, row)[i])
                                              : e4m3_value(weights.w2_codes(expert, row)[i]));
  if (weights.format != WeightFormat::kBf16)
    out.scales.assign(weights.w2_scales_of(expert, row),
                      weights.w2_scales_of(expert, row) + (weights.intermediate + 127) / 128);
  return out;
}

struct Pair {
  int rank;
  std::int64_t pair;
};

double swiglu(double gate, double up, double clamp) {
  if (clamp > 0) {
    gate = std::min(gate, clamp);
    up = std::clamp(up, -clamp, clamp);
  }
  return gate / (1.0 + std::exp(-gate)) * up;
}

/// Linear-1 of one expert: w·swiglu for every token that chose it.
void run_linear1(const MoeWeights& weights, const std::vector<MoeInput>& inputs,
                 const MoeOptions& options, std::int64_t expert, const std::vector<Pair>& pairs,
                 std::vector<MoeRankResult>& results) {
  const bool bf16 = weights.format == WeightFormat::kBf16;
  const std::int64_t hidden = weights.hidden, intermediate = weights.intermediate;
  std::vector<Quantised> tokens;
  std::vector<float> row(static_cast<std::size_t>(hidden));
  for (const Pair& p : pairs) {
    const MoeInput& input = inputs[static_cast<std::size_t>(p.rank)];
    for (std::int64_t i = 0; i < hidden; ++i)
      row[static_cast<std::size_t>(i)] = static_cast<float>(
          bf16_value(input.x[static_cast<std::size_t>(p.pair / options.topk * hidden + i)]));
    tokens.push_back(bf16 ? plain(row.data(), hidden) : quantise(row.data(), hidden, 128));
  }
  for (std::int64_t i = 0; i < intermediate; ++i) {
    const WeightRow gate = w1_row(weights, expert, i);
    const WeightRow up = w1_row(weights, expert, intermediate + i);
    for (std::size_t n = 0; n < pairs.size(); ++n) {
      const auto rank = static_cast<std::size_t>(pairs[n].rank);
      const double weight =
          static_cast<double>(inputs[rank].weights[static_cast<std::size_t>(pairs[n].pair)]);
      results[rank].linear1[static_cast<std::size_t>(pairs[n].pair * intermediate + i)] =
          static_cast<float>(weight * swiglu(product(tokens[n], gate), product(tokens[n], up),
                                             static_cast<double>(options.clamp)));
    }
  }
}

/// One expert for all the tokens that chose it. Writes their slots of `results` (the caller sums
/// them) and their Linear-1 values.
void run_expert(const MoeWeights& weights, const std::vector<MoeInput>& inputs,
                const MoeOptions& options, std::int64_t expert, const std::vector<Pair>& pairs,
                std::vector<MoeRankResult>& results, std::vector<std::vector<float>>& slots) {
  const bool bf16 = weights.format == WeightFormat::kBf16;
  const std::int64_t hidden = weights.hidden, intermediate = weights.intermediate;
  std::vector<Quantised> middle;
  // With a given intermediate Linear-1 is not needed.
  if (!options.intermediate) run_linear1(weights, inputs, options, expert, pairs, results);
  for (const Pair& p : pairs) {
    float* const own =
        results[static_cast<std::size_t>(p.rank)].linear1.data() + p.pair * intermediate;
    if (options.intermediate) {
      // Given values are what the layer works with; they need no quantisation again.
      middle.push_back(plain(options.intermediate(p.rank, p.pair), intermediate));
      middle.back().group = 128;
      middle.back().scales.assign(static_cast<std::size_t>((intermediate + 127) / 128), 1.0);
    } else if (bf16) {
      std::vector<float> rounded(own, own + intermediate);
      for (float& value : rounded) value = static_cast<float>(to_bf16(static_cast<double>(value)));
      middle.push_back(plain(rounded.data(), intermediate));
    } else {
      middle.push_back(quantise(own, intermediate, options.intermediate_group));
    }
  }
  for (std::int64_t i = 0; i < hidden; ++i) {
    const WeightRow w = w2_row(weights, expert, i);
    for (std::size_t n = 0; n < pairs.size(); ++n)
      slots[static_cast<std::size_t>(pairs[n].rank)]
           [static_cast<std::size_t>(pairs[n].pair * hidden + i)] =
               static_cast<float>(to_bf16(product(middle[n], w)));
  }
}

}  // namespace

std::vector<MoeRankResult> moe(const MoeWeights& weights, const std::vector<MoeInput>& inputs,
                               const MoeOptions& options) {
  std::vector<MoeRankResult> results(inputs.size());
  std::vector<std::vector<float>> slots(inputs.size());
  std::vector<std::vector<Pair>> of_expert(static_cast<std::size_t>(weights.experts));
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    const std::int64_t pairs = inputs[rank].tokens * options.topk;
    results[rank].linear1.assign(static_cast<std::size_t>(pairs * weights.intermediate), 0);
    results[rank].output.assign(static_cast<std::size_t>(inputs[rank].tokens * weights.hidden), 0);
    slots[rank].assign(static_cast<std::size_t>(pairs * weights.hidden), 0);
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const std::int32_t expert = inputs[rank].experts[static_cast<std::size_t>(pair)];
      if (expert >= 0 && pair / options.topk % options.token_step == 0)
        of_expert[static_cast<std::size_t>(expert)].push_back({static_cast<int>(rank), pair});
    }
  }
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t expert; (expert = next.fetch_add(1)) < weights.experts;)
      run_expert(weights, inputs, options, expert, of_expert[static_cast<std::size_t>(expert)],
                 results, slots);
  };
  {
    std::vector<std::jthread> helpers;
    for (unsigned i = 1; i < std::min(8u, std::thread::hardware_concurrency()); ++i)
      helpers.emplace_back(work);
    work();
  }
  for (std::size_t rank = 0; rank < inputs.size(); ++rank)
    for (std::int64_t token = 0; token < inputs[rank].tokens; token += options.token_step)
      for (std::int64_t i = 0; i < weights.hidden; ++i) {
        float sum = 0;
        for (std::int64_t slot = 0; slot < options.topk; ++slot)
          sum +=
              slots[rank]
                   [static_cast<std::size_t>((token * options.topk + slot) * weights.hidden + i)];
        const auto at = static_cast<std::size_t>(token * weights.hidden + i);
        if (!inputs[rank].addend.empty())
          sum += static_cast<float>(bf16_value(inputs[rank].addend[at]));
        results[rank].output[at] = static_cast<float>(to_bf16(static_cast<double>(sum)));
      }
  return results;
}

}  // namespace xstage::cpu::reference
