// What the simulate verbs share: options of the node, timelines in files and documents.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/console.hpp"
#include "xstage/sim/from_profile.hpp"
#include "xstage/sim/timeline.hpp"

namespace xstage::cli {

/// --profile, --mechanism, --threads, --out, --trace, --json, as given.
struct SimulateOptions {
  std::string profile;
  std::string mechanism;  ///< empty: the verb's default
  int threads = 0;
  std::string out;
  std::string trace;
  int trace_sms = 4;
};

void add_simulate_options(CLI::App& app, SimulateOptions& options, Console& console);

/// Mechanism and threads; throws Failure. `fallback` where none was asked for.
sim::StoreOptions store_options(const SimulateOptions& options, model::Mechanism fallback);

/// The mechanism to take where none was asked for: bulk stores if the profile knows their capacity.
model::Mechanism default_mechanism(const model::Profile& profile);

/// Which SMs a timeline keeps: as many as asked for, from groups of different size first.
std::vector<int> traced_sms(const sim::StoreModel& store, int count);

/// {"backlog": […], "timeline": {…}} of one run, light enough for a report.
nlohmann::json timeline_json(const sim::Timeline& timeline, double capacity_bytes,
                             std::size_t max_spans);

/// Writes a Chrome trace; throws Failure.
void write_trace(const std::string& path, const sim::Timeline& timeline, const std::string& title);

}  // namespace xstage::cli
