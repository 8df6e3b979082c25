#include "cli/simulation_document.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "cli/interrupt.hpp"
#include "cli/outputs.hpp"
#include "xstage/atomic_file.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;

/// Numbers of a plot: a nanosecond is enough.
double rounded(double us) { return std::round(us * 1000) / 1000; }

}  // namespace

void add_simulate_options(CLI::App& app, SimulateOptions& options, Console& console) {
  // Checked by store_options, whose error shows an example; here only said.
  app.add_option("--profile", options.profile, "profile of the node (JSON)")
      ->option_text("TEXT REQUIRED");
  app.add_option("--mechanism", options.mechanism, "st_v4, tma_bulk, … as the profile holds them");
  app.add_option("--threads", options.threads, "threads of a block (as measured)");
  app.add_option("--out", options.out, "where to write the document (JSON)");
  app.add_option("--trace", options.trace,
                 "where to write the timeline: Chrome trace JSON, which Perfetto opens");
  app.add_option("--trace-sms", options.trace_sms, "SMs of each rank in the timeline")
      ->capture_default_str();
  app.add_flag("--json", console.json, "machine output on stdout");
}

sim::StoreOptions store_options(const SimulateOptions& options, model::Mechanism fallback) {
  if (options.profile.empty())
    throw Failure(bad_input("a simulation needs a node", "--profile", "not given",
                            "a profile file, such as profiles/h200-nv18-x2.json"));
  sim::StoreOptions store;
  store.mechanism = fallback;
  store.threads = options.threads;
  if (!options.mechanism.empty()) {
    const auto mechanism = model::mechanism_named(options.mechanism);
    if (!mechanism)
      throw Failure(bad_input("no such mechanism", "--mechanism", options.mechanism,
                              "st_v1, st_v2, st_v4, tma_bulk"));
    store.mechanism = *mechanism;
  }
  if (options.threads < 0 || options.threads > 1024)
    throw Failure(bad_input("a block has some threads", "--threads",
                            std::to_string(options.threads), "0 (as measured) to 1024"));
  check_outputs(
      {{"--out", options.out, "xstage.simulation"}, {"--trace", options.trace, kTimeline}});
  if (options.trace_sms < 0 || options.trace_sms > 1024)
    throw Failure(bad_input("a timeline keeps some SMs", "--trace-sms",
                            std::to_string(options.trace_sms), "0 to 1024"));
  return store;
}

model::Mechanism default_mechanism(const model::Profile& profile) {
  for (const model::MechanismProfile& m : profile.mechanisms)
    if (m.mechanism == model::Mechanism::kTmaBulk && m.capacity) return m.mechanism;
  return model::Mechanism::kStoreV4;
}

std::vector<int> traced_sms(const sim::StoreModel& store, int count) {
  // SMs drain at a rate that depends on the size of their group, so one of each size comes first.
  std::vector<int> sms;
  std::set<std::size_t> sizes;
  const auto& groups = store.fabric[0].groups;
  for (const bool new_sizes : {true, false})
    for (const auto& group : groups) {
      if (group.empty() || static_cast<int>(sms.size()) >= count) continue;
      if (new_sizes ? sizes.insert(group.size()).second
                    : std::find(sms.begin(), sms.end(), group[0]) == sms.end())
        sms.push_back(group[0]);
    }
  return sms;
}

json timeline_json(const sim::Timeline& timeline, double capacity_bytes, std::size_t max_spans) {
  json out;
  out["backlog"] = json::array();
  for (std::size_t rank = 0; rank < timeline.backlog.size() && rank < 8; ++rank) {
    const sim::BacklogSeries& series = timeline.backlog[rank];
    json times = json::array(), bytes = json::array();
    for (std::size_t i = 0; i < series.time_us.size(); ++i) {
      times.push_back(rounded(series.time_us[i]));
      bytes.push_back(std::round(series.bytes[i]));
    }
    out["backlog"].push_back({{"rank", rank},
                              {"time_us", std::move(times)},
                              {"backlog_bytes", std::move(bytes)},
                              {"capacity_bytes", std::round(capacity_bytes)}});
  }
  // Spans of rank 0 in time order, as many as the report should carry.
  std::vector<sim::Span> spans;
  for (const sim::Span& span : timeline.spans)
    if (span.rank == 0) spans.push_back(span);
  std::stable_sort(spans.begin(), spans.end(),
                   [](const sim::Span& a, const sim::Span& b) { return a.start_us < b.start_us; });
  const bool cut = spans.size() > max_spans;
  if (cut) spans.resize(max_spans);
  std::map<std::tuple<int, int>, json> tracks;
  std::map<sim::Activity, std::size_t> activities;
  json names = json::array();
  for (const sim::Span& span : spans) {
    const auto [activity, added] = activities.emplace(span.activity, names.size());
    if (added) names.push_back(sim::name(span.activity));
    json& track = tracks[{span.sm, static_cast<int>(span.role)}];
    if (track.is_null())
      track = {{"rank", span.rank},
               {"sm", span.sm >= 0 ? json(span.sm) : json()},
               {"role", sim::name(span.role)},
               {"start_us", json::array()},
               {"duration_us", json::array()},
               {"what", json::array()}};
    track["start_us"].push_back(rounded(span.start_us));
    track["duration_us"].push_back(rounded(span.duration_us));
    track["what"].push_back(activity->second);
  }
  json list = json::array();
  for (auto& [key, track] : tracks) list.push_back(std::move(track));
  const std::size_t shown = list.size();
  out["timeline"] = {{"tracks", std::move(list)},
                     {"names", std::move(names)},
                     {"shown", cut ? fmt::format("{} tracks of rank 0, first {:.0f} us", shown,
                                                 spans.back().start_us)
                                   : fmt::format("{} tracks of rank 0", shown)}};
  return out;
}

void write_trace(const std::string& path, const sim::Timeline& timeline, const std::string& title) {
  begin_answer();
  (void)write_file(path, sim::chrome_trace(timeline, title)).value();
}

}  // namespace xstage::cli
