// xstage plan: audits a layer before anyone writes its kernel.
#include "xstage/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/fused_fit.hpp"
#include "cli/inputs.hpp"
#include "cli/layer_options.hpp"
#include "cli/moe_simulation.hpp"
#include "cli/outputs.hpp"
#include "cli/plan_simulation.hpp"
#include "cli/provenance.hpp"
#include "cli/spans_audit.hpp"
#include "cli/typed_options.hpp"
#include "cli/verbs.hpp"
#include "xstage/atomic_file.hpp"
#include "xstage/model/work_split.hpp"
#include "xstage/sim/ulysses.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;

/// Options that both layers share.
struct PlanVerb {
  std::string profile;
  std::string out;
  std::string mechanism;
  std::string from_spans;
  int threads = 0;
  std::optional<double> tflops;
  bool closed_form_only = false;
  MoeLayerOptions moe;
  AttentionLayerOptions attention;
};

/// What giving tiles out unequally is worth: for tiles enough that their number is no whole-number
/// matter.
model::WorkSplit split_of(const plan::Phase& phase) {
  const model::Prediction& p = *phase.prediction;
  std::vector<model::GroupClass> classes;
  for (const model::GroupPrediction& g : p.groups) classes.push_back({g.sms, g.groups});
  return model::work_split(classes, 64, static_cast<double>(phase.tile_bytes),
                           phase.natural_gap_us + p.issue0_us, p.drain_gb_s);
}

json phase_json(const plan::Phase& phase) {
  json out{{"phase", phase.name},
           {"tile", "128x128"},
           {"tiles", phase.tiles},
           {"tile_us", phase.tile_us},
           {"tile_bytes", phase.tile_bytes},
           {"remote_fraction", phase.remote_fraction},
           {"producers", phase.producers},
           {"natural_gap_us", phase.natural_gap_us},
           {"issue_us", phase.issue_us},
           {"stall_per_tile_us", phase.stall_per_tile_us},
           {"aligned_stall_us", phase.aligned_stall_us},
           {"volume_bytes", nullptr},
           {"recovery_gap_us", nullptr},
           {"regime", nullptr},
           {"rate_ok", true},
           {"capacity_ok", true},
           {"back_pressure_free", true}};
  if (!phase.prediction) return out;
  const model::Prediction& p = *phase.prediction;
  out["volume_bytes"] = p.volume_bytes;
  out["drain_us"] = p.drain_us;
  out["recovery_gap_us"] = p.recovery_gap_us;
  out["peak_backlog_bytes"] = p.peak_backlog_bytes;
  out["regime"] = name(p.regime);
  out["regime_condition"] = inequality(p.regime);
  out["rate_ok"] = p.average_fits;
  out["capacity_ok"] = p.burst_fits ? json(*p.burst_fits) : json();
  out["capacity_bytes"] = p.capacity_bytes ? json(*p.capacity_bytes) : json();
  out["back_pressure_free"] = p.burst_fits ? json(p.average_fits && *p.burst_fits) : json();
  const model::WorkSplit split = split_of(phase);
  out["work_split"] = {{"by_group_gain", split.by_group_gain()},
                       {"claimed_gain", split.claimed_gain()}};
  return out;
}

json plan_json(const plan::Plan& p, const char* schedule_key) {
  json phases = json::array();
  for (const plan::Phase& phase : p.phases) phases.push_back(phase_json(phase));
  json schedules = json::array();
  for (const plan::ScheduleEstimate& s : p.schedules)
    schedules.push_back({{"schedule", s.schedule},
                         {"lead", s.lead ? json(*s.lead) : json()},
                         {"time_us", s.time_us},
                         {"stall_us", s.stall_us},
                         {"method", "closed form"}});
  const plan::ScheduleEstimate& chosen = p.schedules[p.chosen];
  json choice{{schedule_key, chosen.schedule},
              {"mechanism", name(p.mechanism)},
              {"threads", p.threads},
              {"mechanism_reason", p.mechanism_reason},
              {"reason", p.reason}};
  if (chosen.lead) choice["lead"] = *chosen.lead;
  json out{{"format", "xstage.plan/1"},
           {"phases", phases},
           {"schedules", schedules},
           {"choice", choice},
           {"bounds",
            {{"math_us", p.math_us},
             {"combine_us", p.combine_us},
             {"dispatch_us", p.dispatch_us},
             {"dispatch", p.dispatch_by_rank ? "once a destination rank" : "once an expert"},
             {"weights_us", p.weights_us},
             {"outside_us", p.outside_us},
             {"bound_us", p.bound_us}}},
           {"rates",
            {{"first_tflops", p.rates.first},
             {"second_tflops", p.rates.second},
             {"assumed", p.rates.assumed},
             {"source", p.rates.source}}},
           {"assumed", p.assumed},
           {"warnings", p.warnings}};
  if (p.overlap)
    out["overlap"] = {{"residual_us", p.overlap->residual_us},
                      {"residual_share", p.overlap->residual_share},
                      {"push_us", p.overlap->push_us},
                      {"hidden_share", p.overlap->hidden_share}};
  return out;
}

void print(const Console& console, const plan::Plan& p) {
  for (const plan::Phase& phase : p.phases) {
    console.text(fmt::format("{}", phase.name));
    console.text(fmt::format("  {} tiles of {:.2f} us", phase.tiles, phase.tile_us));
    if (!phase.prediction) {
      console.text("  nothing is stored to another rank");
      continue;
    }
    const model::Prediction& q = *phase.prediction;
    console.text(
        fmt::format("  burst   {} bytes a tile, V = {:.2f} MB over {} SMs, {:.2f} us to drain",
                    phase.tile_bytes, q.volume_bytes / 1e6, phase.producers, q.drain_us));
    console.text(fmt::format("  gap     {:.2f} us, recovery gap {:.2f} us: {}",
                             phase.natural_gap_us, q.recovery_gap_us, name(q.regime)));
    console.text(
        fmt::format("  rate    V/(T_iss0 + G) <= R {}", q.average_fits ? "holds" : "FAILS"));
    console.text(fmt::format("  burst   [V - R*T_iss0]+ <= Q {}", !q.burst_fits   ? "not known"
                                                                  : *q.burst_fits ? "holds"
                                                                                  : "FAILS"));
    console.text(fmt::format("  stall   {:.2f} us a tile; {:.2f} us if all SMs come at once",
                             phase.stall_per_tile_us, phase.aligned_stall_us));
    const model::WorkSplit split = split_of(phase);
    console.text(
        fmt::format("  shares  tiles claimed one by one: {:.3f} times as fast as equal shares; "
                    "more to SMs of small groups: {:.3f}",
                    split.claimed_gain(), split.by_group_gain()));
  }
  console.text(
      fmt::format("bounds    matrix work {:.0f} us, combine {:.0f} us, dispatch {:.0f} us, "
                  "weights {:.0f} us",
                  p.math_us, p.combine_us, p.dispatch_us, p.weights_us));
  for (std::size_t i = 0; i < p.schedules.size(); ++i) {
    const plan::ScheduleEstimate& s = p.schedules[i];
    console.text(fmt::format(
        "{:<9} {}{}: {:.0f} us, of it {:.0f} us stalled", i == 0 ? "closed" : "", s.schedule,
        s.lead ? fmt::format(" (lead {})", *s.lead) : "", s.time_us, s.stall_us));
  }
  console.text("          " + p.reason);
  console.text(fmt::format("stores    {} ({})", name(p.mechanism), p.mechanism_reason));
  for (const std::string& what : p.assumed) console.text("assumed   " + what);
  for (const std::string& warning : p.warnings) console.text("warning   " + warning);
}

plan::StoreChoice store_choice(const PlanVerb& verb) {
  plan::StoreChoice store;
  store.threads = verb.threads;
  if (verb.mechanism.empty()) return store;
  store.mechanism = model::mechanism_named(verb.mechanism);
  if (!store.mechanism)
    throw Failure(bad_input("no such mechanism", "--mechanism", verb.mechanism,
                            "st_v1, st_v2, st_v4, tma_bulk"));
  return store;
}

/// Simulated times stand beside the closed form's, and their choice is the plan's.
void add(const SimulatedPlan& simulated, json& document) {
  for (const json& schedule : simulated.schedules) document["schedules"].push_back(schedule);
  for (const json& what : simulated.assumed) document["assumed"].push_back(what);
  for (const std::string& warning : simulated.warnings) document["warnings"].push_back(warning);
  if (simulated.choice.is_null()) return;
  document["closed_form_choice"] = document["choice"];
  json& choice = document["choice"];
  choice.erase("lead");
  for (const auto& [key, value] : simulated.choice.items())
    if (!value.is_null()) choice[key] = value;
}

void print(const Console& console, const SimulatedPlan& simulated) {
  for (const json& s : simulated.schedules)
    console.text(fmt::format("simulated {}{}: {:.0f} us, of it {:.0f} us stalled",
                             s["schedule"].get<std::string>(),
                             s["lead"].is_null() ? "" : fmt::format(" (lead {})", s["lead"].dump()),
                             s["time_us"].get<double>(), s["stall_us"].get<double>()));
  if (!simulated.choice.is_null())
    console.text("          " + simulated.choice["reason"].get<std::string>());
  for (const json& what : simulated.assumed) console.text("assumed   " + what.get<std::string>());
  for (const std::string& warning : simulated.warnings) console.text("warning   " + warning);
}

/// The one recommendation: by this project's kernel, whose times are measured; where it is not
/// predicted, by the simulation; else by the closed form.
json chosen_of(const json& document, const plan::Plan& p, const SimulatedPlan& simulated,
               const json& fused) {
  json chosen = document["choice"];
  if (!fused.is_null()) {
    for (const auto& c : fused["candidates"])
      if (c["time_us"] == fused["choice"]["time_us"])
        for (const char* key : {"schedule", "lead", "group"}) chosen[key] = c[key];
    chosen["time_us"] = fused["choice"]["time_us"];
    chosen["reason"] = fused["choice"]["reason"];
    chosen["by"] = "this project's kernel";
  } else if (!simulated.choice.is_null()) {
    chosen["by"] = "simulation";
  } else {
    chosen["by"] = "closed form";
    chosen["time_us"] = p.schedules[p.chosen].time_us;
  }
  chosen.erase("method");  // said by "by"
  return chosen;
}

void print_chosen(const Console& console, const json& chosen, const char* schedule_key) {
  const auto with = [&](const char* key) {
    const json value = chosen.value(key, json());
    return value.is_null() ? "" : fmt::format(" ({} {})", key, value.dump());
  };
  console.text(fmt::format("chosen    {}{}{}, stores by {}: {:.0f} us by {}",
                           chosen[schedule_key].get<std::string>(), with("lead"), with("group"),
                           chosen["mechanism"].get<std::string>(), chosen["time_us"].get<double>(),
                           chosen["by"].get<std::string>()));
  console.text("          " + chosen["reason"].get<std::string>());
  console.text("what it rests on:");
}

int finish(const Console& console, const PlanVerb& verb, const model::Profile& profile,
           const plan::Plan& p, json layer, const char* schedule_key,
           const SimulatedPlan& simulated, const json& fused = {}) {
  json document = plan_json(p, schedule_key);
  add(simulated, document);
  if (!fused.is_null()) document["fused_kernel"] = fused;
  document["chosen"] = chosen_of(document, p, simulated, fused);
  document["provenance"] = provenance("plan", {verb.profile});
  document["profile"] = reference(profile);
  document["layer"] = std::move(layer);
  if (!verb.out.empty()) {
    const auto written = write_file(verb.out, document.dump(1) + "\n");
    if (!written) return console.fail(written.error(), std::move(document));
  }
  console.document(document);
  print_chosen(console, document["chosen"], schedule_key);
  print(console, p);
  print(console, simulated);
  if (document["layer"].value("weights", "") == "bf16")
    console.text("this project's kernel: not measured in bf16, so no time is predicted for it");
  return 0;
}

/// What this project's kernel is expected to take, from its own measured times; null where it has
/// no tiles for the layer or was not measured in its format, or the rate was given by the user, and
/// with a warning where it could not be simulated.
json fused_plan(const PlanVerb& verb, const model::Profile& profile, const MoeLayer& layer,
                const shapes::Routing& routing, std::vector<std::string>& warnings) {
  if (verb.closed_form_only || verb.tflops || layer.weights != shapes::WeightFormat::kW8A8 ||
      why_no_fused_tiles(layer.shape))
    return {};
  const auto chosen = choose_fused(profile, plan::fused_times(), layer, routing);
  if (!chosen) {
    warnings.push_back("this project's kernel is not predicted: " + chosen.error().message());
    return {};
  }
  const json& lead = chosen->choice["lead"];
  return {{"choice",
           {{"schedule", chosen->choice["schedule"]},
            {"order", lead.is_null() ? "groups of " + chosen->choice["group"].dump()
                                     : "lead " + lead.dump()},
            {"time_us", chosen->choice["time_us"]},
            {"reason", chosen->choice["reason"]}}},
          {"candidates", chosen->candidates},
          {"measured_on", plan::fused_times().node},
          {"assumed", chosen->assumed}};
}

/// Loads of every rank from a routing: rows by local expert, and what comes from elsewhere.
plan::MoeProblem problem_of(const MoeLayer& layer, const shapes::Routing& routing) {
  plan::MoeProblem problem;
  problem.hidden = layer.shape.hidden;
  problem.intermediate = layer.shape.intermediate;
  problem.topk = layer.shape.topk;
  problem.experts = layer.shape.experts;
  problem.tokens = 0;
  for (const auto& rank : routing.ranks) problem.tokens = std::max(problem.tokens, rank.tokens);
  const bool bf16 = layer.weights == shapes::WeightFormat::kBf16;
  problem.weight_bytes = bf16 ? 2 : layer.weights == shapes::WeightFormat::kW4A8 ? 0.53 : 1;
  problem.activation_bytes = bf16 ? 2 : 1;
  const std::int64_t local = layer.experts_local();
  problem.ranks.resize(static_cast<std::size_t>(layer.ranks));
  for (auto& rank : problem.ranks) rank.expert_tokens.assign(static_cast<std::size_t>(local), 0);
  std::vector<bool> seen(static_cast<std::size_t>(layer.ranks));
  for (std::size_t source = 0; source < routing.ranks.size(); ++source) {
    const shapes::RankRouting& tokens = routing.ranks[source];
    for (std::int64_t t = 0; t < tokens.tokens; ++t) {
      std::fill(seen.begin(), seen.end(), false);
      for (std::int64_t j = 0; j < routing.topk; ++j) {
        const std::int32_t expert = tokens.experts[static_cast<std::size_t>(t * routing.topk + j)];
        if (expert < 0) continue;
        const auto owner = static_cast<std::size_t>(expert / local);
        plan::MoeRankLoad& load = problem.ranks[owner];
        ++load.expert_tokens[static_cast<std::size_t>(expert % local)];
        if (owner == source) continue;
        ++load.remote_rows;
        load.remote_tokens += !seen[owner];
        seen[owner] = true;
      }
    }
  }
  return problem;
}

/// Rows of the busiest rank.
std::int64_t most_rows(const plan::MoeProblem& problem) {
  std::int64_t most = 0;
  for (const plan::MoeRankLoad& rank : problem.ranks) {
    std::int64_t rows = 0;
    for (const std::uint32_t tokens : rank.expert_tokens)
      rows += schedule::rows_of(tokens, problem.block_m);
    most = std::max(most, rows);
  }
  return most;
}

int run_moe(const Console& console, const PlanVerb& verb) {
  const MoeLayer layer = resolve(verb.moe).value();
  refuse_overwriting({verb.profile}, verb.out);
  check_outputs({{"--out", verb.out, "xstage.plan"}});
  const model::Profile profile = profile_of(verb.profile);
  if (layer.routing.kind != shapes::RoutingSpec::Kind::kFile)
    if (auto error = too_many_pairs(layer, layer.tokens)) return console.fail(*error);
  const shapes::Routing routing = layer.make_routing().value();
  const plan::MoeProblem problem = problem_of(layer, routing);
  const plan::MathRates rates =
      verb.tflops ? plan::given_rate(*verb.tflops)
                  : plan::moe_rates({layer.shape.name, problem.hidden, problem.intermediate,
                                     problem.weight_bytes, problem.activation_bytes},
                                    problem.experts, layer.ranks, most_rows(problem),
                                    problem.block_m, problem.block_n, profile.node.sms);
  const plan::Plan p = plan::plan_moe(profile, problem, rates, store_choice(verb)).value();
  SimulatedPlan simulated;
  if (!verb.closed_form_only) simulated = simulate_plan(profile, layer, p, verb.tflops.has_value());
  const json fused = fused_plan(verb, profile, layer, routing, simulated.warnings);
  return finish(console, verb, profile, p, to_json(layer), "schedule", simulated, fused);
}

int run_ulysses(const Console& console, const PlanVerb& verb) {
  const AttentionLayer layer = resolve(verb.attention).value();
  refuse_overwriting({verb.profile}, verb.out);
  check_outputs({{"--out", verb.out, "xstage.plan"}});
  const model::Profile profile = profile_of(verb.profile);
  plan::UlyssesProblem problem;
  problem.batch = layer.batch;
  problem.seq = layer.seq;
  problem.heads_local = (layer.heads + layer.ranks - 1) / layer.ranks;
  problem.head_dim = layer.head_dim;
  problem.ranks = layer.ranks;
  const sim::AttentionRate measured =
      sim::attention_tile(layer.seq, layer.head_dim, problem.block_m);
  const double flops =
      4.0 * problem.block_m * static_cast<double>(layer.seq) * static_cast<double>(layer.head_dim);
  plan::MathRates rates =
      plan::given_rate(verb.tflops.value_or(flops * profile.node.sms / (measured.tile_us * 1e6)));
  if (!verb.tflops)
    rates.source =
        fmt::format("{:.0f} TFLOP/s: a library's attention measured on H200, {}", rates.first,
                    measured.assumed ? "at the nearest head dimension and length"
                                     : "between the nearest lengths");
  const plan::Plan p = plan::plan_ulysses(profile, problem, rates, store_choice(verb)).value();
  return finish(console, verb, profile, p, to_json(layer), "order",
                verb.closed_form_only ? SimulatedPlan{}
                                      : simulate_plan(profile, layer, p, verb.tflops.has_value()));
}

/// A kernel that exists, by the spans that it recorded.
int run_spans(const Console& console, const PlanVerb& verb) {
  refuse_overwriting({verb.profile, verb.from_spans}, verb.out);
  check_outputs({{"--out", verb.out, "xstage.spans-audit"}});
  const KernelSpans spans = read_spans(verb.from_spans).value();
  const model::Profile profile = profile_of(verb.profile);
  json document{{"format", "xstage.spans-audit/1"},
                {"provenance", provenance("plan", {verb.profile, verb.from_spans})},
                {"profile", reference(profile)}};
  const json audit = audit_spans(spans, profile).value();
  for (const auto& [key, value] : audit.items()) document[key] = value;
  if (!verb.out.empty()) (void)write_file(verb.out, document.dump(2) + "\n").value();
  console.document(document);
  const auto us = [](const json& value) { return value.is_null() ? 0.0 : value.get<double>(); };
  console.text(fmt::format("{}: {} producers, {} bytes a burst, {} bursts",
                           spans.kernel.empty() ? "kernel" : spans.kernel, spans.blocks.size(),
                           spans.bytes, audit["bursts"].get<std::size_t>()));
  console.text(fmt::format("issue time: mean {:.3f} µs, p95 {:.3f}", us(audit["issue_us"]["mean"]),
                           us(audit["issue_us"]["p95"])));
  if (audit["predicted"].is_object()) {
    const json& p = audit["predicted"];
    console.text(fmt::format(
        "predicted:  mean {:.3f} µs ({}), floor {:.3f}, recovery gap {:.2f} µs", us(p["issue_us"]),
        p["regime"].get<std::string>(), us(p["issue_floor_us"]), us(p["recovery_gap_us"])));
    console.text(fmt::format("gap: mean {:.2f} µs; stalled {:.1f} % of the time",
                             us(audit["gap_us"]["mean"]), us(audit["stall_fraction"]) * 100));
  }
  for (const json& hint : audit["hints"]) console.text("- " + hint.get<std::string>());
  return 0;
}

void add_common(CLI::App& app, PlanVerb& options, Session& session) {
  app.add_option("--profile", options.profile, "profile of the node (JSON)")->required();
  app.add_option("--mechanism", options.mechanism,
                 "st_v1, st_v2, st_v4 or tma_bulk (the plan chooses)");
  app.add_option("--threads", options.threads, "threads that store (as measured)");
  app.add_option("--tflops", options.tflops, "matrix rate of one GPU (measured or usual)")
      ->check(CLI::Range(0.001, 1e6));
  app.add_flag("--closed-form", options.closed_form_only, "skip the simulation");
  app.add_option("--from-spans", options.from_spans,
                 "audit a kernel instead, by the spans that include/xstage/span.cuh collected");
  app.add_option("--out", options.out, "where to write the document (JSON)");
  app.add_flag("--json", session.console.json, "machine output on stdout");
}

/// Refuses what was typed and would be ignored.
void refuse_idle_options(const CLI::App& app, const PlanVerb& options) {
  if (!options.from_spans.empty())
    refuse_idle_but(app, "with --from-spans, which describes the kernel",
                    {"--from-spans", "--profile", "--out"});
  if (options.mechanism.empty()) refuse_idle(app, "without --mechanism", {"--threads"});
}

}  // namespace

void add_plan(CLI::App& app, Session& session) {
  auto options = std::make_shared<PlanVerb>();
  CLI::App* verb =
      app.add_subcommand("plan", "What a layer's store bursts do, and which order to run");
  verb->require_subcommand(1);
  CLI::App* moe = verb->add_subcommand("moe", "a fused expert-parallel MoE layer");
  add_common(*moe, *options, session);
  add_moe_layer_options(*moe, options->moe);
  moe->callback([moe, options, &session] {
    refuse_idle_options(*moe, *options);
    session.action = [options, &session] {
      return options->from_spans.empty() ? run_moe(session.console, *options)
                                         : run_spans(session.console, *options);
    };
  });
  CLI::App* ulysses = verb->add_subcommand("ulysses", "attention with a fused output All-to-All");
  add_common(*ulysses, *options, session);
  add_attention_layer_options(*ulysses, options->attention);
  ulysses->callback([ulysses, options, &session] {
    refuse_idle_options(*ulysses, *options);
    if (options->closed_form_only) refuse_idle(*ulysses, "with --closed-form", {"--seed"});
    session.action = [options, &session] {
      return options->from_spans.empty() ? run_ulysses(session.console, *options)
                                         : run_spans(session.console, *options);
    };
  });
}

}  // namespace xstage::cli
