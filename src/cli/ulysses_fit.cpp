#include "cli/ulysses_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <type_traits>

#include "cli/bench.hpp"
#include "shapes/shapes.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;

/// One layer's measured value, what it is to be a line in, and how far off it may be.
struct Point {
  double x = 0, y = 0, error = 1;
};
struct Line {
  double base = 0, per = 0;
  double at(double x) const { return base + per * x; }
};

/// Least squares with neither factor below 0; point `without` does not count.
Line fit(const std::vector<Point>& points, std::size_t without) {
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i == without) continue;
    const Point& p = points[i];
    const double weight = 1 / (p.error * p.error);
    w += weight;
    wx += weight * p.x;
    wy += weight * p.y;
    wxx += weight * p.x * p.x;
    wxy += weight * p.x * p.y;
  }
  const double determinant = w * wxx - wx * wx;
  if (determinant <= 1e-12 * w * wxx) return {wy / w, 0};
  const Line line{(wxx * wy - wx * wxy) / determinant, (w * wxy - wx * wy) / determinant};
  if (line.per < 0) return {wy / w, 0};
  if (line.base < 0) return {0, wxy / wxx};
  return line;
}

/// Of every point by the line through the others: errors over `of`.
json left_one_out(const std::vector<Point>& points, const std::vector<double>& of) {
  std::vector<double> errors;
  for (std::size_t i = 0; i < points.size(); ++i)
    errors.push_back(std::abs(fit(points, i).at(points[i].x) - points[i].y) / of[i]);
  return {{"median", quantile(errors, 0.5)}, {"worst", quantile(errors, 1)}};
}

std::vector<double> values(const std::vector<Point>& points) {
  std::vector<double> out;
  for (const Point& p : points) out.push_back(p.y);
  return out;
}

double link_rate(const model::Profile& profile) {
  return 1e3 * profile.drain.both_ways_gb_s.value_or(profile.drain.one_way_gb_s);
}

/// A measured value between `least` and `most`; throws a Failure, or what the JSON library throws.
template <class T>
T value_of(const json& object, const char* name, T least, T most) {
  const json& found = object.at(name);
  const bool of_type = std::is_integral_v<T> ? found.is_number_integer() : found.is_number();
  if (!of_type || !(found.get<T>() >= least && found.get<T>() <= most))
    throw Failure(bad_input("a layer's value is out of range", "--fit",
                            fmt::format("{} = {}", name, found.dump()),
                            fmt::format("{} to {}", least, most)));
  return found.get<T>();
}

/// µs; a launch takes more than 0, a difference of two launches may be below.
double time_of(const json& object, const char* name) { return value_of(object, name, 1e-3, 1e9); }

std::int64_t size_of(const json& layer, const char* name) {
  return value_of<std::int64_t>(
      layer, name, 1, name == std::string_view("seq") ? shapes::kMaxTokens : shapes::kMaxSize);
}

/// A rank's output in MB.
double output_mb(std::int64_t batch, std::int64_t heads_local, std::int64_t seq,
                 std::int64_t head_dim) {
  return 2e-6 * static_cast<double>(batch * heads_local * head_dim) * static_cast<double>(seq);
}

}  // namespace

Result<json> fit_ulysses_times(const model::Profile& profile, const std::vector<json>& documents) {
  std::vector<Point> residual, push, nccl;
  std::vector<double> push_cost;
  json attention = json::array();
  for (const json& document : documents)
    for (const json& entry : document.at("layers")) {
      const json& layer = entry.at("layer");
      const std::int64_t seq = size_of(layer, "seq"), head_dim = size_of(layer, "head_dim");
      const std::int64_t batch = layer.contains("batch") ? size_of(layer, "batch") : 1;
      const auto mb = [&](std::int64_t heads) { return output_mb(batch, heads, seq, head_dim); };
      if (entry.contains("time_us")) {  // of the script, beside PyTorch and NCCL
        const json& us = entry.at("time_us");
        if (!us.contains("attention + nccl")) continue;
        const double alone = time_of(us, "attention");
        const double cost = time_of(us, "attention + nccl") - alone;
        // A difference of times at the power limit: the clock moves by a percent.
        nccl.push_back(
            {mb(size_of(layer, "heads_local")), cost, 0.01 * alone + 0.05 * std::abs(cost)});
        continue;
      }
      if (layer.at("ranks") != 2)
        return bad_input("the fit is of layers between two ranks", "--fit",
                         layer.at("ranks").dump() + " ranks", "2");
      const std::int64_t heads = (size_of(layer, "heads") + 1) / 2;
      double alone = 0;
      for (const json& row : entry.at("rows"))
        if (row.at("what") == "attention") alone = time_of(row.at("time_us"), "median");
      const double cost = value_of(entry, "residual_us", -1e9, 1e9);
      const double error =
          entry.contains("residual_error_us") ? value_of(entry, "residual_error_us", 0.0, 1e9) : 0;
      residual.push_back({alone, cost, std::max(error, 0.1 * std::max(cost, 1.0))});
      push_cost.push_back(time_of(entry, "serial_less_attention_us"));
      push.push_back(
          {1e6 * mb(heads) / 2 / link_rate(profile), push_cost.back(), push_cost.back()});
      attention.push_back({{"heads_local", heads},
                           {"seq", seq},
                           {"head_dim", head_dim},
                           {"tflops", value_of(entry, "attention_tflops", 1e-3, 1e5)}});
    }
  if (residual.size() < 3 || nccl.size() < 3)
    return bad_input("too few layers to fit to", "--fit",
                     std::to_string(residual.size()) + " and " + std::to_string(nccl.size()),
                     "3 or more of bench ulysses, and of ulysses_torch.py with NCCL");
  const Line r = fit(residual, residual.size()), p = fit(push, push.size()),
             n = fit(nccl, nccl.size());
  return json{
      {"residual",
       {{"base_us", r.base},
        {"attention_share", r.per},
        {"layers", residual.size()},
        {"left_one_out_us", left_one_out(residual, std::vector<double>(residual.size(), 1))},
        {"left_one_out_of_hidden_share", left_one_out(residual, push_cost)}}},
      {"push",
       {{"base_us", p.base},
        {"per_link_us", p.per},
        {"layers", push.size()},
        {"left_one_out", left_one_out(push, values(push))}}},
      {"nccl",
       {{"base_us", n.base},
        {"per_mb", n.per},
        {"layers", nccl.size()},
        {"left_one_out", left_one_out(nccl, values(nccl))}}},
      {"attention", std::move(attention)}};
}

json predict_ulysses(const model::Profile& profile, const plan::UlyssesTimes& times,
                     const AttentionLayer& layer) {
  const std::int64_t heads = (layer.heads + layer.ranks - 1) / layer.ranks;
  bool measured = false;
  const double tflops = times.tflops(heads, layer.seq, layer.head_dim, measured);
  const auto seq = static_cast<double>(layer.seq);
  const double attention =
      4 * static_cast<double>(layer.batch * heads * layer.head_dim) * seq * seq / tflops * 1e-6;
  const double mb = output_mb(layer.batch, heads, layer.seq, layer.head_dim);
  const double others = static_cast<double>(layer.ranks - 1) / layer.ranks;
  const double push = layer.ranks > 1 ? times.push(1e6 * mb * others / link_rate(profile)) : 0;
  const double residual = layer.ranks > 1 ? times.residual(attention) : 0;
  // Measured between two ranks only, where the share of attention may be the order of tiles or the
  // stores. Among P ranks remote tiles first read P / (P - 1) heads where one was read before, in
  // place of 2; and (P - 1) / P of the tiles are stored, in place of half.
  const double share = residual - (layer.ranks > 1 ? times.residual_us : 0);
  const double least = residual - share * (1 - 1 / std::max(1.0, layer.ranks - 1.0));
  const double most = residual + share * (2 * others - 1);
  const double nccl = times.nccl(mb, layer.ranks);
  return {{"attention_us", attention},
          {"attention_tflops", tflops},
          {"attention_measured", measured},
          {"fused_us", attention + residual},
          {"residual_us", residual},
          {"residual_range_us", {std::min(least, most), std::max(least, most)}},
          {"push_serial_us", attention + push},
          {"nccl_serial_us", attention + nccl},
          {"push_over_fused", (attention + push) / (attention + residual)},
          {"nccl_over_fused", (attention + nccl) / (attention + residual)},
          {"hidden_share", push > 0 ? 1 - residual / push : 0}};
}

}  // namespace xstage::cli
