#include "xstage/plan/rates.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

namespace xstage::plan {

extern const std::string_view kEmbeddedPeers;

namespace {

struct GemmRow {
  std::string layer;
  std::int64_t tokens = 0;
  double linear1_us = 0;
  double linear2_us = 0;
};

const std::vector<GemmRow>& gemm_rows() {
  static const std::vector<GemmRow> rows = [] {
    std::vector<GemmRow> out;
    const auto document = nlohmann::json::parse(kEmbeddedPeers);
    for (const auto& row : document.at("grouped_gemm_alone_us").at("rows"))
      out.push_back({row.at("layer"), row.at("tokens"), row.at("linear1"), row.at("linear2")});
    return out;
  }();
  return rows;
}

double tflops(double flops, double us) { return flops / us * 1e-6; }

/// What grouped products reach on large layers of this format; dense peaks are 1979 and 989.
double usual_tflops(std::string_view weights) {
  if (weights == "bf16") return 700;
  return 1000;
}

}  // namespace

MathRates moe_rates(std::string_view layer, std::string_view weights, std::int64_t tokens,
                    std::int64_t hidden, std::int64_t intermediate, std::int64_t topk) {
  // mimo-v2.5 has the matrices of deepseek-v4-flash and more of them a token.
  const std::string_view measured = layer == "mimo-v2.5" ? "deepseek-v4-flash" : layer;
  const GemmRow* below = nullptr;
  const GemmRow* above = nullptr;
  if (weights == "w8a8")
    for (const GemmRow& row : gemm_rows()) {
      if (row.layer != measured) continue;
      if (row.tokens <= tokens && (!below || row.tokens > below->tokens)) below = &row;
      if (row.tokens >= tokens && (!above || row.tokens < above->tokens)) above = &row;
    }
  MathRates out;
  if (!below && !above) {
    out.first = out.second = usual_tflops(weights);
    out.source = fmt::format("{:g} TFLOP/s for {}: what grouped products usually reach on H200",
                             out.first, weights);
    return out;
  }
  if (!below) below = above;
  if (!above) above = below;
  const std::int64_t k = layer == "mimo-v2.5" ? 6 : topk;  // the rows measured had k = 6
  const auto rate = [&](const GemmRow& row, bool first) {
    const double rows = static_cast<double>(row.tokens) * static_cast<double>(k);
    const double flops = 2 * rows * static_cast<double>(hidden) *
                         static_cast<double>(intermediate) * (first ? 2 : 1);
    return tflops(flops, first ? row.linear1_us : row.linear2_us);
  };
  const double span =
      std::log(static_cast<double>(above->tokens) / static_cast<double>(below->tokens));
  const double t =
      span > 0 ? std::log(static_cast<double>(tokens) / static_cast<double>(below->tokens)) / span
               : 0;
  const auto between = [&](bool first) {
    return std::exp(std::log(rate(*below, first)) * (1 - t) + std::log(rate(*above, first)) * t);
  };
  out.first = between(true);
  out.second = between(false);
  out.assumed = layer == "mimo-v2.5" || (below->tokens != tokens && above->tokens != tokens);
  out.source = fmt::format("grouped GEMM of {} alone, measured on H200 at {} tokens{}",
                           std::string(measured),
                           below == above ? fmt::format("{}", below->tokens)
                                          : fmt::format("{} and {}", below->tokens, above->tokens),
                           out.assumed ? ", taken over to this one" : "");
  return out;
}

MathRates attention_rates(std::int64_t head_dim) {
  MathRates out;
  out.first = head_dim >= 128 ? 650 : 410;
  out.second = out.first;
  out.source = fmt::format("{:g} TFLOP/s: a library's attention on H200 at head dimension {}",
                           out.first, head_dim >= 128 ? 128 : 64);
  return out;
}

MathRates given_rate(double given) {
  return {given, given, true, fmt::format("{:g} TFLOP/s, as given", given)};
}

}  // namespace xstage::plan
