// xstage predict: the model's answer for one point.
#include <fmt/format.h>

#include <memory>

#include "cli/inputs.hpp"
#include "cli/provenance.hpp"
#include "cli/verbs.hpp"
#include "xstage/model/burst_gap.hpp"

namespace xstage::cli {
namespace {

struct PredictVerb {
  std::string profile;
  std::string mechanism = "st_v4";
  model::Workload workload;
};

nlohmann::json maybe(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

nlohmann::json prediction_json(const model::Prediction& p) {
  nlohmann::json groups = nlohmann::json::array();
  for (const model::GroupPrediction& g : p.groups)
    groups.push_back({{"sms_in_group", g.sms},
                      {"groups", g.groups},
                      {"period_us", g.period_us},
                      {"issue_us", g.issue_us},
                      {"isolated_issue_us", maybe(g.isolated_issue_us)}});
  return {{"regime", name(p.regime)},
          {"regime_condition", inequality(p.regime)},
          {"validated", p.regime != model::Regime::kCapacityLimited},
          {"volume_bytes", p.volume_bytes},
          {"drain_rate_gb_per_s", p.drain_gb_s},
          {"drain_us", p.drain_us},
          {"issue_floor_us", p.issue0_us},
          {"gap_floor_us", p.gap_us},
          {"period_us", p.period_us},
          {"issue_us", p.issue_us},
          {"issue_overhead_us", p.overhead_us},
          {"recovery_gap_us", p.recovery_gap_us},
          {"rate_ok", p.average_fits},
          {"capacity_ok", p.burst_fits ? nlohmann::json(*p.burst_fits) : nlohmann::json()},
          {"back_pressure_free",
           p.burst_fits ? nlohmann::json(p.average_fits && *p.burst_fits) : nlohmann::json()},
          {"isolated",
           {{"issue_us", maybe(p.isolated_issue_us)},
            {"issue_floor_us", p.isolated_issue0_us},
            {"peak_backlog_bytes", p.peak_backlog_bytes},
            {"capacity_bytes", maybe(p.capacity_bytes)}}},
          {"closed_form",
           {{"period_us", p.paper_period_us},
            {"issue_us", p.paper_issue_us},
            {"isolated_issue_us", maybe(p.paper_isolated_issue_us)},
            {"completion_coupled_period_us", p.completion_coupled_period_us}}},
          {"by_group", groups},
          {"warnings", p.warnings}};
}

void print(const Console& console, const model::Prediction& p) {
  console.text(fmt::format("regime        {} ({})", name(p.regime), inequality(p.regime)));
  console.text(fmt::format("V             {:.0f} bytes a burst, {:.3f} us to drain at {:.1f} GB/s",
                           p.volume_bytes, p.drain_us, p.drain_gb_s));
  console.text(fmt::format("issue time    {:.3f} us (T_iss0 {:.3f} us, overhead {:.3f} us)",
                           p.issue_us, p.issue0_us, p.overhead_us));
  console.text(fmt::format("period        {:.3f} us", p.period_us));
  console.text(fmt::format("recovery gap  {:.3f} us", p.recovery_gap_us));
  if (p.capacity_bytes)
    console.text(
        fmt::format("one burst     {:.3f} us when all start at once into an empty X-Stage; backlog "
                    "{:.2f} MB of {:.2f} MB",
                    *p.isolated_issue_us, p.peak_backlog_bytes / 1e6, *p.capacity_bytes / 1e6));
  console.text(fmt::format("back-pressure {}",
                           !p.average_fits ? "in every period: the rate is too high"
                           : !p.burst_fits ? "not known: no capacity in the profile"
                           : *p.burst_fits ? "none"
                                           : "from aligned bursts: they exceed the capacity"));
  if (p.groups.size() > 1)
    for (const model::GroupPrediction& g : p.groups)
      console.text(
          fmt::format("  {} group(s) with {} producer(s): period {:.3f} us, issue {:.3f} us",
                      g.groups, g.sms, g.period_us, g.issue_us));
  for (const std::string& warning : p.warnings) console.text("warning       " + warning);
}

int run_predict(const Console& console, PredictVerb& verb) {
  const auto mechanism = model::mechanism_named(verb.mechanism);
  if (!mechanism)
    return console.fail(bad_input("no such mechanism", "--mechanism", verb.mechanism,
                                  "st_v1, st_v2, st_v4, tma_bulk"));
  verb.workload.mechanism = *mechanism;
  const model::Profile profile = profile_of(verb.profile);
  const Result<model::Prediction> p = model::predict(profile, verb.workload);
  if (!p) return console.fail(p.error());
  if (console.json) {
    nlohmann::json document = prediction_json(*p);
    document["format"] = "xstage.prediction/1";
    document["provenance"] = provenance("predict", {verb.profile});
    document["profile"] = reference(profile);
    const model::Workload& w = verb.workload;
    document["input"] = {{"producers", w.producers},
                         {"bytes", w.bytes},
                         {"gap_us", w.gap_us},
                         {"mechanism", verb.mechanism},
                         {"threads", profile.find(w.mechanism, w.threads).value()->threads},
                         {"both_ways", w.both_ways},
                         {"gpu", w.gpu}};
    console.document(document);
  }
  print(console, *p);
  return 0;
}

}  // namespace

void add_predict(CLI::App& app, Session& session) {
  auto options = std::make_shared<PredictVerb>();
  CLI::App* verb = app.add_subcommand("predict", "The model's answer for one burst and gap");
  model::Workload& w = options->workload;
  verb->add_option("--profile", options->profile, "profile of the node (JSON)")->required();
  verb->add_option("--producers", w.producers, "thread blocks that store, one an SM")->required();
  verb->add_option("--bytes", w.bytes, "bytes that each of them stores in a burst")->required();
  verb->add_option("--gap-us", w.gap_us, "useful time between two bursts, in microseconds")
      ->required();
  verb->add_option("--mechanism", options->mechanism, "st_v1, st_v2, st_v4 or tma_bulk (st_v4)");
  verb->add_option("--threads", w.threads, "threads of a block (as measured; 256 for stores)");
  verb->add_flag("--both-ways", w.both_ways, "the peer stores at the same time");
  verb->add_option("--gpu", w.gpu, "whose groups of SMs (0)")->check(CLI::Range(0, 1023));
  verb->add_flag("--json", session.console.json, "machine output on stdout");
  verb->callback([options, &session] {
    session.action = [options, &session] { return run_predict(session.console, *options); };
  });
}

}  // namespace xstage::cli
