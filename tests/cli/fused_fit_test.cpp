// The fit behind predictions of the fused kernel: what made the launches is found again.
#include "cli/fused_fit.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "cli/inputs.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;

MoeLayer layer_of(const char* routing, std::int64_t tokens) {
  MoeLayerOptions options;
  options.shape = "lingbot-video";
  options.routing = routing;
  options.tokens = tokens;
  return resolve(options).value();
}

/// A row as the bench writes it, of a kernel that behaves exactly as `times` says.
json row_of(const plan::FusedTimes& times, const MoeLayer& layer) {
  const auto routing = layer.make_routing().value();
  const auto moe = fused_moe(shipped_profile(), times, layer, routing).value();
  const auto& of_layer = times.layers.front();
  double rows = 0, experts = 0;
  for (const auto& local : moe.setup.local_tokens) {
    double used = 0;
    for (const std::uint32_t count : local) used += count > 0;
    experts = std::max(experts, used);
  }
  rows = static_cast<double>(moe.setup.most_rows);
  const auto hidden = static_cast<double>(layer.shape.hidden);
  const auto [spec, traffic] = simulated_layer(layer, routing);
  plan::DispatchLoad most;
  for (const plan::DispatchLoad& load :
       sim::dispatch_loads(traffic, spec, moe.setup.store.fabric[0].drain_rate))
    most = {std::max(most.link_us, load.link_us), std::max(most.own_mb, load.own_mb),
            std::max(most.read_mb, load.read_mb), std::max(most.written_mb, load.written_mb)};
  const double slots = times.slot_sum.at(static_cast<double>(layer.shape.topk + 1) *
                                         static_cast<double>(layer.tokens) * hidden * 2e-6);
  const auto products = [&](const plan::FusedProducts& p) {
    return json{{"median", p.expert_us * experts + p.row_us * rows}};
  };
  json row{{"layer", to_json(layer)},
           {"phases_us",
            {{"start", times.start.at(most)},
             {"combined", 0.0},
             {"end", slots},
             {"marks", {{"landed", times.start.landed_us(most)}}}}},
           {"products_us",
            {{"linear1", products(of_layer.linear1)}, {"linear2", products(of_layer.linear2)}}},
           {"runs", json::array()}};
  for (const std::int64_t lead : {0, 16, 64}) {
    const auto s =
        lead == 0 ? schedule::MoeSchedule::wave(4) : schedule::MoeSchedule::interleaved(lead);
    row["runs"].push_back({{"schedule", lead == 0 ? "wave" : "interleaved"},
                           {"lead", lead == 0 ? json() : json(lead)},
                           {"group", lead == 0 ? json(4) : json()},
                           {"dispatch", "per-rank"},
                           {"time_us", {{"median", sim::predict(moe, s, layer.seed).time_us}}}});
  }
  return row;
}

TEST(FusedFit, FindsWhatMadeTheLaunches) {
  plan::FusedTimes made;
  made.start = {{20, 0.8}, 9, 0.4, 0.3};
  made.slot_sum = {5, 0.3};
  made.layers.push_back({"lingbot-video",
                         2048,
                         768,
                         {0.6, 0.5},
                         {0.2, 0.3},
                         {{0, 30, 1.05, 0.2}, {16, 0, 1.1, 0}, {64, 12, 0.9, 0.5}}});
  std::vector<json> rows(7);
  const std::pair<const char*, std::int64_t> cases[] = {
      {"balanced", 700},   {"balanced", 3000},   {"zipf:1.2", 1200},  {"zipf:1.2", 2500},
      {"remote:0.9", 900}, {"remote:0.9", 2000}, {"remote:0.2", 1500}};
  in_parallel(rows.size(), [&](std::size_t i) {
    rows[i] = row_of(made, layer_of(cases[i].first, cases[i].second));
  });
  const json fit = fit_fused_times(shipped_profile(), rows).value();
  EXPECT_NEAR(fit["start"]["landed"]["per_unit"].get<double>(), 0.8, 1e-6);
  EXPECT_NEAR(fit["start"]["filled"]["per_read_mb"].get<double>(), 0.4, 1e-3);
  EXPECT_NEAR(fit["start"]["filled"]["per_written_mb"].get<double>(), 0.3, 1e-3);
  EXPECT_NEAR(fit["slot_sum"]["base_us"].get<double>(), 5, 1e-4);
  EXPECT_NEAR(fit["layers"][0]["linear1"]["row_us"].get<double>(), 0.5, 1e-6);
  EXPECT_NEAR(fit["layers"][0]["linear2"]["expert_us"].get<double>(), 0.2, 1e-6);
  for (std::size_t i = 0; i < 3; ++i) {
    const json& found = fit["layers"][0]["corrections"][i];
    const plan::FusedCorrection& wanted = made.layers[0].corrections[i];
    EXPECT_EQ(found["lead"], wanted.lead);
    EXPECT_NEAR(found["base_us"].get<double>(), wanted.base_us, 0.5);
    EXPECT_NEAR(found["per_us"].get<double>(), wanted.per_us, 0.01);
    EXPECT_NEAR(found["per_link_us"].get<double>(), wanted.per_link_us, 0.02);
  }
}

TEST(FusedFit, TheSameGroupGetsTheSameChoice) {
  const MoeLayer layer = layer_of("zipf:1.2", 2048);
  const auto routing = layer.make_routing().value();
  const auto once = choose_fused(shipped_profile(), plan::fused_times(), layer, routing).value();
  const auto again = choose_fused(shipped_profile(), plan::fused_times(), layer, routing).value();
  EXPECT_EQ(once.schedule, again.schedule);
  EXPECT_EQ(once.candidates, again.candidates);
  EXPECT_GE(once.candidates.size(), 2u);
}

}  // namespace
}  // namespace xstage::cli
