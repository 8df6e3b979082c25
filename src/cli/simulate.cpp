// xstage simulate: layers on a simulated node (moe, ulysses), or the probe's own loop
// (--burst-loop).
#include "cli/simulate.hpp"

#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "cli/inputs.hpp"
#include "cli/interrupt.hpp"
#include "cli/layer_options.hpp"
#include "cli/provenance.hpp"
#include "cli/simulation_document.hpp"
#include "cli/typed_options.hpp"
#include "xstage/atomic_file.hpp"
#include "xstage/model/burst_gap.hpp"
#include "xstage/sim/burst_loop.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;

struct BurstLoopVerb {
  SimulateOptions common;
  bool asked = false;
  model::Workload workload;
  std::string align = "free";
  double window_us = 0;
  int bursts = 8;
  std::uint64_t seed = 1;
};

/// Windows longer than this hold no news, and would take minutes.
constexpr double kMaxBursts = 2e6;

sim::BurstLoop loop_of(const BurstLoopVerb& verb, const sim::StoreModel& store,
                       const model::Prediction& prediction) {
  sim::BurstLoop loop;
  loop.producers = store.order;
  loop.bytes = static_cast<double>(verb.workload.bytes);
  loop.residual = store.residual;
  loop.seed = verb.seed;
  if (verb.align == "isolated") {
    loop.alignment = sim::Alignment::kIsolated;
    loop.bursts = verb.bursts;
    loop.issue_us = store.isolated_issue_us(loop.bytes);
    return loop;
  }
  loop.gap_us = prediction.gap_us;
  loop.residual_us = store.residual_us;
  loop.issue_us = store.issue_us(loop.bytes);
  loop.window_us = verb.window_us > 0 ? verb.window_us : std::max(500.0, 50 * prediction.period_us);
  // Bursts that begin in the last three quarters count, and a period needs some of them.
  constexpr double kLeastPeriods = 8;
  if (loop.window_us < kLeastPeriods * prediction.period_us)
    throw Failure(bad_input("the window holds too few bursts", "--window-us",
                            fmt::format("{}", loop.window_us),
                            fmt::format("at least {:.4g}, {:.0f} periods of {:.4g} us",
                                        std::ceil(kLeastPeriods * prediction.period_us),
                                        kLeastPeriods, prediction.period_us)));
  const double bursts =
      verb.workload.producers * loop.window_us / std::max(1e-3, prediction.period_us);
  if (bursts > kMaxBursts)
    throw Failure(bad_input(fmt::format("the window holds {:.0f} bursts", bursts), "--window-us",
                            fmt::format("{}", loop.window_us),
                            fmt::format("a window of at most {:.0f} bursts", kMaxBursts)));
  return loop;
}

int run_burst_loop_verb(const Console& console, BurstLoopVerb& verb) {
  sim::StoreOptions options = store_options(verb.common, model::Mechanism::kStoreV4);
  if (verb.align != "free" && verb.align != "isolated")
    return console.fail(bad_input("no such alignment", "--align", verb.align, "free, isolated"));
  if (!(verb.window_us >= 0 && verb.window_us <= 1e9))
    return console.fail(bad_input("a window is a time", "--window-us",
                                  fmt::format("{}", verb.window_us), "0 (by itself) to 1e9"));
  if (verb.bursts < 1 || verb.bursts > 10000)
    return console.fail(
        bad_input("some bursts are needed", "--bursts", std::to_string(verb.bursts), "1 to 10000"));
  model::Workload& w = verb.workload;
  w.mechanism = options.mechanism;
  w.threads = options.threads;
  const model::Profile profile = profile_of(verb.common.profile);
  // A profile that does not know how many GPUs its node has takes any that a profile can name.
  const int gpus = profile.node.gpus > 0 ? profile.node.gpus : 1024;
  if (w.gpu < 0 || w.gpu >= gpus)
    return console.fail(bad_input("the node has no such GPU", "--gpu", std::to_string(w.gpu),
                                  fmt::format("0 to {}", gpus - 1)));
  const auto prediction = model::predict(profile, w);
  if (!prediction) return console.fail(prediction.error());
  options.producers = w.producers;
  options.both_ways = w.both_ways;
  const sim::StoreModel store = sim::store_model(profile, options).value();
  const sim::BurstLoop loop = loop_of(verb, store, *prediction);
  const auto gpu = static_cast<std::size_t>(w.gpu) % store.fabric.size();
  const sim::BurstLoopResult r = sim::run_burst_loop(store.fabric[gpu], loop);
  const bool isolated = loop.alignment == sim::Alignment::kIsolated;
  const double capacity = store.fabric[gpu].queue_per_sm * w.producers;

  json document = {
      {"format", "xstage.simulation/1"},
      {"provenance", provenance("simulate", {verb.common.profile})},
      {"profile", reference(profile)},
      {"burst_loop",
       {{"input",
         {{"producers", w.producers},
          {"bytes", w.bytes},
          {"gap_us", w.gap_us},
          {"align", verb.align},
          {"mechanism", name(w.mechanism)},
          {"threads", store.mechanism->threads},
          {"both_ways", w.both_ways},
          {"seed", verb.seed}}},
        {"bursts", r.bursts},
        {"simulated",
         {{"period_us", isolated ? json() : json(r.period_us)},
          {"issue_p05_us", r.issue_p05},
          {"issue_p50_us", r.issue_p50},
          {"issue_us", r.issue_mean},
          {"issue_p95_us", r.issue_p95},
          {"drained_us", isolated ? json(r.drained_us) : json()},
          {"peak_backlog_bytes", r.most_backlog}}},
        {"capacity_bytes", capacity},
        {"predicted",
         {{"period_us", isolated ? json() : json(prediction->period_us)},
          {"issue_us", !isolated                       ? json(prediction->issue_us)
                       : prediction->isolated_issue_us ? json(*prediction->isolated_issue_us)
                                                       : json()}}}}}};
  json per_sm = {{"sm", json::array()}, {"bursts", json::array()}, {"issue_us", json::array()}};
  for (const auto& p : r.producers) {
    per_sm["sm"].push_back(p.sm);
    per_sm["bursts"].push_back(p.bursts);
    per_sm["issue_us"].push_back(p.issue_mean);
  }
  document["burst_loop"]["per_sm"] = std::move(per_sm);
  begin_answer();
  if (!verb.common.out.empty()) {
    const auto written = write_file(verb.common.out, document.dump() + "\n");
    if (!written) return console.fail(written.error(), std::move(document));
  }
  console.document(document);
  if (!isolated)
    console.text(fmt::format("period      {:.3f} us simulated, {:.3f} us by the closed form",
                             r.period_us, prediction->period_us));
  const auto closed = isolated ? prediction->isolated_issue_us : prediction->issue_us;
  console.text(fmt::format("issue time  {:.3f} us simulated{}", r.issue_mean,
                           closed ? fmt::format(", {:.3f} us by the closed form", *closed) : ""));
  console.text(fmt::format("            p05 {:.3f}, p50 {:.3f}, p95 {:.3f} us over {} bursts",
                           r.issue_p05, r.issue_p50, r.issue_p95, r.bursts));
  console.text(
      fmt::format("backlog     {:.2f} of {:.2f} MB at most", r.most_backlog / 1e6, capacity / 1e6));
  return 0;
}

}  // namespace

void add_simulate(CLI::App& app, Session& session) {
  auto options = std::make_shared<BurstLoopVerb>();
  CLI::App* verb = app.add_subcommand(
      "simulate", "Event simulation: a MoE layer, Ulysses attention, or the probe's loop");
  verb->require_subcommand(0, 1);
  verb->fallthrough(false);
  add_simulate_options(*verb, options->common, session.console);
  model::Workload& w = options->workload;
  w.producers = 132;
  w.bytes = 32768;
  verb->add_flag("--burst-loop", options->asked,
                 "run the probe's loop: K producers, B bytes, a gap G");
  const char* group = "Burst loop";
  verb->add_option("--producers", w.producers, "K: thread blocks that store, one an SM")
      ->capture_default_str()
      ->group(group);
  verb->add_option("--bytes", w.bytes, "B: bytes of a burst of one producer")
      ->capture_default_str()
      ->group(group);
  verb->add_option("--gap-us", w.gap_us, "G: useful time between bursts")
      ->capture_default_str()
      ->group(group);
  verb->add_option("--align", options->align,
                   "free: all run on their own; isolated: every burst from one instant")
      ->capture_default_str()
      ->group(group);
  verb->add_option("--window-us", options->window_us, "free: length of the run (50 periods)")
      ->group(group);
  verb->add_option("--bursts", options->bursts, "isolated: bursts a producer")
      ->capture_default_str()
      ->group(group);
  verb->add_option("--seed", options->seed, "seed of the drift")
      ->check(refuse_seed_out_of_range)
      ->capture_default_str()
      ->group(group);
  verb->add_flag("--both-ways", w.both_ways, "the peer stores at the same time")->group(group);
  verb->add_option("--gpu", w.gpu, "whose groups of SMs (0)")->group(group);
  add_simulate_moe(*verb, session);
  add_simulate_ulysses(*verb, session);
  verb->callback([verb, options, &session] {
    if (!verb->get_subcommands().empty()) {  // its own callback chose the action
      const std::string layer = verb->get_subcommands().front()->get_name();
      refuse_idle_but(*verb, fmt::format("before '{}', whose options stand behind it", layer), {});
      return;
    }
    if (!options->asked)
      throw Failure({ErrorKind::kBadInput,
                     "simulate was not told what",
                     {},
                     {},
                     "moe, ulysses or --burst-loop; see 'xstage simulate --help'"});
    const bool isolated = options->align == "isolated";
    refuse_idle(*verb, "with --burst-loop, which has no timeline", {"--trace", "--trace-sms"});
    if (isolated)
      refuse_idle(*verb, "with --align isolated", {"--window-us", "--gap-us"});
    else
      refuse_idle(*verb, "without --align isolated", {"--bursts"});
    session.action = [options, &session] { return run_burst_loop_verb(session.console, *options); };
  });
}

}  // namespace xstage::cli
