// xstage validate: how far the model is off on samples.
#include <fmt/format.h>

#include <memory>

#include "cli/inputs.hpp"
#include "cli/outputs.hpp"
#include "cli/provenance.hpp"
#include "cli/schedule_validation.hpp"
#include "cli/typed_options.hpp"
#include "cli/validation.hpp"
#include "cli/verbs.hpp"
#include "xstage/atomic_file.hpp"
#include "xstage/model/fit.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;

struct ValidateVerb {
  std::string profile;
  std::vector<std::string> samples;
  std::string schedule_samples;
  std::string out;
  bool folds = false;
  int gpu = 0;
};

std::string figure(const json& errors, const char* key, double scale, const char* unit) {
  if (!errors.contains(key) || errors[key]["median"].is_null()) return "-";
  return fmt::format("{:.3f} / {:.3f} {}", scale * errors[key]["median"].get<double>(),
                     scale * errors[key]["p95"].get<double>(), unit);
}

void print_row(const Console& console, const std::string& label, const json& errors) {
  console.text(fmt::format("{:<36} {:>6}   {:>18}   {:>20}", label, errors["n"].get<std::int64_t>(),
                           figure(errors, "period", 100, "%"),
                           figure(errors, "issue_us", 1, "us")));
}

void print(const Console& console, const json& document) {
  console.text(fmt::format("{:<36} {:>6}   {:>18}   {:>20}", "median / p95 of the error", "points",
                           "period", "mean issue time"));
  print_row(console, "windowed, 16-byte stores, one way", document["windowed"]);
  print_row(console, "isolated beyond the knee", document["isolated"]);
  for (const auto& [regime, errors] : document["by_regime"].items())
    print_row(console, "  " + regime + (errors["validated"].get<bool>() ? "" : " (not validated)"),
              errors);
  for (const json& set : document["by_set"]) print_row(console, set["set"].get<std::string>(), set);
  for (const json& law : document["laws"])
    console.text(fmt::format("{:<36} {:>6}   {:>18}", law["law"].get<std::string>(), "",
                             figure(law, "period", 100, "%")));
  if (!document.contains("cross_validation")) return;
  for (const json& by : document["cross_validation"]) {
    const auto what = by["left_out"].get<std::string>();
    print_row(console, fmt::format("each {} left out: windowed", what), by["windowed"]);
    print_row(console, fmt::format("each {} left out: isolated", what), by["isolated"]);
  }
}

/// Folds over B, then over K: the summaries, and a row for every value left out.
void add_folds(const Console& console, const model::SampleSet& set, json& document) {
  document["folds"] = json::array();
  document["cross_validation"] = json::array();
  for (const model::FoldBy by : {model::FoldBy::kBytes, model::FoldBy::kProducers}) {
    const bool bytes = by == model::FoldBy::kBytes;
    console.log(fmt::format("leaving out every value of {} in turn", bytes ? "B" : "K"));
    const auto folds = model::cross_validate(set, by).value();
    std::vector<model::PointError> all;
    for (const model::Fold& fold : folds) {
      std::vector<const model::PointError*> windowed;
      for (const model::PointError& e : fold.errors)
        if (group_of(*e.sample) == SampleGroup::kWindowed) windowed.push_back(&e);
      json row = error_figures(windowed);
      row["left_out"] = fold.left_out;
      document["folds"].push_back(std::move(row));
      all.insert(all.end(), fold.errors.begin(), fold.errors.end());
    }
    json tables = error_tables(all);
    tables["left_out"] = bytes ? "B" : "K";
    tables.erase("laws");
    document["cross_validation"].push_back(std::move(tables));
  }
}

int run_validate(const Console& console, const ValidateVerb& verb) {
  refuse_overwriting(verb.samples, verb.out);
  refuse_overwriting({verb.profile}, verb.out);
  check_outputs({{"--out", verb.out, "xstage.validation"}});
  const model::Profile profile = profile_of(verb.profile);
  model::SampleSet set;
  json curves = json::array();
  json shares = json::array();
  for (const std::string& file : verb.samples) {
    model::SampleSet one = model::read_samples(std::filesystem::path(file)).value();
    const std::string source = std::filesystem::path(file).filename().string();
    for (json& curve : series(profile, one.samples, source, verb.gpu)) curves.push_back(curve);
    for (json& share : sm_shares(profile, one.sm_bursts, source)) shares.push_back(share);
    set.merge(std::move(one));
  }
  const std::vector<model::PointError> errors = model::errors(profile, set.samples, verb.gpu);
  if (verb.samples.empty() && verb.schedule_samples.empty())
    return console.fail(bad_input("there is nothing to validate against", "--samples", "not given",
                                  "--samples FILE, --schedule-samples FILE, or both"));
  if (!verb.samples.empty() && errors.empty() && shares.empty())
    return console.fail(
        bad_input("the profile says nothing about these samples", "--samples",
                  fmt::format("{} rows", set.samples.size()),
                  "windowed or isolated bursts to a peer, of a mechanism and thread "
                  "count that the profile holds"));
  std::vector<std::filesystem::path> inputs = paths(verb.samples);
  inputs.insert(inputs.begin(), verb.profile);
  if (!verb.schedule_samples.empty()) inputs.emplace_back(verb.schedule_samples);
  json document = error_tables(errors);
  document["format"] = "xstage.validation/1";
  document["provenance"] = provenance("validate", inputs);
  document["profile"] = reference(profile);
  document["series"] = std::move(curves);
  document["sm_shares"] = std::move(shares);
  if (!verb.schedule_samples.empty()) {
    console.log("simulating the measured schedules");
    document["schedule"] = validate_schedule_samples(profile, verb.schedule_samples);
  }
  if (verb.folds && !verb.samples.empty()) add_folds(console, set, document);
  if (!verb.out.empty()) {
    const auto written = write_file(verb.out, document.dump() + "\n");
    if (!written) return console.fail(written.error(), std::move(document));
  }
  console.document(document);
  if (!verb.samples.empty()) print(console, document);
  if (document.contains("schedule")) print_schedule_validation(console, document["schedule"]);
  return 0;
}

}  // namespace

void add_validate(CLI::App& app, Session& session) {
  auto options = std::make_shared<ValidateVerb>();
  CLI::App* verb = app.add_subcommand("validate", "Prediction error of a profile on samples");
  verb->add_option("--profile", options->profile, "profile of the node (JSON)")->required();
  verb->add_option("--samples", options->samples, "sample files; may be repeated");
  verb->add_option("--schedule-samples", options->schedule_samples,
                   "measured schedules (as synthetic_schedule.csv), simulated and compared");
  verb->add_flag("--folds", options->folds,
                 "also leave out every value of B, then of K, fit to the rest and predict it");
  verb->add_option("--gpu", options->gpu, "whose groups of SMs (0)")->check(CLI::Range(0, 1023));
  verb->add_option("--out", options->out, "where to write the document (JSON)");
  verb->add_flag("--json", session.console.json, "machine output on stdout");
  verb->callback([verb, options, &session] {
    if (options->samples.empty()) refuse_idle(*verb, "without --samples", {"--folds", "--gpu"});
    session.action = [options, &session] { return run_validate(session.console, *options); };
  });
}

}  // namespace xstage::cli
