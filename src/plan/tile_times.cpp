#include "xstage/plan/tile_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "xstage/plan/rates.hpp"

namespace xstage::plan {

extern const std::string_view kEmbeddedPeers;

namespace {

constexpr int kRanks = 2;  // of the measured layers
constexpr double kRowsM = 128;

/// Sizes of the layers in peers.json.
struct Measured {
  const char* name;
  std::int64_t hidden, intermediate, experts, topk;
};
constexpr Measured kMeasured[] = {
    {"lingbot-video", 2048, 768, 128, 8}, {"qwen3.5-397b", 4096, 1024, 512, 10},
    {"hy3", 4096, 1536, 192, 8},          {"deepseek-v4-flash", 4096, 2048, 256, 6},
    {"glm-5", 6144, 2048, 256, 8},        {"deepseek-v4-pro", 7168, 3072, 384, 6}};

/// Time of one linear of one rank: fixed_us an expert that has tokens, plus row_us a row of 128
/// tokens.
struct Line {
  double expert_us = 0;
  double row_us = 0;
};
struct Lines {
  Line linear1, linear2;
};

/// Rows that `tokens` tokens an expert, spread by 20 %, make on average.
double rows_of_expert(double tokens) {
  double rows = 0;
  constexpr int kSteps = 41;
  for (int i = 0; i < kSteps; ++i) {
    const double here = tokens * (0.8 + 0.4 * i / (kSteps - 1));
    rows +=
        std::max(1.0, static_cast<double>(static_cast<std::int64_t>((here + kRowsM - 1) / kRowsM)));
  }
  return rows / kSteps;
}

std::map<std::string, Lines> measured_lines() {
  std::map<std::string, Lines> lines;
  const auto document = nlohmann::json::parse(kEmbeddedPeers);
  struct Point {
    double tokens, linear1, linear2;
  };
  std::map<std::string, std::vector<Point>> points;
  for (const auto& row : document.at("grouped_gemm_alone_us").at("rows"))
    points[row.at("layer").get<std::string>()].push_back({row.at("tokens").get<double>(),
                                                          row.at("linear1").get<double>(),
                                                          row.at("linear2").get<double>()});
  for (const Measured& layer : kMeasured) {
    auto& two = points.at(layer.name);
    std::sort(two.begin(), two.end(),
              [](const Point& a, const Point& b) { return a.tokens < b.tokens; });
    const double local = static_cast<double>(layer.experts) / kRanks;
    const auto rows = [&](const Point& p) {
      return local * rows_of_expert(p.tokens * kRanks * static_cast<double>(layer.topk) /
                                    static_cast<double>(layer.experts));
    };
    const double few = rows(two.front()), many = rows(two.back());
    const auto line = [&](double at_few, double at_many) {
      const double row_us = (at_many - at_few) / (many - few);
      return Line{std::max(0.0, at_few - row_us * few) / local, row_us};
    };
    lines[layer.name] = {line(two.front().linear1, two.back().linear1),
                         line(two.front().linear2, two.back().linear2)};
  }
  return lines;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// What a layer that was not measured is assumed to take: the median rates of those that were.
/// `row_flop`, `expert_bytes`: of one row and one expert's weights of a linear.
struct Rates {
  double flop_per_us = 0;   // beyond the weights
  double bytes_per_us = 0;  // at which weights are read
};
Rates median_rates(const std::map<std::string, Lines>& lines) {
  std::vector<double> flop, bytes;
  for (const Measured& layer : kMeasured) {
    const Lines& l = lines.at(layer.name);
    const auto h = static_cast<double>(layer.hidden), i = static_cast<double>(layer.intermediate);
    flop.push_back(2 * kRowsM * 2 * i * h / l.linear1.row_us);
    flop.push_back(2 * kRowsM * i * h / l.linear2.row_us);
    bytes.push_back(2 * i * h / l.linear1.expert_us);
    bytes.push_back(i * h / l.linear2.expert_us);
  }
  // What is left for the weights beside the rows of a short launch can come out as less time than
  // memory takes to give them.
  return {median(flop), std::min(median(bytes), 1000 * kMemoryGbPerS)};
}

}  // namespace

TileTimes tile_times(const MatrixWork& layer, std::int64_t experts, int ranks, std::int64_t rows,
                     const schedule::MoeTiling& tiling, int workers) {
  static const std::map<std::string, Lines> lines = measured_lines();
  static const Rates rates = median_rates(lines);
  TileTimes out;
  const auto h = static_cast<double>(layer.hidden), i = static_cast<double>(layer.intermediate);
  Lines line;
  const Measured* same = nullptr;
  for (const Measured& m : kMeasured) {
    if (m.hidden != layer.hidden || m.intermediate != layer.intermediate) continue;
    if (same == nullptr || m.name == layer.name) same = &m;
  }
  if (same != nullptr && layer.weight_bytes == 1) {
    line = lines.at(same->name);
    out.source = fmt::format("grouped GEMM of {} measured alone (peers.json)", same->name);
    if (layer.name != same->name)
      out.source += fmt::format(", which has the hidden and intermediate size of {}", layer.name);
  } else {
    // bf16 runs at half the rate of fp8; 4-bit weights are decoded to fp8 and run at its rate.
    const double flop = rates.flop_per_us * (layer.activation_bytes == 2 ? 0.5 : 1);
    line.linear1 = {2 * i * h * layer.weight_bytes / rates.bytes_per_us, 4 * kRowsM * i * h / flop};
    line.linear2 = {i * h * layer.weight_bytes / rates.bytes_per_us, 2 * kRowsM * i * h / flop};
    out.assumed = true;
    out.source = fmt::format(
        "{:.0f} TFLOP/s, the median of the layers in peers.json{}, and weights read at {:.1f} "
        "TB/s, {}",
        flop / 1e6, layer.activation_bytes == 2 ? " at half the fp8 rate" : "",
        rates.bytes_per_us / 1e6,
        rates.bytes_per_us < 1000 * kMemoryGbPerS ? "their median" : "all that memory gives");
  }
  const double local = static_cast<double>(experts) / ranks;
  const double at_rows = static_cast<double>(std::max<std::int64_t>(rows, 1));
  const double scale = tiling.block_m / kRowsM;
  const auto tile = [&](const Line& l, std::int32_t tiles) {
    const double used = std::min(local, at_rows);  // an expert without tokens reads no weights
    return (l.expert_us * used + l.row_us * at_rows * scale) * workers / (at_rows * tiles);
  };
  out.linear1_us = tile(line.linear1, tiling.n1);
  out.linear2_us = tile(line.linear2, tiling.n2);
  return out;
}

}  // namespace xstage::plan
