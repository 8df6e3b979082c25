#include "cli/moe_simulation.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/simulation_document.hpp"

namespace xstage::cli {
namespace {

/// Tokens of every rank that some expert of every rank gets.
void count_distinct(const shapes::Routing& routing, sim::MoeTraffic& traffic) {
  const auto ranks = static_cast<std::size_t>(traffic.ranks);
  const auto topk = static_cast<std::size_t>(routing.topk);
  traffic.distinct.assign(ranks * ranks, 0);
  std::vector<std::size_t> last_token(ranks);
  for (std::size_t source = 0; source < ranks; ++source) {
    const std::vector<std::int32_t>& experts = routing.ranks[source].experts;
    std::fill(last_token.begin(), last_token.end(), experts.size());  // none has that number
    for (std::size_t i = 0; i < experts.size(); ++i) {
      if (experts[i] < 0) continue;
      const auto owner = static_cast<std::size_t>(experts[i] / traffic.experts_local());
      if (last_token[owner] == i / topk) continue;
      last_token[owner] = i / topk;
      ++traffic.distinct[owner * ranks + source];
    }
  }
}

}  // namespace

SimulatedLayer simulated_layer(const MoeLayer& layer, const shapes::Routing& routing) {
  SimulatedLayer out;
  sim::MoeTraffic& traffic = out.traffic;
  traffic.ranks = layer.ranks;
  traffic.experts = static_cast<int>(layer.shape.experts);
  traffic.tokens.assign(
      static_cast<std::size_t>(layer.shape.experts) * static_cast<std::size_t>(layer.ranks), 0);
  sim::MoeLayerSpec& spec = out.spec;
  for (int source = 0; source < layer.ranks; ++source) {
    spec.tokens = std::max(spec.tokens, routing.ranks[static_cast<std::size_t>(source)].tokens);
    const auto rows = routing.rows_of(source);
    for (std::size_t e = 0; e < rows.size(); ++e)
      traffic.tokens[e * static_cast<std::size_t>(layer.ranks) + static_cast<std::size_t>(source)] =
          static_cast<std::uint32_t>(rows[e]);
  }
  count_distinct(routing, traffic);
  spec.name = layer.shape.name;
  spec.hidden = layer.shape.hidden;
  spec.intermediate = layer.shape.intermediate;
  spec.topk = layer.shape.topk;
  switch (layer.weights) {
    case shapes::WeightFormat::kW8A8: break;
    case shapes::WeightFormat::kBf16: spec.weight_bytes = spec.activation_bytes = 2; break;
    case shapes::WeightFormat::kW4A8: spec.weight_bytes = 0.5; break;
  }
  return out;
}

std::optional<Error> too_many_pairs(const MoeLayer& layer, std::int64_t tokens) {
  if (tokens * layer.ranks * layer.shape.topk <= kMostPlannedPairs) return {};
  return bad_input("too many (token, expert) pairs to plan with", "--tokens",
                   std::to_string(tokens),
                   fmt::format("up to {} for this layer: tokens x ranks x k up to 2^26",
                               kMostPlannedPairs / (layer.ranks * layer.shape.topk)));
}

std::optional<Error> too_many_tiles(const MoeLayer& layer, std::int64_t tokens,
                                    std::int32_t block_n) {
  constexpr std::int32_t kBlockM = 128;
  const auto tiling =
      schedule::moe_tiling(layer.shape.hidden, layer.shape.intermediate, kBlockM, block_n);
  if (!tiling.valid()) return {};  // said elsewhere, by the sizes that it comes from
  // As though every expert's last row were part-filled, so that nothing need be drawn.
  const std::int64_t pairs = tokens * layer.ranks * layer.shape.topk;
  const std::int64_t rows = pairs / kBlockM + std::min(pairs, layer.shape.experts);
  const double tiles = static_cast<double>(rows) * (tiling.n1 + tiling.n2);
  if (tiles <= static_cast<double>(kMostSimulatedTiles)) return {};
  return bad_input("too many tiles to simulate", "--tokens", std::to_string(tokens),
                   fmt::format("up to 2^20 tiles of all ranks; these are {:.2g}", tiles));
}

Result<sim::MoeSetup> moe_setup(const model::Profile& profile, const MoeLayer& layer,
                                const sim::MoeOptions& options) {
  // Before the drawing, unless a file says how many tokens there are.
  if (layer.routing.kind != shapes::RoutingSpec::Kind::kFile)
    if (auto error = too_many_tiles(layer, layer.tokens)) return *error;
  const auto routing = layer.make_routing();
  if (!routing) return routing.error();
  const auto [spec, traffic] = simulated_layer(layer, *routing);
  if (auto error = too_many_tiles(layer, spec.tokens)) return *error;
  return sim::set_up_moe(profile, spec, traffic, options);
}

Result<ChosenMoeSchedule> choose_schedule(const model::Profile& profile, const MoeLayer& layer,
                                          sim::Dispatch dispatch) {
  sim::MoeOptions options;
  options.store.mechanism = default_mechanism(profile);
  options.dispatch = dispatch;
  const auto setup = moe_setup(profile, layer, options);
  if (!setup) return setup.error();
  const auto choice = sim::choose_moe_schedule(*setup, layer.seed);
  if (!choice) return choice.error();
  ChosenMoeSchedule out;
  out.schedule = choice->candidates[choice->best].schedule;
  out.choice = candidate_json(choice->candidates[choice->best]);
  out.choice["reason"] = choice->reason;
  out.candidates = nlohmann::json::array();
  for (const sim::MoeCandidate& candidate : choice->candidates)
    out.candidates.push_back(candidate_json(candidate));
  out.assumed = setup->assumed;
  return out;
}

nlohmann::json candidate_json(const sim::MoeCandidate& c) {
  const bool interleaved = c.schedule.kind == schedule::MoeScheduleKind::kInterleaved;
  return {{"schedule", interleaved ? "interleaved" : "wave"},
          {"lead", interleaved ? nlohmann::json(c.schedule.lead) : nlohmann::json()},
          {"group", interleaved ? nlohmann::json() : nlohmann::json(c.schedule.group)},
          {"time_us", c.time_us},
          {"stall_us", c.stall_us},
          {"method", "simulation"}};
}

nlohmann::json kernel_json(const sim::MoeSetup& setup) {
  return {{"block_m", setup.kernel.tiling.block_m},
          {"n1", setup.kernel.tiling.n1},
          {"n2", setup.kernel.tiling.n2},
          {"rows", setup.most_rows},
          {"linear1_tile_us", setup.times.linear1_us},
          {"linear2_tile_us", setup.times.linear2_us},
          {"tile_times", setup.times.source},
          {"tile_times_assumed", setup.times.assumed},
          {"mechanism", name(setup.store.mechanism->mechanism)},
          {"threads", setup.store.mechanism->threads},
          {"staging", setup.kernel.staging},
          {"remote_fraction", setup.remote_fraction},
          {"tile_bytes", setup.tile_bytes},
          {"slot_sum_us", setup.kernel.slot_sum_us}};
}

}  // namespace xstage::cli
