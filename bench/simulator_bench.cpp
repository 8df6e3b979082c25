// What the simulator costs: one large layer, growth with tokens and ranks, and 84 planned
// configurations. Writes one JSON document to standard output and the tables of docs/performance.md
// to standard error.
//
//   build/bench/simulator_bench profiles/h200-nv18-x2.json > results/simulator.json 2> tables.md
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "cli/inputs.hpp"
#include "cli/moe_simulation.hpp"
#include "cli/provenance.hpp"
#include "cuda/build_info.hpp"

using namespace xstage;
using nlohmann::json;

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double peak_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

cli::MoeLayer layer_of(const std::string& shape, std::int64_t tokens, int ranks,
                       const std::string& weights, const std::string& routing,
                       std::int64_t experts = 0) {
  cli::MoeLayerOptions options;
  options.shape = shape;
  options.tokens = tokens;
  options.ranks = ranks;
  options.weights = weights;
  options.routing = routing;
  if (experts > 0) options.experts = experts;
  return cli::resolve(options).value();
}

struct Cost {
  double setup_s = 0, run_s = 0, simulated_us = 0;
  std::int64_t tiles = 0, events = 0;
};

/// Both schedules of one layer.
Cost both_schedules(const model::Profile& profile, const cli::MoeLayer& layer) {
  Cost cost;
  auto start = std::chrono::steady_clock::now();
  sim::MoeOptions options;
  options.store.mechanism = model::Mechanism::kTmaBulk;
  const auto setup = cli::moe_setup(profile, layer, options).value();
  cost.setup_s = seconds_since(start);
  start = std::chrono::steady_clock::now();
  const auto cover = schedule::covering_lead(setup.kernel.tiling, setup.workers);
  for (const auto& s : {sim::wave_schedule(setup), schedule::MoeSchedule::interleaved(2 * cover)}) {
    const sim::MoeResult r = sim::simulate_moe(setup, s, layer.seed);
    cost.simulated_us += r.time_us;
    cost.events += r.events;
    for (const auto& rank : r.ranks) cost.tiles += rank.tiles;
  }
  cost.run_s = seconds_since(start);
  return cost;
}

json to_json(const Cost& c) {
  return {{"setup_s", c.setup_s}, {"both_schedules_s", c.run_s}, {"simulated_us", c.simulated_us},
          {"tiles", c.tiles},     {"events", c.events},          {"peak_mb", peak_mb()}};
}

void row(const std::string& what, const Cost& c) {
  fmt::print(stderr, "| {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.0f} |\n", what, c.tiles, c.setup_s,
             c.run_s, c.run_s * 1e6 / static_cast<double>(c.tiles), peak_mb());
}

void table(const char* what) {
  fmt::print(stderr,
             "\n| {} | tiles | routing, s | both schedules, s | µs a tile | peak memory, MB |\n"
             "| --- | --- | --- | --- | --- | --- |\n",
             what);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: simulator_bench PROFILE.json\n");
    return 2;
  }
  const model::Profile profile = cli::profile_of(argv[1]);
  json provenance = cli::provenance("simulator_bench", {argv[1]});
  provenance["git_commit"] = git_commit();
  json out = {{"format", "xstage.bench/1"},
              {"provenance", std::move(provenance)},
              {"cores", std::thread::hardware_concurrency()}};

  table("tokens a rank (lingbot-video, 2 ranks)");
  for (std::int64_t tokens : {1024, 2048, 4096, 8192, 16384, 32768, 65536}) {
    const Cost c =
        both_schedules(profile, layer_of("lingbot-video", tokens, 2, "w8a8", "balanced"));
    row(std::to_string(tokens), c);
    json entry = to_json(c);
    entry["tokens"] = tokens;
    out["tokens"].push_back(entry);
  }
  table("ranks (deepseek-v4-flash with 288 experts, 1024 tokens a rank)");
  for (int ranks : {2, 4, 8, 16, 36, 72}) {
    const Cost c = both_schedules(
        profile, layer_of("deepseek-v4-flash", 1024, ranks, "w8a8", "balanced", 288));
    row(std::to_string(ranks), c);
    json entry = to_json(c);
    entry["ranks"] = ranks;
    out["ranks"].push_back(entry);
  }

  // The paper's grid: every configuration planned with the wave and all candidate leads.
  std::vector<cli::MoeLayer> layers;
  for (const char* shape : {"lingbot-video", "qwen3.5-397b", "hy3", "mimo-v2.5", "glm-5",
                            "deepseek-v4-flash", "deepseek-v4-pro"})
    for (const char* weights : {"w8a8", "bf16"})
      for (const char* routing : {"balanced", "zipf:1.2"})
        for (std::int64_t tokens : {2048, 8192, 16384})
          layers.push_back(layer_of(shape, tokens, 2, weights, routing));
  const auto start = std::chrono::steady_clock::now();
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  json rows = json::array();
  const auto work = [&] {
    for (std::size_t i = next++; i < layers.size(); i = next++) {
      sim::MoeOptions options;
      options.store.mechanism = model::Mechanism::kTmaBulk;
      const auto setup = cli::moe_setup(profile, layers[i], options).value();
      const auto choice = sim::choose_moe_schedule(setup, 1).value();
      double best = choice.candidates[1].time_us;
      for (std::size_t c = 1; c < choice.candidates.size(); ++c)
        best = std::min(best, choice.candidates[c].time_us);
      const std::lock_guard lock(mutex);
      rows.push_back({{"layer", cli::to_json(layers[i])},
                      {"wave_us", choice.candidates[0].time_us},
                      {"best_interleaved_us", best},
                      {"chosen", cli::candidate_json(choice.candidates[choice.best])},
                      {"reason", choice.reason}});
    }
  };
  std::thread other(work);
  work();
  other.join();
  const double wall = seconds_since(start);
  std::sort(rows.begin(), rows.end(),
            [](const json& a, const json& b) { return a["layer"].dump() < b["layer"].dump(); });
  double log_sum = 0, most = 0, least = 1e9;
  for (const json& r : rows) {
    const double speedup = r["wave_us"].get<double>() / r["best_interleaved_us"].get<double>();
    log_sum += std::log(speedup);
    most = std::max(most, speedup);
    least = std::min(least, speedup);
  }
  out["grid"] = {{"configurations", rows.size()},
                 {"threads", 2},
                 {"wall_s", wall},
                 {"speedup_geometric_mean", std::exp(log_sum / static_cast<double>(rows.size()))},
                 {"speedup_most", most},
                 {"speedup_least", least},
                 {"rows", std::move(rows)}};
  out["peak_mb"] = peak_mb();
  fmt::print(stderr, "\n{} configurations planned in {:.0f} s on two threads, {:.0f} MB\n",
             layers.size(), wall, peak_mb());
  fmt::print("{}\n", out.dump(1));
}
