// xstage run moe|ulysses: the layer with real numbers, checked against the reference.
#include "cli/run.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <sstream>

#include "cli/interrupt.hpp"
#include "cli/outputs.hpp"
#include "cli/typed_options.hpp"
#include "cpu/wait_report.hpp"
#include "cuda/driver.hpp"
#include "xstage/atomic_file.hpp"

namespace xstage::cli {
namespace {

std::optional<Error> in_range(const char* field, std::int64_t value, std::int64_t least,
                              std::int64_t most) {
  if (value >= least && value <= most) return {};
  return bad_input("an option of the run is out of range", field, fmt::format("{}", value),
                   fmt::format("{} to {}", least, most));
}

/// Ranks that share a GPU are independent streams of one process.
std::optional<Error> why_not_shared(const RunOptions& options, int ranks) {
  if (auto error = in_range("--ranks-per-gpu", options.ranks_per_gpu, 1, 8)) return error;
  if (options.ranks_per_gpu == 1) return {};
  if (options.backend != "cuda")
    return bad_input("only ranks on GPUs can share one", "--ranks-per-gpu",
                     fmt::format("{}", options.ranks_per_gpu), "1, or --backend cuda beside it");
  if (ranks % options.ranks_per_gpu != 0)
    return bad_input("the ranks do not fill their GPUs", "--ranks-per-gpu",
                     fmt::format("{}", options.ranks_per_gpu),
                     fmt::format("a divisor of the {} ranks", ranks));
  return {};
}

/// Why the kernels cannot run: no driver, no GPU, too few of them, or none for this layer.
std::optional<Error> why_not_cuda(int ranks, int ranks_per_gpu, bool has_kernel) {
  // Read when the driver starts. With the usual 8 queues two streams may wait behind each other.
  if (ranks_per_gpu > 1) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  const auto api = cuda::system_driver();
  const cuda::NodeState node = cuda::look_around(*api);
  if (!node.why_no_gpu.empty())
    return Error{ErrorKind::kNoGpu, "no GPU to run the layer on: " + node.why_no_gpu, "--backend",
                 "cuda", "cpu; cuda on a machine with GPUs"};
  if (auto error = cuda::why_not_ranks(node, ranks / ranks_per_gpu)) {
    if (ranks_per_gpu > 1) error->allowed += fmt::format(", with {} ranks on each", ranks_per_gpu);
    error->what = "the layer cannot run on GPUs here: " + error->what;
    return error;
  }
  if (has_kernel) return {};
  return Error{ErrorKind::kUnsupported, "this layer has no fused kernel for GPUs", "--backend",
               "cuda", "cpu"};
}

}  // namespace

void add_run_options(CLI::App& app, RunOptions& options) {
  app.add_option("--backend", options.backend, "cpu: threads; cuda: the kernels")
      ->capture_default_str();
  app.add_option("--workers", options.workers,
                 "Workers of a rank, each standing for a thread block")
      ->capture_default_str();
  app.add_option(
         "--ranks-per-gpu", options.ranks_per_gpu,
         "cuda: this many ranks share a GPU, each with its part of the SMs: the same results "
         "and protocol as with a GPU each, other times")
      ->capture_default_str();
  app.add_option("--runs", options.runs, "Launches of each schedule; all must give the same bits")
      ->capture_default_str();
  app.add_option("--wait-limit", options.wait_limit_ms,
                 "Milliseconds after which a wait ends with an error")
      ->capture_default_str();
  app.add_option("--first-wait-limit", options.first_wait_limit_ms,
                 "The same for the first launch, in which a peer may still be starting")
      ->capture_default_str();
  app.add_option("--max-work", options.max_work,
                 "cpu: refuse launches of more multiply-adds than this, all together")
      ->capture_default_str();
  app.add_flag("--no-check", options.no_check, "Do not compare with the reference");
  app.add_option("--out", options.out, "File for the JSON document");
}

void refuse_idle_run_options(const CLI::App& app, const RunOptions& options) {
  if (options.backend == "cuda")
    refuse_idle(app, "with --backend cuda, whose kernels have their own shape and no drills",
                {"--workers", "--block-m", "--max-work", "--stop-rank", "--stop-before"});
  if (options.no_check) refuse_idle(app, "with --no-check", {"--check-every"});
  if (!typed(app, "--stop-rank")) refuse_idle(app, "without --stop-rank", {"--stop-before"});
}

std::optional<Error> check(const RunOptions& options, int ranks, bool has_kernel) {
  if (options.backend != "cpu" && options.backend != "cuda")
    return bad_input("no such backend", "--backend", options.backend, "cpu, cuda");
  constexpr std::int64_t kDay = 24 * 3600 * 1000;
  for (const auto& error :
       {in_range("--workers", options.workers, 1, 256), in_range("--runs", options.runs, 1, 10000),
        in_range("--wait-limit", options.wait_limit_ms, 1, kDay),
        in_range("--first-wait-limit", options.first_wait_limit_ms, 1, kDay)})
    if (error) return error;
  if (auto error = why_not_shared(options, ranks)) return error;
  check_outputs({{"--out", options.out, "xstage.run"}});
  if (options.backend == "cuda") return why_not_cuda(ranks, options.ranks_per_gpu, has_kernel);
  return {};
}

void tell_sharing(const Console& console, const RunOptions& options, int ranks,
                  nlohmann::json& document) {
  if (options.backend != "cuda") return;
  document["ranks_per_gpu"] = options.ranks_per_gpu;
  if (options.ranks_per_gpu == 1) return;
  document["provenance"]["ranks_per_gpu"] = options.ranks_per_gpu;
  console.text(
      fmt::format("{} ranks on {} GPU{}, {} on each with its part of the SMs: the times are not "
                  "those of a GPU each",
                  ranks, ranks / options.ranks_per_gpu, ranks == options.ranks_per_gpu ? "" : "s",
                  options.ranks_per_gpu));
}

void set_limits(cpu::LaunchOptions& launch, const RunOptions& options) {
  launch.limit_ns = static_cast<std::uint64_t>(options.wait_limit_ms) * 1000000;
  launch.first_limit_ns = static_cast<std::uint64_t>(options.first_wait_limit_ms) * 1000000;
}

std::optional<Error> check_rows(std::int64_t check_every, int stop_rank, int ranks) {
  if (auto error =
          in_range("--check-every", check_every, 0, std::numeric_limits<std::int32_t>::max()))
    return error;
  return in_range("--stop-rank", stop_rank, -1, ranks - 1);
}

std::optional<Error> check_work(const Console& console, const RunOptions& options,
                                double multiply_adds) {
  constexpr double kTwoCores = 4e9;  // multiply-adds a second, measured with both layers
  if (options.backend != "cpu") return {};
  if (!(options.max_work >= 1 && options.max_work <= 1e30))
    return bad_input("an option of the run is out of range", "--max-work",
                     fmt::format("{:g}", options.max_work), "1 to 1e30 multiply-adds");
  if (multiply_adds > options.max_work)
    return bad_input("a CPU would take too long for this layer", "--max-work",
                     fmt::format("{:g}", options.max_work),
                     fmt::format("{:.3g} for these launches; or a smaller layer, one schedule, "
                                 "--runs 1",
                                 multiply_adds));
  if (multiply_adds > 10 * kTwoCores)
    console.log(fmt::format("{:.3g} multiply-adds: two cores take about {:.0f} s, beside the check",
                            multiply_adds, multiply_adds / kTwoCores));
  return {};
}

std::int64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string key;
    std::int64_t kilobytes = 0;
    if (fields >> key >> kilobytes && key == "MemAvailable:") return kilobytes * 1024;
  }
  return static_cast<std::int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

std::string digest_of(const std::vector<std::vector<std::uint16_t>>& outputs) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a, over 16-bit values
  for (const auto& output : outputs) {
    for (const std::uint16_t value : output) hash = (hash ^ value) * 0x100000001b3ULL;
    hash = (hash ^ output.size()) * 0x100000001b3ULL;
  }
  return fmt::format("{:016x}", hash);
}

nlohmann::json to_json(const std::vector<sync::WaitRecord>& waits) {
  nlohmann::json out = nlohmann::json::array();
  for (const sync::WaitRecord& wait : waits) {
    if (wait.end == sync::WaitEnd::kNone) continue;
    out.push_back({{"rank", wait.rank},
                   {"worker", wait.worker},
                   {"launch", wait.epoch},
                   {"what", cpu::describe(wait)},
                   {"wanted", wait.wanted},
                   {"seen", wait.seen},
                   {"stopped_by_another", wait.end == sync::WaitEnd::kStopped}});
  }
  return out;
}

int finish(const Session& session, const RunOptions& options, nlohmann::json document, bool ok,
           const std::string& what_failed) {
  begin_answer();
  document["ok"] = ok;
  const Error error{ErrorKind::kCheckFailed, what_failed, {}, {}, {}};
  if (!options.out.empty()) {
    nlohmann::json kept = document;
    if (!ok) kept["error"] = to_json(error);
    if (auto written = write_file(options.out, kept.dump(2) + "\n"); !written)
      return session.console.fail(written.error(), document);
  }
  if (!ok) return session.console.fail(error, document);
  session.console.document(document);
  return 0;
}

void add_run(CLI::App& app, Session& session) {
  CLI::App* const run =
      app.add_subcommand("run", "Run a layer with real numbers and check it against a reference");
  run->require_subcommand(1);
  add_run_moe(*run, session);
  add_run_ulysses(*run, session);
}

}  // namespace xstage::cli
