// xstage fit: a profile from samples measured elsewhere.
#include "xstage/model/fit.hpp"

#include <fmt/format.h>

#include <memory>

#include "cli/inputs.hpp"
#include "cli/outputs.hpp"
#include "cli/provenance.hpp"
#include "cli/verbs.hpp"
#include "xstage/atomic_file.hpp"
#include "xstage/version.hpp"

namespace xstage::cli {
namespace {

struct FitVerb {
  std::vector<std::string> samples;
  std::string out;
  std::string name;
};

nlohmann::json fit_document(const model::FitReport& report, const FitVerb& verb) {
  nlohmann::json aside = nlohmann::json::array();
  for (const auto& entry : report.set_aside)
    aside.push_back({{"why", entry.why}, {"points", entry.points}});
  nlohmann::json open = nlohmann::json::array();
  for (const auto& m : report.profile.mechanisms)
    for (const std::string& what : m.undetermined)
      open.push_back({{"mechanism", name(m.mechanism)}, {"threads", m.threads}, {"what", what}});
  return {{"format", "xstage.fit/1"},
          {"provenance", provenance("fit", paths(verb.samples))},
          {"profile", to_json(report.profile)},
          {"points", {{"used", report.used}, {"set_aside", aside}}},
          {"not_determined", open},
          {"poor", false}};
}

void print_profile(const Console& console, const model::FitReport& report) {
  const model::Profile& p = report.profile;
  console.text(fmt::format("node       {} ({} SMs)", p.node.description, p.node.sms));
  console.text(fmt::format(
      "R          {:.1f} GB/s one way, {} with both directions in use", p.drain.one_way_gb_s,
      p.drain.both_ways_gb_s ? fmt::format("{:.1f} GB/s each way", *p.drain.both_ways_gb_s)
                             : "not measured"));
  for (const model::MechanismProfile& m : p.mechanisms) {
    const auto at = [&](std::int64_t bytes) {
      return staircase_us(m.isolated_issue, bytes, m.pass_bytes());
    };
    console.text(
        fmt::format("{:<10} {} threads: T_iss0 {:.3f} / {:.3f} / {:.3f} us at 16 / 32 / 64 "
                    "KiB, one SM moves {:.1f} GB/s",
                    name(m.mechanism), m.threads, at(16384), at(32768), at(65536), m.sm_rate_gb_s));
    if (m.loop && m.loop->residue_bytes > 0)
      console.text(fmt::format("           S {:.0f} bytes stay in the SM when the clock is read",
                               m.loop->residue_bytes));
    if (m.capacity)
      console.text(fmt::format(
          "           Q {:.2f} MB at {} producers: {:.0f} bytes an SM, {:.0f} a group of SMs, up "
          "to "
          "{:.0f} of the last pass",
          capacity_bytes(m, *m.capacity, p.classes(p.node.sms), 65536) / 1e6, p.node.sms,
          m.capacity->sm_bytes, m.capacity->group_bytes, m.capacity->last_pass_max_bytes));
    for (const std::string& what : m.undetermined)
      console.text(fmt::format("           not determined: {}", what));
  }
  const auto errors = [&](const char* what, const model::ErrorSummary& e, double scale,
                          const char* unit) {
    if (e.points > 0)
      console.text(fmt::format("fit        {}: median {:.3f} {}, p95 {:.3f} {} ({} points)", what,
                               scale * e.median, unit, scale * e.p95, unit, e.points));
  };
  errors("period", p.quality.windowed_period, 100, "%");
  errors("issue time", p.quality.windowed_issue_us, 1, "us");
  errors("isolated bursts beyond the knee", p.quality.isolated_issue_us, 1, "us");
  for (const std::string& note : p.notes) console.text("note       " + note);
}

int run_fit(const Console& console, const FitVerb& verb) {
  refuse_overwriting(verb.samples, verb.out);
  check_outputs({{"--out", verb.out, "xstage.profile"}});
  // Reading and fitting take about 14 us a row together; below this nobody waits.
  constexpr std::uintmax_t kLargeBytes = 10'000'000;
  std::uintmax_t bytes = 0;
  for (const std::string& file : verb.samples) {
    std::error_code code;
    if (const auto size = std::filesystem::file_size(file, code); !code) bytes += size;
  }
  const bool large = bytes > kLargeBytes;
  if (large)
    console.log(fmt::format("reading {:.0f} MB of samples", 1e-6 * static_cast<double>(bytes)));
  const model::SampleSet set = read_all(verb.samples);
  if (large) console.log(fmt::format("fitting {} rows", set.samples.size()));
  const std::string profile_name = !verb.name.empty() ? verb.name
                                   : verb.out.empty()
                                       ? "fitted"
                                       : std::filesystem::path(verb.out).stem().string();
  const Result<model::FitReport> report =
      model::fit(set, {profile_name, fmt::format("xstage {} fit", version()), now_utc()});
  if (!report) return console.fail(report.error(), {{"format", "xstage.fit/1"}, {"poor", true}});
  nlohmann::json document = fit_document(*report, verb);
  if (!verb.out.empty()) {
    const auto written = write_file(verb.out, to_json(report->profile).dump(1) + "\n");
    if (!written) return console.fail(written.error(), std::move(document));
    document["profile_file"] = std::filesystem::path(verb.out).filename().string();
  }
  console.document(document);
  print_profile(console, *report);
  if (!verb.out.empty()) console.text("profile    " + verb.out);
  return 0;
}

}  // namespace

void add_fit(CLI::App& app, Session& session) {
  auto options = std::make_shared<FitVerb>();
  CLI::App* verb = app.add_subcommand("fit", "Fit a profile to measured bursts");
  verb->add_option(
          "--samples", options->samples,
          "sample files: windowed and isolated bursts, bursts by SM, groups of SMs; may be "
          "repeated, one alone is enough")
      ->required();
  verb->add_option("--out", options->out, "where to write the profile (JSON)");
  verb->add_option("--name", options->name, "name of the profile (the file's)");
  verb->add_flag("--json", session.console.json, "machine output on stdout");
  verb->callback([options, &session] {
    session.action = [options, &session] { return run_fit(session.console, *options); };
  });
}

}  // namespace xstage::cli
