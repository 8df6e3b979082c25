#include "cli/bench_moe_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "cli/moe_simulation.hpp"
#include "xstage/sim/fused_moe.hpp"

namespace xstage::cli {
namespace {

/// Layers of the tables, by name.
constexpr const char* kSeven[] = {"lingbot-video",  "qwen3.5-397b", "hy3",
                                  "mimo-v2.5",      "glm-5",        "deepseek-v4-flash",
                                  "deepseek-v4-pro"};

}  // namespace

Result<MoeBenchPlan> moe_bench_plan(const MoeBenchOptions& options) {
  MoeBenchPlan plan;
  for (const std::int64_t lead : options.leads)
    if (lead < 1 || lead > (std::int64_t{1} << 40))
      return bad_input("a lead is out of range", "--lead", fmt::format("{}", lead), "1 to 2^40");
  if (options.launches < 0 || options.launches > 64)
    return bad_input("the launches are out of range", "--launches",
                     fmt::format("{}", options.launches), "1 to 64");
  if (options.dispatch == "per-slot")
    plan.ways = {layout::MoeDispatch::kPerSlot};
  else if (options.dispatch == "both")
    plan.ways.push_back(layout::MoeDispatch::kPerSlot);
  else if (options.dispatch != "per-rank")
    return bad_input("no such way of dispatch", "--dispatch", options.dispatch,
                     "per-rank, per-slot, both");
  const auto add = [&](const char* shape, const char* routing,
                       std::int64_t tokens) -> Result<bool> {
    MoeLayerOptions one = options.layer;
    one.shape = shape;
    one.routing = routing;
    one.tokens = tokens;
    if (options.table == "ep8" && !options.ranks_given) one.ranks = 8;
    auto layer = resolve(one);
    if (!layer) {
      Error error = layer.error();
      error.what += fmt::format(" ({})", shape);
      return error;
    }
    plan.layers.push_back(*layer);
    return true;
  };
  if (options.table == "peers") {
    for (const char* shape : kSeven)
      for (const std::int64_t tokens : {8192, 1024})
        if (std::string_view(shape) != "mimo-v2.5")
          if (const auto done = add(shape, "balanced", tokens); !done) return done.error();
    plan.leads = {16, 64};
    plan.launches = 15;
    plan.pause_ms = 15;
    plan.cold = plan.cublas = plan.both_ways = true;
  } else if (options.table == "ep8") {
    // The paper's grid, and the sizes that a peer measured at eight ranks.
    for (const char* shape : kSeven) {
      for (const char* routing : {"balanced", "zipf:1.2"})
        for (const std::int64_t tokens : {2048, 8192, 16384})
          if (const auto done = add(shape, routing, tokens); !done) return done.error();
      if (std::string_view(shape).starts_with("deepseek"))
        for (const std::int64_t tokens : {512, 1024, 4096})
          if (const auto done = add(shape, "balanced", tokens); !done) return done.error();
    }
    plan.leads = {16, 64};
  } else if (options.table == "mechanism") {
    for (const char* shape : {"lingbot-video", "qwen3.5-397b", "deepseek-v4-flash"})
      for (const char* routing : {"balanced", "remote:0.875"})
        if (const auto done = add(shape, routing, 8192); !done) return done.error();
    plan.leads = {16, 64};
    plan.phases_of_all = true;
  } else if (options.table == "sweep") {
    for (const char* shape : kSeven)
      for (const char* routing : {"balanced", "zipf:1.2", "remote:0.875"})
        for (const std::int64_t tokens : {2048, 8192, 16384})
          if (const auto done = add(shape, routing, tokens); !done) return done.error();
    plan.leads = {1, 4, 16, 64};
  } else if (options.table == "kernel") {
    // None of the sizes of the other tables.
    for (const char* shape : kSeven)
      for (const char* routing : {"balanced", "zipf:1.2", "remote:0.875"})
        for (const std::int64_t tokens : {896, 3072, 6144, 12288, 20480})
          if (const auto done = add(shape, routing, tokens); !done) return done.error();
    plan.leads = {1, 4, 16, 32, 64};
    plan.launches = 6;
    plan.predicted = false;
  } else if (options.table.empty()) {
    auto layer = resolve(options.layer);
    if (!layer) return layer.error();
    plan.layers.push_back(*layer);
    plan.leads = {4, 16, 64};
    plan.launches = 15;
    plan.cold = plan.cublas = true;
  } else {
    return bad_input("no such table", "--table", options.table,
                     "peers, sweep, kernel, ep8, mechanism");
  }
  if (options.predict && options.table == "kernel")
    return bad_input("predictions rest on this table", "--predict", "--table kernel",
                     "another table");
  const bool timed = plan.layers.front().weights == shapes::WeightFormat::kW8A8;
  if (!timed && options.table == "kernel")
    return bad_input("predictions rest on times of the kernel in w8a8", "--weights",
                     options.layer.weights, "w8a8 with --table kernel");
  // Nothing was measured to predict the others from; asked for, that is an error later on.
  plan.predicted = plan.predicted && (timed || options.predict);
  for (const MoeLayer& layer : plan.layers)
    if (layer.routing.kind != shapes::RoutingSpec::Kind::kFile)
      if (auto error = too_many_tiles(layer, layer.tokens, sim::kFusedBlockN)) {
        if (options.predict) return *error;
        plan.not_predicted = error->message();
        plan.predicted = false;
      }
  if (!options.leads.empty()) plan.leads = options.leads;
  if (options.launches > 0) plan.launches = options.launches;
  plan.cold = plan.cold || options.cold;
  return plan;
}

std::int64_t timed_bytes(const MoeLayer& layer) {
  layout::MoeConfig config;
  config.ranks = layer.ranks;
  config.topk = static_cast<std::int32_t>(layer.shape.topk);
  config.experts = layer.shape.experts;
  config.hidden = layer.shape.hidden;
  config.intermediate = layer.shape.intermediate;
  config.capacity = std::max<std::int64_t>(layer.tokens, 1);
  config.format = layer.weights;
  config.block_m = sim::kFusedBlockM;
  config.block_n = sim::kFusedBlockN;
  const auto layout = layout::MoeLayout::make(config);
  const std::int64_t value = activation_bytes(config.format);
  const std::int64_t weights =
      config.experts_local() * 3 * config.hidden * config.intermediate * value;
  const std::int64_t tokens = 2 * config.capacity * config.hidden * 2;
  const std::int64_t products =
      layout.max_rows * config.block_m * std::max(2 * config.intermediate, config.hidden) * 2;
  return layout.symmetric_bytes + layout.workspace_bytes + weights + tokens + products;
}

}  // namespace xstage::cli
