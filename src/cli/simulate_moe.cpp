// xstage simulate moe: a fused MoE layer on a simulated node.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "cli/inputs.hpp"
#include "cli/interrupt.hpp"
#include "cli/layer_options.hpp"
#include "cli/moe_simulation.hpp"
#include "cli/provenance.hpp"
#include "cli/simulate.hpp"
#include "cli/simulation_document.hpp"
#include "cli/typed_options.hpp"
#include "xstage/atomic_file.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;
using schedule::MoeSchedule;
using schedule::MoeScheduleKind;

struct MoeVerb {
  SimulateOptions common;
  MoeLayerOptions layer;
  std::string schedule = "auto";
  std::optional<std::int64_t> lead;
  std::optional<int> group;
  std::string dispatch = "rank";
  std::optional<int> staging;
  std::int64_t buffers = 0;
  bool claim = false;
  std::optional<double> linear1_us, linear2_us;
};

/// One schedule that was run, and what is kept of it.
struct Run {
  MoeSchedule schedule;
  sim::MoeResult result;
};

json run_json(const sim::MoeSetup& setup, const Run& run, double capacity) {
  const sim::MoeResult& r = run.result;
  const bool interleaved = run.schedule.kind == MoeScheduleKind::kInterleaved;
  double stall = 0, math = 0, issue = 0;
  std::int64_t tiles = 0;
  json ranks = json::array();
  for (const sim::MoeRankResult& rank : r.ranks) {
    const auto share = 1.0 / static_cast<double>(r.ranks.size());
    stall += rank.stall_us * share;
    math += rank.math_us * share;
    issue += rank.issue_us * share;
    tiles += rank.tiles;
    if (ranks.size() < 72)
      ranks.push_back({{"rows", rank.rows},
                       {"tiles", rank.tiles},
                       {"sent_bytes", rank.remote_bytes},
                       {"dispatched_us", rank.dispatched_us},
                       {"issued_us", rank.issued_us},
                       {"drained_us", rank.drained_us},
                       {"done_us", rank.done_us},
                       {"math_us", rank.math_us},
                       {"stall_us", rank.stall_us},
                       {"wait_tokens_us", rank.wait_tokens_us},
                       {"wait_linear1_us", rank.wait_linear1_us},
                       {"wait_buffer_us", rank.wait_buffer_us},
                       {"linear2_issue_us", rank.issue_mean},
                       {"peak_backlog_bytes", rank.most_backlog},
                       {"most_live_rows", rank.most_live_rows}});
  }
  json out = {{"schedule", interleaved ? "interleaved" : "wave"},
              {"lead", interleaved ? json(run.schedule.lead) : json()},
              {"group", interleaved ? json() : json(run.schedule.group)},
              {"time_us", r.deadlock ? json() : json(r.time_us)},
              {"stall_us", stall},
              {"stall_fraction", r.time_us > 0 ? stall / r.time_us : 0},
              {"math_us", math},
              {"issue_us", issue},
              {"tiles", tiles},
              {"events", r.events},
              {"deadlock", r.deadlock ? json(*r.deadlock) : json()},
              {"ranks", std::move(ranks)}};
  out.update(timeline_json(r.timeline, capacity, 6000));
  (void)setup;
  return out;
}

std::string label(const MoeSchedule& s) {
  return s.kind == MoeScheduleKind::kWave ? fmt::format("wave, groups of {}", s.group)
                                          : fmt::format("interleaved, lead {}", s.lead);
}

void print(const Console& console, const Run& run) {
  const sim::MoeResult& r = run.result;
  const auto mean = [&](double sim::MoeRankResult::* field) {
    double sum = 0;
    for (const auto& rank : r.ranks) sum += rank.*field;
    return sum / static_cast<double>(r.ranks.size());
  };
  console.text(fmt::format(
      "{:<26} {:>9.1f} us   math {:.0f}, stall {:.1f}, waits: tokens {:.1f}, Linear-1 {:.1f}, "
      "buffers {:.1f} us an SM",
      label(run.schedule), r.time_us, mean(&sim::MoeRankResult::math_us),
      mean(&sim::MoeRankResult::stall_us), mean(&sim::MoeRankResult::wait_tokens_us),
      mean(&sim::MoeRankResult::wait_linear1_us), mean(&sim::MoeRankResult::wait_buffer_us)));
}

MoeSchedule asked_schedule(const MoeVerb& verb, const sim::MoeSetup& setup) {
  if (verb.schedule == "wave") {
    MoeSchedule wave = sim::wave_schedule(setup);
    if (verb.group) wave.group = *verb.group;
    return wave;
  }
  const auto cover = schedule::covering_lead(setup.kernel.tiling, setup.workers);
  return MoeSchedule::interleaved(verb.lead.value_or(2 * cover));
}

void check(const MoeVerb& verb) {
  const auto refuse = [](const char* field, const std::string& value, const char* allowed) {
    throw Failure(
        bad_input("an option of the simulated kernel is not allowed", field, value, allowed));
  };
  if (verb.schedule != "auto" && verb.schedule != "wave" && verb.schedule != "interleaved")
    refuse("--schedule", verb.schedule, "wave, interleaved, auto");
  if (verb.dispatch != "rank" && verb.dispatch != "pair")
    refuse("--dispatch", verb.dispatch, "rank, pair");
  if (verb.lead && (*verb.lead < 1 || *verb.lead > (std::int64_t{1} << 31)))
    refuse("--lead", std::to_string(*verb.lead), "1 to 2^31");
  if (verb.group && (*verb.group < 1 || *verb.group > (1 << 20)))
    refuse("--group", std::to_string(*verb.group), "1 to 2^20");
  if (verb.staging && (*verb.staging < 0 || *verb.staging > 16))
    refuse("--staging", std::to_string(*verb.staging), "0 to 16");
  if (verb.buffers < 0) refuse("--buffers", std::to_string(verb.buffers), "0 (one a row) or more");
  for (const auto& [field, value] :
       {std::pair{"--linear1-us", verb.linear1_us}, std::pair{"--linear2-us", verb.linear2_us}})
    if (value && !(*value >= 0.01 && *value <= 1e6))
      refuse(field, fmt::format("{}", *value), "0.01 to 1e6");
}

int run_moe(const Console& console, const MoeVerb& verb) {
  check(verb);
  (void)store_options(verb.common, model::Mechanism::kStoreV4);
  const MoeLayer layer = resolve(verb.layer).value();
  const model::Profile profile = profile_of(verb.common.profile);
  sim::MoeOptions options;
  options.store = store_options(verb.common, default_mechanism(profile));
  options.staging = verb.staging.value_or(-1);
  options.dispatch =
      verb.dispatch == "rank" ? sim::Dispatch::kOncePerRank : sim::Dispatch::kOncePerPair;
  options.claimed = verb.claim;
  options.buffers = verb.buffers;
  options.linear1_us = verb.linear1_us;
  options.linear2_us = verb.linear2_us;
  const sim::MoeSetup setup = moe_setup(profile, layer, options).value();
  const double capacity = setup.store.fabric[0].queue_per_sm * setup.workers;

  sim::TimelineOptions keep;
  keep.sms = traced_sms(setup.store, verb.common.trace_sms);
  keep.max_spans = 2000000;
  keep.backlog_samples = 4096;
  std::vector<Run> runs;
  json choice_json;
  std::size_t chosen = 0;
  json candidates = json::array();
  if (verb.schedule == "auto") {
    console.log("simulating the expert wave and several leads");
    const sim::MoeChoice choice = sim::choose_moe_schedule(setup, layer.seed).value();
    for (const sim::MoeCandidate& c : choice.candidates) candidates.push_back(candidate_json(c));
    // Both schedules are shown: the wave, and the best lead.
    std::size_t lead = 1;
    for (std::size_t i = 1; i < choice.candidates.size(); ++i)
      if (choice.candidates[i].time_us < choice.candidates[lead].time_us) lead = i;
    for (const std::size_t i : {std::size_t{0}, lead}) {
      const MoeSchedule s = choice.candidates[i].schedule;
      runs.push_back({s, sim::simulate_moe(setup, s, layer.seed, keep)});
    }
    chosen = choice.best == 0 ? 0 : 1;
    choice_json = candidate_json(choice.candidates[choice.best]);
    choice_json["reason"] = choice.reason;
  } else {
    const MoeSchedule s = asked_schedule(verb, setup);
    runs.push_back({s, sim::simulate_moe(setup, s, layer.seed, keep)});
  }

  json document = {{"format", "xstage.simulation/1"},
                   {"provenance", provenance("simulate moe", {verb.common.profile})},
                   {"profile", reference(profile)},
                   {"layer", to_json(layer)},
                   {"kernel", kernel_json(setup)},
                   {"runs", json::array()}};
  document["layer"]["kind"] = "moe";
  document["provenance"]["assumed"] = setup.assumed;
  for (const Run& run : runs) document["runs"].push_back(run_json(setup, run, capacity));
  if (!candidates.empty()) document["candidates"] = std::move(candidates);
  if (!choice_json.is_null()) document["choice"] = choice_json;

  if (runs[chosen].result.deadlock)
    return console.fail({ErrorKind::kCheckFailed,
                         "the schedule deadlocks: " + *runs[chosen].result.deadlock,
                         {},
                         {},
                         {}},
                        std::move(document));
  if (!verb.common.trace.empty())
    write_trace(verb.common.trace, runs[chosen].result.timeline,
                fmt::format("{}, {}", layer.shape.name, label(runs[chosen].schedule)));
  begin_answer();
  if (!verb.common.out.empty()) {
    const auto written = write_file(verb.common.out, document.dump() + "\n");
    if (!written) return console.fail(written.error(), std::move(document));
  }
  console.document(document);
  console.text(
      fmt::format("{}: {} ranks, {} tokens each, {} rows of {} + {} tiles, {:.0f} % remote",
                  layer.shape.name, layer.ranks, layer.tokens, setup.most_rows,
                  setup.kernel.tiling.n1, setup.kernel.tiling.n2, 100 * setup.remote_fraction));
  console.text(fmt::format("tiles of {:.2f} and {:.2f} us: {}{}", setup.times.linear1_us,
                           setup.times.linear2_us, setup.times.assumed ? "assumed: " : "",
                           setup.times.source));
  for (const Run& run : runs) print(console, run);
  if (!choice_json.is_null()) console.text("chosen: " + choice_json["reason"].get<std::string>());
  return 0;
}

}  // namespace

void add_simulate_moe(CLI::App& simulate, Session& session) {
  auto options = std::make_shared<MoeVerb>();
  CLI::App* verb = simulate.add_subcommand("moe", "A fused MoE layer, both schedules");
  add_simulate_options(*verb, options->common, session.console);
  add_moe_layer_options(*verb, options->layer);
  const char* group = "Kernel";
  verb->add_option("--schedule", options->schedule, "wave, interleaved or auto")
      ->capture_default_str()
      ->group(group);
  verb->add_option("--lead", options->lead, "rows of Linear-1 that come first (interleaved)")
      ->group(group);
  verb->add_option("--group", options->group, "experts of a group (wave)")->group(group);
  verb->add_option("--dispatch", options->dispatch,
                   "a token is sent once to each rank, or once for each (token, expert) pair")
      ->capture_default_str()
      ->group(group);
  verb->add_option("--staging", options->staging,
                   "finished tiles that can wait for the link beside math (bulk stores 1, else 0)")
      ->group(group);
  verb->add_option("--buffers", options->buffers,
                   "rows of Linear-1 output, used in a ring (0: one for each row)")
      ->capture_default_str()
      ->group(group);
  verb->add_flag("--claim", options->claim, "SMs claim tiles one by one, in place of fixed strides")
      ->group(group);
  verb->add_option("--linear1-us", options->linear1_us, "time of a Linear-1 tile")->group(group);
  verb->add_option("--linear2-us", options->linear2_us, "time of a Linear-2 tile")->group(group);
  verb->callback([verb, options, &session] {
    const std::string with = "with --schedule " + options->schedule;
    if (options->schedule == "wave" || options->schedule == "auto")
      refuse_idle(*verb, with, {"--lead"});
    if (options->schedule == "interleaved" || options->schedule == "auto")
      refuse_idle(*verb, with, {"--group"});
    session.action = [options, &session] { return run_moe(session.console, *options); };
  });
}

}  // namespace xstage::cli
