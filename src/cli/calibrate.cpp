// xstage calibrate: measures bursts on this node and fits a profile.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>

#include "cli/inputs.hpp"
#include "cli/layer_options.hpp"
#include "cli/outputs.hpp"
#include "cli/provenance.hpp"
#include "cli/sim_prober.hpp"
#include "cli/typed_options.hpp"
#include "cli/verbs.hpp"
#include "cuda/build_info.hpp"
#include "cuda/driver.hpp"
#include "cuda/probe/calibration.hpp"
#include "xstage/atomic_file.hpp"
#include "xstage/model/profile.hpp"
#include "xstage/version.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;

// Set by the signal handler; the campaign looks between two runs.
std::atomic<bool> interrupted{false};

void on_interrupt(int) { interrupted.store(true); }

/// SIGINT and SIGTERM end the calibration in order while this lives.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted.store(false);
    old_int_ = std::signal(SIGINT, on_interrupt);
    old_term_ = std::signal(SIGTERM, on_interrupt);
  }
  ~InterruptGuard() {
    std::signal(SIGINT, old_int_);
    std::signal(SIGTERM, old_term_);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  void (*old_int_)(int);
  void (*old_term_)(int);
};

struct Options {
  std::string backend = "cuda";
  std::string profile;
  std::string out, samples_out, result_out;
  std::vector<int> gpus;
  bool quick = false;
  int validate = 0;
  std::uint64_t seed = 1;
  std::int64_t litmus_rounds = -1;
};

/// "2x NVIDIA H200, NV18"
std::string node_name(const cuda::NodeState& node, std::size_t used) {
  if (node.gpus.empty()) return "";
  std::string name = fmt::format("{}x {}", used, node.gpus.front().name);
  if (!node.pairs.empty() && node.pairs.front().links > 0)
    name += fmt::format(", NV{}", node.pairs.front().links);
  return name;
}

json calibration_provenance(const cuda::NodeState& node, const Options& options, std::size_t used,
                            const json& clock) {
  json gpus = json::array();
  for (const cuda::GpuState& gpu : node.gpus)
    gpus.push_back(
        {{"gpu", gpu.index},
         {"temperature_celsius", gpu.temperature_c ? json(*gpu.temperature_c) : json()},
         {"clock_limits", gpu.clock_limits},
         {"compute_processes", gpu.other_processes ? json(*gpu.other_processes) : json()}});
  json state{{"name", node_name(node, used)},
             {"gpus", used},
             {"sms", node.gpus.empty() ? 0 : node.gpus.front().sms},
             {"driver", node.driver_version},
             {"cuda", node.cuda_version},
             {"state_before", gpus}};
  if (clock.is_object()) state["sm_clock_ghz"] = clock["median_ghz"];
  json out = provenance("calibrate", {});
  out["backend"] = options.backend;
  out["git_commit"] = git_commit();
  out["kernel_digest"] = kernel_digest();
  out["options"] = {
      {"quick", options.quick}, {"validate", options.validate}, {"seed", options.seed}};
  out["node"] = state;
  return out;
}

/// "S.csv" and what goes beside it: "S_bursts.csv", "S_per_sm.csv", "S_groups.csv".
std::filesystem::path beside(const std::filesystem::path& path, const char* suffix) {
  std::filesystem::path out = path;
  out.replace_filename(path.stem().string() + suffix + path.extension().string());
  return out;
}

/// Found before the measurement, not after it: what cannot be written, or would replace a file of
/// another kind.
void check_calibration_outputs(const Options& options) {
  std::vector<Output> outputs = {{"--out", options.out, "xstage.profile"},
                                 {"--result-out", options.result_out, "xstage.calibration"},
                                 {"--samples-out", options.samples_out, kSamples}};
  if (!options.samples_out.empty())
    for (const char* suffix : {"_bursts", "_per_sm", "_groups", "_unseen", "_unseen_bursts"})
      outputs.push_back({"--samples-out", beside(options.samples_out, suffix).string(), kSamples});
  check_outputs(outputs);
}

std::string sample_comment(const json& node) {
  return fmt::format(
      "# {}, driver {}, CUDA {}; SM clock measured {:.4f} GHz; times in us; sizes in bytes\n",
      node["name"].get<std::string>(), node["driver"].get<std::string>(),
      node["cuda"].get<std::string>(), node.value("sm_clock_ghz", 0.0));
}

void write_samples(const Options& options, const probe::Calibration& done, const json& node,
                   json& files) {
  const std::filesystem::path path = options.samples_out;
  const std::string comment = sample_comment(node);
  const auto put = [&](const std::filesystem::path& file, const std::string& text) {
    (void)write_file(file, text).value();
    files.push_back(file.filename().string());
  };
  put(path, comment + done.window_csv);
  put(beside(path, "_bursts"), comment + done.burst_csv);
  put(beside(path, "_per_sm"), comment + done.per_sm_csv);
  if (!done.groups_csv.empty()) put(beside(path, "_groups"), done.groups_csv);
  if (!done.unseen_window_csv.empty()) {
    put(beside(path, "_unseen"), comment + done.unseen_window_csv);
    put(beside(path, "_unseen_bursts"), comment + done.unseen_burst_csv);
  }
}

void print_summary(const Console& console, const probe::Calibration& done) {
  const json& f = done.findings;
  const auto number = [](const json& value, const char* unit) {
    return value.is_number() ? fmt::format("{:.4g} {}", value.get<double>(), unit)
                             : std::string("not determined");
  };
  if (f.contains("drain_rate")) {
    console.text("drain rate one way:   " + number(f["drain_rate"]["one_way_gb_per_s"], "GB/s"));
    console.text("drain rate both ways: " + number(f["drain_rate"]["both_ways_gb_per_s"], "GB/s"));
  }
  if (f.contains("yardsticks"))
    console.text(
        "plain copy kernel:    " + number(f["yardsticks"]["copy_kernel_gb_per_s"], "GB/s") +
        "; copy engine " + number(f["yardsticks"]["copy_engine_gb_per_s"], "GB/s"));
  if (f.contains("onset") && f["onset"].contains("rows"))
    for (const json& row : f["onset"]["rows"])
      console.text(
          fmt::format("back-pressure from:   {:.1f} KB at K = {:3} (predicted {})",
                      row["bytes"].get<double>() * 1e-3, row["producers"].get<int>(),
                      row["predicted_bytes"].is_number()
                          ? fmt::format("{:.1f}", row["predicted_bytes"].get<double>() * 1e-3)
                          : std::string("nothing")));
  if (f.contains("sm_groups"))
    for (const json& g : f["sm_groups"])
      if (g.contains("by_size")) {
        std::string sizes;
        for (const json& s : g["by_size"])
          sizes += fmt::format("{}{} of {} SMs", sizes.empty() ? "" : ", ", s["groups"].get<int>(),
                               s["sms"].get<int>());
        console.text(fmt::format("groups on GPU {}:      {} (found in {:.1f} s)",
                                 g["gpu"].get<int>(), sizes, g["seconds"].get<double>()));
      }
  if (f.contains("capacity") && f["capacity"].contains("rows"))
    for (const json& row : f["capacity"]["rows"])
      console.text(fmt::format(
          "capacity at K = {:3}:   {:.2f} MB by bursts, {:.2f} by fence, {:.2f} by recovery",
          row["producers"].get<int>(), row["isolated_bytes"].get<double>() * 1e-6,
          row["fence_bytes"].get<double>() * 1e-6, row["recovery_bytes"].get<double>() * 1e-6));
  if (done.validation.is_object()) {
    const json& w = done.validation["windowed"];
    const json& i = done.validation["isolated"];
    const auto percent = [&](const json& v) {
      return v.is_number() ? fmt::format("{:.2f} %", v.get<double>() * 100) : std::string("-");
    };
    const auto us = [&](const json& v) {
      return v.is_number() ? fmt::format("{:.3f} us", v.get<double>()) : std::string("-");
    };
    console.text(
        fmt::format("unseen points:        {} windowed: period {} / {}, issue {} / {}; "
                    "{} isolated beyond the knee: issue {} / {} (median / p95)",
                    w["n"].get<int>(), percent(w["period"]["median"]), percent(w["period"]["p95"]),
                    us(w["issue_us"]["median"]), us(w["issue_us"]["p95"]), i["n"].get<int>(),
                    us(i["issue_us"]["median"]), us(i["issue_us"]["p95"])));
  }
  if (f.contains("litmus"))
    for (const json& row : f["litmus"]["rows"])
      console.text(fmt::format(
          "litmus {:8} {}: {} messages, {} of them stale", row["mechanism"].get<std::string>(),
          row["signal"].get<std::string>(), row["messages"].get<std::int64_t>(),
          row["stale_messages"].get<std::uint64_t>()));
}

/// A litmus that failed, or one that did not catch wrong signalling of every mechanism, fails the
/// calibration.
std::optional<Error> litmus_error(const json& findings) {
  if (!findings.contains("litmus")) return std::nullopt;
  std::map<std::string, bool> caught;
  for (const json& row : findings["litmus"]["rows"]) {
    const bool stale = row["stale_words"].get<std::uint64_t>() > 0;
    const auto mechanism = row["mechanism"].get<std::string>();
    if (row["right"].get<bool>() && stale)
      return Error{ErrorKind::kCheckFailed, "message passing read stale words", "mechanism",
                   mechanism, "no stale word"};
    caught[mechanism] = caught[mechanism] || (!row["right"].get<bool>() && stale);
  }
  for (const auto& [mechanism, by_one] : caught)
    if (!by_one)
      return Error{ErrorKind::kCheckFailed,
                   "the litmus did not catch any wrong signalling, so its clean runs prove little",
                   "mechanism",
                   mechanism,
                   {}};
  return std::nullopt;
}

/// A simulated node has as many GPUs as are named, from 0 on.
std::optional<Error> check_simulated(const std::vector<int>& gpus) {
  if (gpus.size() == 1 || gpus.size() > 8)
    return bad_input("a simulated node has other sizes", "--gpus",
                     fmt::format("{} of them", gpus.size()), "2 to 8");
  for (std::size_t i = 0; i < gpus.size(); ++i)
    if (gpus[i] != static_cast<int>(i))
      return bad_input("the GPUs of a simulated node are numbered in order", "--gpus",
                       fmt::format("{}", gpus[i]), fmt::format("{} in its place", i));
  return std::nullopt;
}

/// The node to measure: GPUs, or the simulator with the parameters of a profile.
Result<std::unique_ptr<probe::Prober>> open_prober(const Options& options,
                                                   const cuda::NodeState& node,
                                                   std::vector<model::Topology>& topology) {
  if (options.backend == "sim") {
    Result<model::Profile> profile = options.profile.empty()
                                         ? Result<model::Profile>(shipped_profile())
                                         : model::load_profile(options.profile);
    if (!profile) return profile.error();
    topology = profile->topology;
    if (const auto error = check_simulated(options.gpus)) return *error;
    return open_sim_prober(std::move(profile).value(), static_cast<int>(options.gpus.size()));
  }
  if (const auto error = cuda::why_not_calibrate(node, options.gpus)) return *error;
  return probe::open_cuda_prober(options.gpus);
}

int calibrate(const Session& session, const Options& options) {
  const Console& console = session.console;
  check_calibration_outputs(options);
  const bool simulated = options.backend == "sim";
  const cuda::NodeState node =
      simulated ? cuda::NodeState{} : cuda::look_around(*cuda::system_driver());
  const std::size_t used =
      !options.gpus.empty() ? options.gpus.size() : (simulated ? 2 : node.gpus.size());
  json document{{"format", "xstage.calibration/1"},
                {"provenance", calibration_provenance(node, options, used, json())}};
  probe::CalibrationOptions what;
  Result<std::unique_ptr<probe::Prober>> prober = open_prober(options, node, what.topology);
  if (!prober) return console.fail(prober.error(), document);
  for (const cuda::GpuState& gpu : node.gpus)
    if (gpu.other_processes.value_or(0) > 0)
      console.log(fmt::format("warning: {} compute processes run on GPU {}; they are measured too",
                              *gpu.other_processes, gpu.index));

  what.depth = options.quick ? probe::Depth::kQuick : probe::Depth::kFull;
  what.validate = options.validate;
  what.seed = options.seed;
  what.litmus_rounds =
      options.litmus_rounds >= 0 ? options.litmus_rounds : (options.quick ? 0 : 1'100'000);
  what.name = options.out.empty() ? "" : std::filesystem::path(options.out).stem().string();
  what.tool = fmt::format("xstage {} calibrate", version());
  what.date = document["provenance"]["created_utc"].get<std::string>();
  what.node_description = simulated ? (*prober)->node().gpu_name
                                    : fmt::format("{}, driver {}, CUDA {}", node_name(node, used),
                                                  node.driver_version, node.cuda_version);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::string last_stage;
  double last_told = -1;
  const auto progress = [&](const std::string& stage, std::size_t done, std::size_t all) {
    if (stage == last_stage && seconds() - last_told < 1) return;
    console.log(fmt::format("[{:5.1f} s] {} {}/{}", seconds(), stage, done, all));
    last_stage = stage;
    last_told = seconds();
  };

  probe::Calibration done;
  {
    const InterruptGuard guard;
    done = probe::calibrate(**prober, what, progress, interrupted);
  }
  document["provenance"] = calibration_provenance(node, options, used, done.findings["clock"]);
  document["seconds"] = seconds();
  for (const auto& [key, value] : done.findings.items()) document[key] = value;
  if (done.fit) document["profile"] = model::to_json(done.fit->profile);
  document["validation"] = done.validation;
  if (!done.error) done.error = litmus_error(done.findings);
  if (done.error) document["error"] = to_json(*done.error);

  json files = json::array();
  if (!options.samples_out.empty())
    write_samples(options, done, document["provenance"]["node"], files);
  if (!options.out.empty() && done.fit) {
    (void)write_file(options.out, model::to_json(done.fit->profile).dump(2) + "\n").value();
    files.push_back(std::filesystem::path(options.out).filename().string());
  }
  document["files"] = files;
  if (!options.result_out.empty())
    (void)write_file(options.result_out, document.dump(1) + "\n").value();
  print_summary(console, done);
  if (done.error) return console.fail(*done.error, document);
  console.document(document);
  return 0;
}

}  // namespace

void add_calibrate(CLI::App& app, Session& session) {
  CLI::App* verb = app.add_subcommand(
      "calibrate", "Measures bursts of remote stores on this node and fits a profile");
  auto options = std::make_shared<Options>();
  verb->add_option("--backend", options->backend,
                   "cuda: the GPUs of this node; sim: the simulator, with a profile's parameters")
      ->check(CLI::IsMember({"cuda", "sim"}))
      ->capture_default_str();
  verb->add_option("--profile", options->profile,
                   "What --backend sim simulates; default: the shipped profile of two H200");
  verb->add_option("--out", options->out, "Profile to write (JSON)");
  verb->add_option("--samples-out", options->samples_out,
                   "Samples to write: S.csv (bursts with a gap), and beside it S_bursts.csv, "
                   "S_per_sm.csv and S_groups.csv; xstage fit reads all four (unseen points go to "
                   "S_unseen.csv and S_unseen_bursts.csv)");
  verb->add_option("--result-out", options->result_out,
                   "Everything that was found, with provenance (JSON)");
  verb->add_flag("--quick", options->quick,
                 "At most 15 seconds; the default takes up to 2 minutes");
  verb->add_option("--validate", options->validate,
                   "Unseen windowed points to measure and compare with the fitted profile, and "
                   "two fifths as many isolated bursts")
      ->check(CLI::Range(0, 100000));
  verb->add_option("--seed", options->seed, "Of the unseen points")
      ->check(refuse_seed_out_of_range)
      ->capture_default_str();
  verb->add_option("--gpus", options->gpus,
                   "GPUs to use, 0,1,...; default: all that are visible (sim: two)")
      ->delimiter(',');
  verb->add_option("--litmus-rounds", options->litmus_rounds,
                   "Messages of the message-passing litmus, for each mechanism and direction")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000'000}));
  verb->add_flag("--json", session.console.json, "One JSON document on stdout, progress on stderr");
  verb->callback([verb, &session, options] {
    if (options->backend == "cuda") refuse_idle(*verb, "with --backend cuda", {"--profile"});
    if (options->validate == 0) refuse_idle(*verb, "without --validate", {"--seed"});
    session.action = [&session, options] { return calibrate(session, *options); };
  });
}

}  // namespace xstage::cli
