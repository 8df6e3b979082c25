#include "cli/fused_fit.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "cli/moe_simulation.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;

/// A measured value and the two numbers that it is to be a combination of.
struct Point {
  double first = 0, second = 0, value = 0;
};

struct Pair {
  double first = 0, second = 0;
};

/// The combination a·first + b·second with the least squares of relative errors; where one of the
/// two would be negative it is left out.
Pair fit(const std::vector<Point>& points) {
  double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
  for (const Point& p : points) {
    const double a = p.first / p.value, b = p.second / p.value;
    aa += a * a;
    ab += a * b;
    bb += b * b;
    a1 += a;
    b1 += b;
  }
  const double determinant = aa * bb - ab * ab;
  Pair out;
  if (determinant > 1e-12 * aa * bb)
    out = {(a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant};
  if (determinant <= 1e-12 * aa * bb || out.first < 0) out = {0, bb > 0 ? b1 / bb : 0};
  if (out.second < 0) out = {aa > 0 ? a1 / aa : 0, 0};
  return out;
}

json line_json(const std::vector<Point>& points) {
  const Pair line = fit(points);
  return {{"base_us", line.first}, {"per_unit", line.second}};
}

json products_json(const std::vector<Point>& points) {
  const Pair line = fit(points);
  return {{"expert_us", line.first}, {"row_us", line.second}};
}

/// What the fit needs of one row beside its times.
struct Load {
  sim::MoeLayerSpec spec;
  sim::MoeTraffic traffic;
  double rows = 0, experts = 0, tokens = 0;  ///< of the busiest rank
};

Load load_of(const MoeLayer& layer, const shapes::Routing& routing) {
  Load out;
  auto [spec, traffic] = simulated_layer(layer, routing);
  out.spec = std::move(spec);
  out.traffic = std::move(traffic);
  const int local = out.traffic.experts_local();
  for (int rank = 0; rank < layer.ranks; ++rank) {
    double rows = 0, experts = 0, tokens = 0;
    for (int e = rank * local; e < (rank + 1) * local; ++e) {
      std::uint32_t count = 0;
      for (int source = 0; source < layer.ranks; ++source) count += out.traffic.at(e, source);
      rows += std::ceil(count / 128.0);
      experts += count > 0 ? 1 : 0;
      tokens += count;
    }
    out.rows = std::max(out.rows, rows);
    out.experts = std::max(out.experts, experts);
    out.tokens = std::max(out.tokens, tokens);
  }
  return out;
}

}  // namespace

Result<sim::FusedMoe> fused_moe(const model::Profile& profile, const plan::FusedTimes& times,
                                const MoeLayer& layer, const shapes::Routing& routing) {
  const auto [spec, traffic] = simulated_layer(layer, routing);
  return sim::set_up_fused_moe(profile, times, spec, traffic);
}

Result<json> fit_fused_times(const model::Profile& profile, const std::vector<MoeLayer>& layers,
                             const json& rows) {
  std::vector<Load> loads;
  std::vector<Point> start, slot_sum;
  std::map<std::string, std::vector<Point>> products[2];
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const MoeLayer& layer = layers[i];
    const auto routing = layer.make_routing();
    if (!routing) return routing.error();
    loads.push_back(load_of(layer, *routing));
    const Load& load = loads.back();
    const auto hidden = static_cast<double>(layer.shape.hidden);
    const auto tokens = static_cast<double>(layer.tokens);
    const json& phases = rows[i].at("phases_us");
    const auto us = [&](const char* name) { return phases.at(name).get<double>(); };
    start.push_back({1, (tokens + load.tokens) * hidden * 1e-6, us("dispatched")});
    slot_sum.push_back({1, static_cast<double>(layer.shape.topk + 1) * tokens * hidden * 2e-6,
                        std::max(1.0, us("end") - us("combined"))});
    const char* const names[] = {"linear1", "linear2"};
    for (int linear = 0; linear < 2; ++linear)
      products[linear][layer.shape.name].push_back(
          {load.experts, load.rows,
           rows[i].at("products_us").at(names[linear]).at("median").get<double>()});
  }
  json out = {
      {"start", line_json(start)}, {"slot_sum", line_json(slot_sum)}, {"layers", json::array()}};

  // First without corrections; they are what the simulated launches still lack.
  plan::FusedTimes times;
  times.start = {out["start"]["base_us"].get<double>(), out["start"]["per_unit"].get<double>()};
  times.slot_sum = {out["slot_sum"]["base_us"].get<double>(),
                    out["slot_sum"]["per_unit"].get<double>()};
  for (const MoeLayer& layer : layers) {
    const std::string& name = layer.shape.name;
    if (std::any_of(times.layers.begin(), times.layers.end(),
                    [&](const auto& t) { return t.name == name; }))
      continue;
    const Pair first = fit(products[0][name]), second = fit(products[1][name]);
    times.layers.push_back({name,
                            layer.shape.hidden,
                            layer.shape.intermediate,
                            {first.first, first.second},
                            {second.first, second.second},
                            {0, 1},
                            {0, 1}});
  }
  for (const plan::FusedLayerTimes& layer : times.layers) {
    std::vector<Point> wave, interleaved;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].shape.name != layer.name) continue;
      const auto moe = sim::set_up_fused_moe(profile, times, loads[i].spec, loads[i].traffic);
      if (!moe) return moe.error();
      const auto cover = rows[i].at("covering_lead").get<std::int64_t>();
      for (const json& run : rows[i].at("runs")) {
        if (run.at("dispatch") != "per-rank") continue;
        const bool is_wave = run.at("schedule") == "wave";
        if (!is_wave && run.at("lead").get<std::int64_t>() < cover) continue;
        const auto s = is_wave
                           ? schedule::MoeSchedule::wave(run.at("group").get<std::int32_t>())
                           : schedule::MoeSchedule::interleaved(run.at("lead").get<std::int64_t>());
        (is_wave ? wave : interleaved)
            .push_back({1, sim::simulated_us(*moe, s, layers[i].seed),
                        run.at("time_us").at("median").get<double>()});
      }
    }
    out["layers"].push_back({{"name", layer.name},
                             {"hidden", layer.hidden},
                             {"intermediate", layer.intermediate},
                             {"linear1", products_json(products[0][layer.name])},
                             {"linear2", products_json(products[1][layer.name])},
                             {"wave", line_json(wave)},
                             {"interleaved", line_json(interleaved)}});
  }
  return out;
}

}  // namespace xstage::cli
