// The options that say which layer is meant, the same for plan, simulate, run and bench.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "shapes/routing.hpp"
#include "shapes/shapes.hpp"
#include "xstage/layout/ulysses.hpp"
#include "xstage/result.hpp"

namespace xstage::cli {

/// The options as they were given; a verb may set other defaults before registering them.
struct MoeLayerOptions {
  std::string shape;
  std::optional<std::int64_t> hidden, intermediate, experts, topk;
  std::int64_t tokens = 8192;
  int ranks = 2;
  std::string weights = "w8a8";
  std::string routing = "balanced";
  std::uint64_t seed = 1;
};

/// One MoE layer, complete and checked.
struct MoeLayer {
  shapes::MoeShape shape;
  std::int64_t tokens = 0;  ///< M, a rank; 0 with a routing file means "as many as the file has"
  int ranks = 0;            ///< P; divides the experts
  shapes::WeightFormat weights = shapes::WeightFormat::kW8A8;
  shapes::RoutingSpec routing;
  std::uint64_t seed = 0;

  std::int64_t experts_local() const { return shape.experts / ranks; }
  shapes::RoutingProblem routing_problem() const;
  /// Draws or reads the routing; a file may set the number of tokens.
  Result<shapes::Routing> make_routing() const;
};

/// A check for options that are 64-bit seeds: what none holds is refused, not wrapped or cut off.
/// Throws Failure.
std::string refuse_seed_out_of_range(const std::string& text);

/// Registers --shape, --hidden, --intermediate, --experts, --topk, --tokens, --ranks, --weights,
/// --routing and --seed. `options` must outlive the parse.
void add_moe_layer_options(CLI::App& app, MoeLayerOptions& options);
Result<MoeLayer> resolve(const MoeLayerOptions& options);
nlohmann::json to_json(const MoeLayer& layer);

struct AttentionLayerOptions {
  std::string shape;
  std::int64_t batch = 1;
  std::optional<std::int64_t> seq, heads, heads_local, kv_heads, head_dim;
  bool replicate_kv_heads = false;
  int ranks = 2;
  std::uint64_t seed = 1;
};

/// One Ulysses attention layer, complete and checked.
struct AttentionLayer {
  std::string name;
  std::int64_t batch = 1;
  std::int64_t seq = 0;             ///< S, over all ranks
  std::int64_t heads = 0;           ///< h, over all ranks; need not divide by the ranks
  std::int64_t kv_heads = 0;        ///< divides heads
  std::int64_t head_dim = 0;        ///< D
  bool replicate_kv_heads = false;  ///< kv_heads may be fewer than the ranks
  int ranks = 0;                    ///< P
  std::uint64_t seed = 0;
};

/// Registers --shape, --batch, --seq, --heads, --heads-local, --kv-heads, --head-dim, --ranks,
/// --seed and --replicate-kv-heads.
void add_attention_layer_options(CLI::App& app, AttentionLayerOptions& options);
/// What is accepted is what layout::checked() accepts, for every verb.
Result<AttentionLayer> resolve(const AttentionLayerOptions& options);
/// The same layer as the kernels take it, its rows sharded over the ranks.
layout::UlyssesConfig config_of(const AttentionLayer& layer);
nlohmann::json to_json(const AttentionLayer& layer);

}  // namespace xstage::cli
