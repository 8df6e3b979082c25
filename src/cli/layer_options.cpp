#include "cli/layer_options.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>

#include "xstage/layout/check.hpp"
#include "xstage/limits.hpp"

namespace xstage::cli {
namespace {

std::optional<Error> check_size(const char* field, std::int64_t value, std::int64_t least,
                                std::int64_t most) {
  if (value >= least && value <= most) return {};
  return bad_input("a size of the layer is not allowed", field, std::to_string(value),
                   fmt::format("{} to {}", least, most));
}

Error missing(const char* field) {
  return bad_input("the layer is not complete without --shape", field, "not given",
                   "--shape NAME, or all of its sizes");
}

}  // namespace

std::string refuse_seed_out_of_range(const std::string& text) {
  errno = 0;
  (void)std::strtoull(text.c_str(), nullptr, 0);
  if (text.starts_with('-') || errno == ERANGE)  // which the parser takes for the largest there is
    throw Failure(bad_input("a seed is not allowed", "--seed", text, "0 to 18446744073709551615"));
  return {};
}

shapes::RoutingProblem MoeLayer::routing_problem() const {
  return {shape.experts, shape.topk, ranks, tokens, seed};
}

Result<shapes::Routing> MoeLayer::make_routing() const {
  return shapes::make_routing(routing, routing_problem());
}

void add_moe_layer_options(CLI::App& app, MoeLayerOptions& options) {
  app.add_option("--shape", options.shape, "Layer of a public model, by name")->group("Layer");
  app.add_option("--hidden", options.hidden, "Hidden size H");
  app.add_option("--intermediate", options.intermediate, "Intermediate size I of one expert");
  app.add_option("--experts", options.experts, "Experts over all ranks");
  app.add_option("--topk", options.topk, "Experts a token goes to");
  app.add_option("--tokens", options.tokens, "Tokens a rank")->capture_default_str();
  app.add_option("--ranks", options.ranks, "Ranks of the expert-parallel group")
      ->capture_default_str();
  app.add_option("--weights", options.weights, "w8a8, bf16 or w4a8")->capture_default_str();
  app.add_option("--routing", options.routing, "balanced, zipf:S, remote:F or file:PATH")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of everything random")
      ->check(refuse_seed_out_of_range)
      ->capture_default_str();
  for (const char* name : {"--hidden", "--intermediate", "--experts", "--topk", "--tokens",
                           "--ranks", "--weights", "--routing", "--seed"})
    app.get_option(name)->group("Layer");
}

Result<MoeLayer> resolve(const MoeLayerOptions& options) {
  MoeLayer layer;
  if (!options.shape.empty()) {
    auto found = shapes::find_moe_shape(options.shape);
    if (!found) return found.error();
    layer.shape = *found;
  } else {
    layer.shape.name = "custom";
    if (!options.hidden) return missing("--hidden");
    if (!options.intermediate) return missing("--intermediate");
    if (!options.experts) return missing("--experts");
    if (!options.topk) return missing("--topk");
  }
  // A size given beside a shape replaces that size of the shape.
  const std::pair<const std::optional<std::int64_t>&, std::int64_t&> sizes[] = {
      {options.hidden, layer.shape.hidden},
      {options.intermediate, layer.shape.intermediate},
      {options.experts, layer.shape.experts},
      {options.topk, layer.shape.topk}};
  bool changed = false;
  for (const auto& [given, value] : sizes) {
    if (!given) continue;
    if (!options.shape.empty() && value != *given) changed = true;
    value = *given;
  }
  if (changed) layer.shape.name += "-changed";
  auto valid = shapes::checked(layer.shape);
  if (!valid) return valid.error();
  if (auto error = check_size("--ranks", options.ranks, 1, kMaxRanks)) return *error;
  if (layer.shape.experts % options.ranks != 0)
    return bad_input("the experts do not divide by the ranks", "--ranks",
                     std::to_string(options.ranks),
                     fmt::format("a divisor of {} experts", layer.shape.experts));
  auto routing = shapes::parse_routing(options.routing);
  if (!routing) return routing.error();
  layer.routing = *routing;
  if (auto error = check_size("--tokens", options.tokens, 0, shapes::kMaxTokens)) return *error;
  const auto weights = shapes::parse_weight_format(options.weights);
  if (!weights) return weights.error();
  layer.weights = *weights;
  layer.tokens = options.tokens;
  layer.ranks = options.ranks;
  layer.seed = options.seed;
  return layer;
}

nlohmann::json to_json(const MoeLayer& layer) {
  return {{"shape", layer.shape.name},
          {"hidden", layer.shape.hidden},
          {"intermediate", layer.shape.intermediate},
          {"experts", layer.shape.experts},
          {"topk", layer.shape.topk},
          {"tokens", layer.tokens},
          {"ranks", layer.ranks},
          {"weights", shapes::name(layer.weights)},
          {"routing", layer.routing.text()},
          {"seed", layer.seed}};
}

void add_attention_layer_options(CLI::App& app, AttentionLayerOptions& options) {
  app.add_option("--shape", options.shape, "Attention of a public model, by name");
  app.add_option("--batch", options.batch, "Batch size")->capture_default_str();
  app.add_option("--seq", options.seq, "Sequence length over all ranks");
  app.add_option("--heads", options.heads, "Query heads over all ranks");
  app.add_option("--heads-local", options.heads_local, "Query heads a rank, in place of --heads");
  app.add_option("--kv-heads", options.kv_heads, "Key and value heads over all ranks");
  app.add_option("--head-dim", options.head_dim, "Size of a head");
  app.add_flag("--replicate-kv-heads", options.replicate_kv_heads,
               "Allow fewer key heads than ranks");
  app.add_option("--ranks", options.ranks, "Ulysses degree")->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of everything random")
      ->check(refuse_seed_out_of_range)
      ->capture_default_str();
  for (const char* name : {"--shape", "--batch", "--seq", "--heads", "--heads-local", "--kv-heads",
                           "--head-dim", "--replicate-kv-heads", "--ranks", "--seed"})
    app.get_option(name)->group("Layer");
}

Result<AttentionLayer> resolve(const AttentionLayerOptions& options) {
  AttentionLayer layer;
  layer.name = "custom";
  if (auto error = check_size("--ranks", options.ranks, 1, kMaxRanks)) return *error;
  layer.ranks = options.ranks;
  if (options.heads && options.heads_local)
    return bad_input("the heads are given twice", "--heads-local",
                     std::to_string(*options.heads_local), "either --heads or --heads-local");
  if (!options.shape.empty()) {
    const auto shape = shapes::find_attention_shape(options.shape);
    if (!shape) return shape.error();
    layer.name = shape->name;
    layer.heads = shape->heads ? shape->heads : shape->heads_local * options.ranks;
    layer.kv_heads = shape->kv_heads;
    layer.head_dim = shape->head_dim;
    layer.seq = shape->seq.front();
  } else {
    if (!options.heads && !options.heads_local) return missing("--heads");
    if (!options.seq) return missing("--seq");
    if (!options.head_dim) return missing("--head-dim");
  }
  if (options.seq) layer.seq = *options.seq;
  if (options.head_dim) layer.head_dim = *options.head_dim;
  if (options.kv_heads) layer.kv_heads = *options.kv_heads;
  if (options.heads) layer.heads = *options.heads;
  if (options.heads_local) {
    if (auto error = check_size("--heads-local", *options.heads_local, 1, shapes::kMaxSize))
      return *error;
    layer.heads = *options.heads_local * options.ranks;
  }
  if (layer.kv_heads == 0 && !options.kv_heads) layer.kv_heads = layer.heads;
  if (auto error = check_size("--heads", layer.heads, 1, shapes::kMaxSize)) return *error;
  if (auto error = check_size("--kv-heads", layer.kv_heads, 1, layer.heads)) return *error;
  if (auto error = check_size("--seq", layer.seq, 1, shapes::kMaxTokens)) return *error;
  if (auto error = check_size("--batch", options.batch, 1, shapes::kMaxSize)) return *error;
  layer.batch = options.batch;
  layer.seed = options.seed;
  layer.replicate_kv_heads = options.replicate_kv_heads;
  if (const auto valid = layout::checked(config_of(layer)); !valid) return valid.error();
  return layer;
}

layout::UlyssesConfig config_of(const AttentionLayer& layer) {
  layout::UlyssesConfig config;
  config.ranks = layer.ranks;
  config.batch = layer.batch;
  config.heads = layer.heads;
  config.kv_heads = layer.kv_heads;
  config.replicate_kv_heads = layer.replicate_kv_heads;
  config.head_dim = layer.head_dim;
  config.rows = config.key_rows = layer.seq;
  const auto shards = layout::sharded(layer.seq, layer.ranks);
  layout::set_segments(config, shards);
  layout::set_key_segments(config, shards);
  return config;
}

nlohmann::json to_json(const AttentionLayer& layer) {
  return {{"shape", layer.name},  {"batch", layer.batch},       {"seq", layer.seq},
          {"heads", layer.heads}, {"kv_heads", layer.kv_heads}, {"head_dim", layer.head_dim},
          {"ranks", layer.ranks}, {"seed", layer.seed}};
}

}  // namespace xstage::cli
