// xstage simulate ulysses: attention with the output All-to-All fused into its tiles.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/inputs.hpp"
#include "cli/interrupt.hpp"
#include "cli/layer_options.hpp"
#include "cli/provenance.hpp"
#include "cli/simulate.hpp"
#include "cli/simulation_document.hpp"
#include "cli/ulysses_simulation.hpp"
#include "xstage/atomic_file.hpp"
#include "xstage/sim/ulysses.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;
using schedule::UlyssesOrderKind;

struct UlyssesVerb {
  SimulateOptions common;
  AttentionLayerOptions layer;
  std::string order = "remote-first";
  std::optional<int> staging;
  std::optional<double> tile_us;
};

json run_json(UlyssesOrderKind order, const sim::UlyssesResult& r, double capacity) {
  double stall = 0;
  std::int64_t tiles = 0;
  json ranks = json::array();
  for (const sim::UlyssesRankResult& rank : r.ranks) {
    stall += rank.stall_us / static_cast<double>(r.ranks.size());
    tiles += rank.tiles;
    ranks.push_back({{"tiles", rank.tiles},
                     {"sent_bytes", rank.remote_bytes},
                     {"issued_us", rank.issued_us},
                     {"drained_us", rank.drained_us},
                     {"done_us", rank.done_us},
                     {"math_us", rank.math_us},
                     {"stall_us", rank.stall_us},
                     {"tile_issue_us", rank.issue_mean},
                     {"peak_backlog_bytes", rank.most_backlog}});
  }
  json out = {{"schedule", order_name(order)},
              {"order", order_name(order)},
              {"time_us", r.time_us},
              {"stall_us", stall},
              {"stall_fraction", r.time_us > 0 ? stall / r.time_us : 0},
              {"tiles", tiles},
              {"ranks", std::move(ranks)}};
  out.update(timeline_json(r.timeline, capacity, 6000));
  return out;
}

int run_ulysses(const Console& console, const UlyssesVerb& verb) {
  (void)store_options(verb.common, model::Mechanism::kStoreV4);
  if (verb.order != "remote-first" && verb.order != "row-major" && verb.order != "both")
    return console.fail(bad_input("no such order of tiles", "--order", verb.order,
                                  "remote-first, row-major, both"));
  if (verb.staging && (*verb.staging < 0 || *verb.staging > 16))
    return console.fail(bad_input("an option of the simulated kernel is not allowed", "--staging",
                                  std::to_string(*verb.staging), "0 to 16"));
  if (verb.tile_us && !(*verb.tile_us >= 0.01 && *verb.tile_us <= 1e7))
    return console.fail(bad_input("an option of the simulated kernel is not allowed", "--tile-us",
                                  fmt::format("{}", *verb.tile_us), "0.01 to 1e7"));
  const AttentionLayer layer = resolve(verb.layer).value();
  const model::Profile profile = profile_of(verb.common.profile);
  UlyssesSimulation options;
  options.store = store_options(verb.common, default_mechanism(profile));
  options.staging = verb.staging;
  options.tile_us = verb.tile_us;
  const UlyssesSetup setup = ulysses_setup(profile, layer, options).value();
  const sim::StoreModel& store = setup.store;
  sim::UlyssesKernel kernel = setup.kernel;

  sim::TimelineOptions keep;
  keep.sms = traced_sms(store, verb.common.trace_sms);
  keep.max_spans = 2000000;
  keep.backlog_samples = 4096;
  kernel.local_only = true;
  const double alone = sim::simulate_ulysses(store.fabric, kernel, layer.seed).time_us;
  kernel.local_only = false;
  std::vector<UlyssesOrderKind> orders;
  if (verb.order != "row-major") orders.push_back(UlyssesOrderKind::kRemoteFirst);
  if (verb.order != "remote-first") orders.push_back(UlyssesOrderKind::kRowMajor);

  json document = {{"format", "xstage.simulation/1"},
                   {"provenance", provenance("simulate ulysses", {verb.common.profile})},
                   {"profile", reference(profile)},
                   {"layer", to_json(layer)},
                   {"kernel",
                    {{"block_m", kernel.block_m},
                     {"tile_us", kernel.tile_us},
                     {"tile_bytes", kernel.row_bytes * kernel.block_m},
                     {"mechanism", name(store.mechanism->mechanism)},
                     {"threads", store.mechanism->threads},
                     {"staging", kernel.staging}}},
                   {"attention_us", alone},
                   {"runs", json::array()}};
  document["layer"]["kind"] = "ulysses";
  document["provenance"]["assumed"] = setup.assumed;
  console.text(fmt::format("{}: {} ranks, {} heads, {} rows, head size {}; a tile takes {:.1f} us",
                           layer.name, layer.ranks, layer.heads, layer.seq, layer.head_dim,
                           kernel.tile_us));
  console.text(fmt::format("attention alone            {:>10.1f} us", alone));
  bool traced = false;
  const double capacity = store.fabric[0].queue_per_sm * static_cast<double>(store.order.size());
  for (const UlyssesOrderKind order : orders) {
    kernel.order = order;
    const sim::UlyssesResult r = sim::simulate_ulysses(store.fabric, kernel, layer.seed, keep);
    json run = run_json(order, r, capacity);
    run["residual_us"] = r.time_us - alone;
    document["runs"].push_back(std::move(run));
    console.text(fmt::format("fused, {:<19} {:>10.1f} us   {:.1f} us more than attention alone",
                             order_name(order), r.time_us, r.time_us - alone));
    if (!verb.common.trace.empty() && !traced)
      write_trace(verb.common.trace, r.timeline,
                  fmt::format("{}, {}", layer.name, order_name(order)));
    traced = true;
  }
  begin_answer();
  if (!verb.common.out.empty()) {
    const auto written = write_file(verb.common.out, document.dump() + "\n");
    if (!written) return console.fail(written.error(), std::move(document));
  }
  console.document(document);
  return 0;
}

}  // namespace

void add_simulate_ulysses(CLI::App& simulate, Session& session) {
  auto options = std::make_shared<UlyssesVerb>();
  CLI::App* verb = simulate.add_subcommand("ulysses", "Ulysses attention, output exchange fused");
  add_simulate_options(*verb, options->common, session.console);
  add_attention_layer_options(*verb, options->layer);
  verb->add_option("--order", options->order, "remote-first, row-major or both")
      ->capture_default_str();
  verb->add_option("--staging", options->staging,
                   "finished tiles that can wait for the link beside math (bulk stores 1, else 0)");
  verb->add_option("--tile-us", options->tile_us, "time of a tile of 128 query rows");
  verb->callback([options, &session] {
    session.action = [options, &session] { return run_ulysses(session.console, *options); };
  });
}

}  // namespace xstage::cli
