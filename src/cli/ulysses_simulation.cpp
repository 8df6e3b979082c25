#include "cli/ulysses_simulation.hpp"

#include "cli/moe_simulation.hpp"

namespace xstage::cli {

std::string order_name(schedule::UlyssesOrderKind order) {
  return order == schedule::UlyssesOrderKind::kRemoteFirst ? "remote-first" : "row-major";
}

Result<UlyssesSetup> ulysses_setup(const model::Profile& profile, const AttentionLayer& layer,
                                   const UlyssesSimulation& options) {
  constexpr double kFlagUs = 1.15;  // half of the measured round trip (data/h200x2/peers.json)
  UlyssesSetup out;
  sim::UlyssesKernel& kernel = out.kernel;
  const std::int64_t blocks = (layer.seq + kernel.block_m - 1) / kernel.block_m;
  if (layer.batch * layer.heads > kMostSimulatedTiles / blocks)
    return bad_input("too many tiles to simulate", "--seq", std::to_string(layer.seq),
                     "batch x heads x blocks of 128 rows up to 2^20");
  sim::StoreOptions store_options = options.store;
  store_options.both_ways = layer.ranks > 1;
  auto store = sim::store_model(profile, store_options);
  if (!store) return store.error();
  out.store = std::move(store).value();
  const bool bulk = out.store.mechanism->mechanism == model::Mechanism::kTmaBulk;
  kernel.ranks = layer.ranks;
  kernel.batch = layer.batch;
  kernel.seq = layer.seq;
  kernel.heads = layer.heads;
  const sim::AttentionRate rate = sim::attention_tile(layer.seq, layer.head_dim, kernel.block_m);
  kernel.tile_us = options.tile_us.value_or(rate.tile_us);
  kernel.row_bytes = 2.0 * static_cast<double>(layer.head_dim);
  for (int rows = 0; rows <= kernel.block_m; ++rows)
    kernel.issue_us.push_back(out.store.issue_us(rows * kernel.row_bytes));
  kernel.residual = bulk ? 0 : out.store.residual;
  kernel.staging = options.staging.value_or(bulk ? 1 : 0);
  kernel.flag_us = kFlagUs;
  out.assumed = out.store.notes;
  if (!options.tile_us && rate.assumed)
    out.assumed.push_back("tile time: the rate of the nearest measured head size");
  if (layer.ranks > 2)
    out.assumed.push_back(
        "a rank receives as fast as it sends; senders that meet there share that");
  return out;
}

}  // namespace xstage::cli
