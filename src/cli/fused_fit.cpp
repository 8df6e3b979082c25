#include "cli/fused_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace xstage::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMost = 3;

/// A measured value and the numbers that it is to be a combination of.
struct Point {
  std::array<double, kMost> parts{};
  double value = 0;
  double measured = value;  ///< what errors are relative to
};

/// Solves the normal equations for the parts in `mask`; nothing where they do not determine them.
std::optional<std::array<double, kMost>> solve(const std::vector<Point>& points, unsigned mask) {
  std::vector<std::size_t> used;
  for (std::size_t i = 0; i < kMost; ++i)
    if (mask & (1u << i)) used.push_back(i);
  const std::size_t n = used.size();
  double a[kMost][kMost + 1] = {};
  for (const Point& p : points)
    for (std::size_t i = 0; i < n; ++i) {
      const double left = p.parts[used[i]] / p.measured;  // relative errors count
      for (std::size_t j = 0; j < n; ++j) a[i][j] += left * p.parts[used[j]] / p.measured;
      a[i][n] += left * p.value / p.measured;
    }
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t pivot = i;
    for (std::size_t r = i + 1; r < n; ++r)
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    if (std::abs(a[pivot][i]) < 1e-12) return {};
    std::swap(a[i], a[pivot]);
    for (std::size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = a[r][i] / a[i][i];
      for (std::size_t c = i; c <= n; ++c) a[r][c] -= factor * a[i][c];
    }
  }
  std::array<double, kMost> out{};
  for (std::size_t i = 0; i < n; ++i) out[used[i]] = a[i][n] / a[i][i];
  return out;
}

/// The combination with the least squares of relative errors whose factors are not negative: the
/// best over all choices of parts, `parts` of them.
std::array<double, kMost> fit(const std::vector<Point>& points, std::size_t parts) {
  std::array<double, kMost> best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned mask = 1; mask < (1u << parts); ++mask) {
    const auto found = solve(points, mask);
    if (!found || std::any_of(found->begin(), found->end(), [](double f) { return f < 0; }))
      continue;
    double sum = 0;
    for (const Point& p : points) {
      double value = 0;
      for (std::size_t i = 0; i < kMost; ++i) value += (*found)[i] * p.parts[i];
      const double off = (value - p.value) / p.measured;
      sum += off * off;
    }
    if (sum >= least) continue;
    least = sum;
    best = *found;
  }
  return best;
}

/// What the fit needs of one row beside its times.
struct Load {
  MoeLayer layer;
  SimulatedLayer simulated;
  double rows = 0, experts = 0;  ///< of the busiest rank
  plan::DispatchLoad dispatch;   ///< likewise, each part
};

Load load_of(const model::Profile& profile, const json& row) {
  MoeLayerOptions options;
  const json& described = row.at("layer");
  options.shape = described.at("shape").get<std::string>();
  options.tokens = described.at("tokens").get<std::int64_t>();
  options.ranks = described.at("ranks").get<int>();
  options.routing = described.at("routing").get<std::string>();
  options.seed = described.at("seed").get<std::uint64_t>();
  Load out;
  out.layer = resolve(options).value();
  out.simulated = simulated_layer(out.layer, out.layer.make_routing().value());
  const sim::MoeTraffic& traffic = out.simulated.traffic;
  const int local = traffic.experts_local();
  for (int rank = 0; rank < traffic.ranks; ++rank) {
    double rows = 0, experts = 0;
    for (int e = rank * local; e < (rank + 1) * local; ++e) {
      std::uint32_t count = 0;
      for (int source = 0; source < traffic.ranks; ++source) count += traffic.at(e, source);
      rows += std::ceil(count / 128.0);
      experts += count > 0 ? 1 : 0;
    }
    out.rows = std::max(out.rows, rows);
    out.experts = std::max(out.experts, experts);
  }
  const double rate =
      1e3 * (traffic.ranks > 1 ? profile.drain.both_ways_gb_s.value_or(profile.drain.one_way_gb_s)
                               : profile.drain.one_way_gb_s);
  for (const plan::DispatchLoad& load : sim::dispatch_loads(traffic, out.simulated.spec, rate))
    out.dispatch = {std::max(out.dispatch.link_us, load.link_us),
                    std::max(out.dispatch.own_mb, load.own_mb),
                    std::max(out.dispatch.read_mb, load.read_mb),
                    std::max(out.dispatch.written_mb, load.written_mb)};
  return out;
}

plan::FusedLine line_of(const std::vector<Point>& points) {
  const auto found = fit(points, 2);
  return {found[0], found[1]};
}

/// Parts of the launch, and the products of each layer; no corrections yet.
plan::FusedTimes fit_parts(const std::vector<Load>& loads, const json& rows) {
  plan::FusedTimes out;
  std::vector<Point> landed, filled, slot_sum;
  std::map<std::string, std::vector<Point>> products[2];
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const Load& load = loads[i];
    const shapes::MoeShape& shape = load.layer.shape;
    const auto hidden = static_cast<double>(shape.hidden);
    const auto tokens = static_cast<double>(load.layer.tokens);
    const auto us = [&](const char* name) {
      return rows[i].at("phases_us").at(name).get<double>();
    };
    const double landed_us = rows[i].at("phases_us").at("marks").at("landed").get<double>();
    landed.push_back(
        {{1, load.dispatch.own_mb}, landed_us - load.dispatch.link_us, std::max(1.0, landed_us)});
    filled.push_back({{1, load.dispatch.read_mb, load.dispatch.written_mb},
                      std::max(1.0, us("start") - landed_us)});
    slot_sum.push_back({{1, static_cast<double>(shape.topk + 1) * tokens * hidden * 2e-6},
                        std::max(1.0, us("end") - us("combined"))});
    const char* const names[] = {"linear1", "linear2"};
    for (int linear = 0; linear < 2; ++linear)
      products[linear][shape.name].push_back(
          {{load.experts, load.rows},
           rows[i].at("products_us").at(names[linear]).at("median").get<double>()});
  }
  out.start.landed = line_of(landed);
  const auto fill = fit(filled, 3);
  out.start.fill_us = fill[0];
  out.start.per_read_mb = fill[1];
  out.start.per_written_mb = fill[2];
  out.slot_sum = line_of(slot_sum);
  for (const Load& load : loads) {
    const shapes::MoeShape& shape = load.layer.shape;
    if (std::any_of(out.layers.begin(), out.layers.end(),
                    [&](const auto& layer) { return layer.name == shape.name; }))
      continue;
    const auto first = fit(products[0][shape.name], 2), second = fit(products[1][shape.name], 2);
    out.layers.push_back({shape.name,
                          shape.hidden,
                          shape.intermediate,
                          {first[0], first[1]},
                          {second[0], second[1]},
                          {}});
  }
  return out;
}

/// A measured launch and its simulation.
struct Launch {
  plan::FusedLaunch simulated;
  double us = 0;
};

/// The line of one schedule's launches, and what each of them took over it.
json correction_of(std::int64_t lead, const std::vector<Launch>& launches) {
  std::vector<Point> points;
  for (const Launch& launch : launches)
    points.push_back({{1, launch.simulated.simulated_us, launch.simulated.link_us}, launch.us});
  const auto found = fit(points, 3);
  const plan::FusedCorrection line{lead, found[0], found[1], found[2], {}};
  json residuals = json::array();
  for (const Launch& launch : launches)
    residuals.push_back({{"simulated_us", launch.simulated.simulated_us},
                         {"link_us", launch.simulated.link_us},
                         {"unevenness", launch.simulated.unevenness},
                         {"over_line", launch.us / line.line(launch.simulated)}});
  return {{"lead", lead},
          {"base_us", line.base_us},
          {"per_us", line.per_us},
          {"per_link_us", line.per_link_us},
          {"residuals", std::move(residuals)}};
}

json to_json(const plan::FusedLine& line) {
  return {{"base_us", line.base_us}, {"per_unit", line.per_unit}};
}

json to_json(const plan::FusedProducts& products) {
  return {{"expert_us", products.expert_us}, {"row_us", products.row_us}};
}

}  // namespace

std::optional<Error> why_no_fused_tiles(const shapes::MoeShape& shape) {
  const auto why = [](const char* option, std::int64_t size, std::int64_t unit) {
    return bad_input("the fused kernel has no tiles for this size", option, std::to_string(size),
                     fmt::format("a multiple of {}", unit));
  };
  constexpr std::int64_t kColumns = 256, kDepth = 128;
  if (shape.hidden % kColumns != 0) return why("--hidden", shape.hidden, kColumns);
  if (shape.intermediate % kDepth != 0) return why("--intermediate", shape.intermediate, kDepth);
  return {};
}

Result<sim::FusedMoe> fused_moe(const model::Profile& profile, const plan::FusedTimes& times,
                                const MoeLayer& layer, const shapes::Routing& routing) {
  if (layer.weights != shapes::WeightFormat::kW8A8)
    return bad_input("no times of the fused kernel were measured for this format", "--weights",
                     shapes::name(layer.weights),
                     "w8a8, or a schedule given by name instead of auto");
  if (auto error = why_no_fused_tiles(layer.shape)) return *error;
  const auto [spec, traffic] = simulated_layer(layer, routing);
  if (auto error = too_many_tiles(layer, spec.tokens, sim::kFusedBlockN)) return *error;
  return sim::set_up_fused_moe(profile, times, spec, traffic);
}

Result<ChosenMoeSchedule> choose_fused(const model::Profile& profile, const plan::FusedTimes& times,
                                       const MoeLayer& layer, const shapes::Routing& routing) {
  const auto moe = fused_moe(profile, times, layer, routing);
  if (!moe) return moe.error();
  const sim::MoeChoice choice = sim::choose_fused_schedule(*moe, layer.seed);
  const auto described = [](const sim::MoeCandidate& candidate) {
    json out = candidate_json(candidate);
    out["method"] = "simulation with the fused kernel's measured times";
    return out;
  };
  ChosenMoeSchedule out;
  out.schedule = choice.candidates[choice.best].schedule;
  out.choice = described(choice.candidates[choice.best]);
  out.choice["reason"] = choice.reason;
  out.candidates = json::array();
  for (const sim::MoeCandidate& candidate : choice.candidates)
    out.candidates.push_back(described(candidate));
  out.assumed = json::array();
  if (!moe->times.measured) out.assumed.push_back(moe->times.source);
  return out;
}

Result<json> fit_fused_times(const model::Profile& profile, const json& rows) {
  std::vector<Load> loads(rows.size());
  in_parallel(rows.size(), [&](std::size_t i) { loads[i] = load_of(profile, rows[i]); });
  const plan::FusedTimes times = fit_parts(loads, rows);

  // Every row's runs, simulated: of a layer, by lead (0: the wave).
  std::vector<std::map<std::int64_t, std::vector<Launch>>> points(rows.size());
  std::vector<std::optional<Error>> errors(rows.size());
  in_parallel(rows.size(), [&](std::size_t i) {
    const auto moe =
        sim::set_up_fused_moe(profile, times, loads[i].simulated.spec, loads[i].simulated.traffic);
    if (!moe) {
      errors[i] = moe.error();
      return;
    }
    for (const json& run : rows[i].at("runs")) {
      if (run.at("dispatch") != "per-rank") continue;
      const bool wave = run.at("schedule") == "wave";
      const std::int64_t lead = wave ? 0 : run.at("lead").get<std::int64_t>();
      const auto s = wave ? schedule::MoeSchedule::wave(run.at("group").get<std::int32_t>())
                          : schedule::MoeSchedule::interleaved(lead);
      points[i][lead].push_back(
          {{sim::simulated_us(*moe, s, loads[i].layer.seed), moe->link_us, moe->unevenness},
           run.at("time_us").at("median").get<double>()});
    }
  });
  for (const auto& error : errors)
    if (error) return *error;

  json out = {{"start",
               {{"landed", to_json(times.start.landed)},
                {"filled",
                 {{"base_us", times.start.fill_us},
                  {"per_read_mb", times.start.per_read_mb},
                  {"per_written_mb", times.start.per_written_mb}}}}},
              {"slot_sum", to_json(times.slot_sum)},
              {"layers", json::array()}};
  for (const plan::FusedLayerTimes& layer : times.layers) {
    std::map<std::int64_t, std::vector<Launch>> of_layer;
    for (std::size_t i = 0; i < loads.size(); ++i)
      if (loads[i].layer.shape.name == layer.name)
        for (const auto& [lead, some] : points[i])
          of_layer[lead].insert(of_layer[lead].end(), some.begin(), some.end());
    json corrections = json::array();
    for (const auto& [lead, some] : of_layer) corrections.push_back(correction_of(lead, some));
    out["layers"].push_back({{"name", layer.name},
                             {"hidden", layer.hidden},
                             {"intermediate", layer.intermediate},
                             {"linear1", to_json(layer.linear1)},
                             {"linear2", to_json(layer.linear2)},
                             {"corrections", std::move(corrections)}});
  }
  return out;
}

Result<json> cross_validate(const model::Profile& profile, const json& rows) {
  std::set<std::int64_t> sizes;
  for (const json& row : rows) sizes.insert(row.at("layer").at("tokens").get<std::int64_t>());
  if (sizes.size() < 3)
    return bad_input("a size can be left out where two others remain", "numbers of tokens",
                     std::to_string(sizes.size()), "3 or more");
  json out = json::array(), kept = json::array(), asked = json::array();
  // Between others, as the tables' sizes lie between those of the fit.
  std::set<std::int64_t> left_out;
  bool leave = false;
  for (const std::int64_t size : sizes) {
    if (leave && size != *sizes.rbegin()) left_out.insert(size);
    leave = !leave;
  }
  for (const json& row : rows)
    (left_out.contains(row.at("layer").at("tokens").get<std::int64_t>()) ? asked : kept)
        .push_back(row);
  const auto fitted = fit_fused_times(profile, kept);
  if (!fitted) return fitted.error();
  const auto times = plan::parse_fused_times(json{
      {"format", "xstage.moe-kernel-times/1"},
      {"node", {{"gpu", ""}}},
      {"fit", *fitted}}.dump());
  if (!times) return times.error();
  std::vector<json> judged(asked.size());
  in_parallel(asked.size(), [&](std::size_t i) {
    const json& row = asked[i];
    const Load load = load_of(profile, row);
    const auto moe =
        sim::set_up_fused_moe(profile, *times, load.simulated.spec, load.simulated.traffic);
    if (!moe) return;
    const auto cover = row.at("covering_lead").get<std::int64_t>();
    json runs = json::array();
    double fastest = 0, best = 0, wave_us = 0, wave_predicted = 0, taken_us = 0;
    std::string taken;
    for (const json& run : row.at("runs")) {
      if (run.at("dispatch") != "per-rank") continue;
      const bool wave = run.at("schedule") == "wave";
      const std::int64_t lead = wave ? 0 : run.at("lead").get<std::int64_t>();
      const double us = run.at("time_us").at("median").get<double>();
      const auto s = wave ? schedule::MoeSchedule::wave(run.at("group").get<std::int32_t>())
                          : schedule::MoeSchedule::interleaved(lead);
      const double predicted = sim::predict(*moe, s, load.layer.seed).time_us;
      runs.push_back(
          {{"lead", wave ? json() : json(lead)}, {"measured_us", us}, {"predicted_us", predicted}});
      if (fastest == 0 || us < fastest) fastest = us;
      if (wave) {
        wave_us = us;
        wave_predicted = predicted;
      }
      if ((wave || 2 * lead >= cover) && (best == 0 || predicted < best)) {
        best = predicted;
        taken_us = us;
        taken = wave ? "wave" : "lead " + std::to_string(lead);
      }
    }
    if (wave_predicted > 0 && wave_predicted <= best * 1.005) {
      taken = "wave";
      taken_us = wave_us;
    }
    judged[i] = {{"layer", row.at("layer")},
                 {"runs", runs},
                 {"auto", {{"schedule", taken}, {"measured_us", taken_us}}},
                 {"fastest_us", fastest},
                 {"auto_over_fastest", fastest > 0 ? taken_us / fastest : 0}};
  });
  for (json& row : judged)
    if (row.is_object()) out.push_back(std::move(row));
  return out;
}

}  // namespace xstage::cli
