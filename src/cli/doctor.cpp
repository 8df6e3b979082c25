// xstage doctor: what this machine can do, and for each thing that is missing why, and what that
// rules out. Ends with 0 whenever it could look.
#include <fmt/format.h>

#include "cli/provenance.hpp"
#include "cli/verbs.hpp"
#include "cuda/driver.hpp"
#include "cuda/probe/prober.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;

template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

struct Usable {
  std::string what;
  bool ok = true;
  std::string why;
};

/// What can be done here. `grid` is the error of the resident-grid check, where it was made.
std::vector<Usable> usable(const cuda::NodeState& node, const std::optional<Error>& grid) {
  std::vector<Usable> out{{"fit", true, ""}, {"simulate", true, ""}, {"run_cpu", true, ""}};
  std::optional<Error> error = cuda::why_not_calibrate(node, {});
  if (!error) error = grid;
  out.push_back({"calibrate_cuda", !error, error ? error->message() : ""});
  return out;
}

json gpu_json(const cuda::GpuState& gpu) {
  return {{"gpu", gpu.index},
          {"name", gpu.name},
          {"pci", gpu.pci},
          {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
          {"sms", gpu.sms},
          {"cooperative_launch", gpu.cooperative_launch},
          {"memory_bytes", gpu.memory_bytes},
          {"mig", gpu.mig},
          {"nvlinks", gpu.nvlinks},
          {"nvlink_gb_per_s", or_null(gpu.nvlink_gb_per_s)},
          {"sm_clock_ghz", gpu.sm_clock_mhz ? json(*gpu.sm_clock_mhz * 1e-3) : json(nullptr)},
          {"sm_clock_max_ghz",
           gpu.sm_clock_max_mhz ? json(*gpu.sm_clock_max_mhz * 1e-3) : json(nullptr)},
          {"clock_limits", gpu.clock_limits},
          {"temperature_celsius", or_null(gpu.temperature_c)},
          {"compute_processes", or_null(gpu.other_processes)}};
}

int doctor(const Session& session) {
  const std::unique_ptr<cuda::DriverApi> api = cuda::system_driver();
  const cuda::NodeState node = cuda::look_around(*api);
  const cuda::Surroundings around = cuda::surroundings();

  std::optional<Error> grid;
  json grids = json::array();
  for (const cuda::GpuState& gpu : node.gpus) {
    const Result<int> blocks = probe::resident_blocks(gpu.index);
    if (!blocks && !grid) grid = blocks.error();
    grids.push_back({{"gpu", gpu.index},
                     {"blocks", blocks ? json(*blocks) : json(nullptr)},
                     {"why", blocks ? "" : blocks.error().message()}});
  }

  json document{
      {"format", "xstage.doctor/1"},
      {"provenance", provenance("doctor", {})},
      {"driver",
       {{"loaded", node.driver_loaded},
        {"version", node.driver_version.empty() ? json(nullptr) : json(node.driver_version)},
        {"cuda", node.cuda_version.empty() ? json(nullptr) : json(node.cuda_version)},
        {"why_no_gpu", node.why_no_gpu}}},
      {"gpus", json::array()},
      {"pairs", json::array()},
      {"resident_grid", grids},
      {"container",
       {{"in_container", around.container},
        {"handles_by_process_id", around.may_trace},
        {"shared_memory_bytes", around.shared_bytes}}},
      {"usable", json::object()}};
  for (const cuda::GpuState& gpu : node.gpus) document["gpus"].push_back(gpu_json(gpu));
  for (const cuda::PairState& pair : node.pairs)
    document["pairs"].push_back({{"from", pair.from},
                                 {"to", pair.to},
                                 {"peer_access", pair.peer_access},
                                 {"native_atomics", pair.native_atomics},
                                 {"links", pair.links},
                                 {"why", pair.why}});
  const std::vector<Usable> verbs = usable(node, grid);
  for (const Usable& verb : verbs)
    document["usable"][verb.what] = {{"ok", verb.ok}, {"why", verb.why}};

  const Console& console = session.console;
  console.document(document);
  console.text(node.why_no_gpu.empty()
                   ? fmt::format("driver {}, CUDA {}", node.driver_version, node.cuda_version)
                   : "no GPU: " + node.why_no_gpu);
  for (const cuda::GpuState& gpu : node.gpus) {
    std::string limits;
    for (const std::string& limit : gpu.clock_limits) limits += ", clock held down: " + limit;
    console.text(fmt::format(
        "GPU {}: {}, {} SMs, {:.0f} GiB, {} NVLinks{}, clock {} of {} MHz{}{}", gpu.index, gpu.name,
        gpu.sms, static_cast<double>(gpu.memory_bytes) / (1 << 30), gpu.nvlinks,
        gpu.nvlink_gb_per_s ? fmt::format(" of {:.1f} GB/s", *gpu.nvlink_gb_per_s) : "",
        gpu.sm_clock_mhz.value_or(0), gpu.sm_clock_max_mhz.value_or(0), gpu.mig ? ", MIG on" : "",
        limits));
    if (gpu.other_processes.value_or(0) > 0)
      console.text(
          fmt::format("  {} compute processes run on it: a calibration would measure them too",
                      *gpu.other_processes));
  }
  for (const cuda::PairState& pair : node.pairs)
    console.text(
        pair.peer_access
            ? fmt::format("GPU {} -> {}: peer access, {} NVLinks", pair.from, pair.to, pair.links)
            : fmt::format("GPU {} -> {}: no peer access: {}", pair.from, pair.to, pair.why));
  for (const auto& one : grids)
    if (one["blocks"].is_null())
      console.text(fmt::format("GPU {}: a grid of one block an SM does not run: {}",
                               one["gpu"].get<int>(), one["why"].get<std::string>()));
  if (!around.may_trace)
    console.text(
        "no right to trace other processes: ranks in separate processes must pass memory handles "
        "over "
        "a socket (one process that drives all GPUs needs none)");
  for (const Usable& verb : verbs)
    console.text(fmt::format("{}: {}", verb.what, verb.ok ? "yes" : "no, " + verb.why));
  return 0;
}

}  // namespace

void add_doctor(CLI::App& app, Session& session) {
  CLI::App* verb = app.add_subcommand(
      "doctor", "What this machine can do: GPUs, links, peer access, and what is missing");
  verb->add_flag("--json", session.console.json, "One JSON document on stdout");
  verb->callback([&session] { session.action = [&session] { return doctor(session); }; });
}

}  // namespace xstage::cli
