#include "cuda/probe/plan.hpp"

#include <algorithm>
#include <random>

namespace xstage::probe {
namespace {

constexpr int kStoreThreads = 256;
constexpr int kBulkThreads = 128;
constexpr int kRounds = 64;
// Gaps as fractions of V/R: dense around the knee, where the laws differ.
constexpr double kGaps[] = {0.0, 0.03, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95, 1.05, 1.2, 1.5, 2.0};
constexpr double kFewGaps[] = {0.0, 0.25, 0.6, 0.9, 1.3};

int threads_of(Mechanism mechanism) {
  return mechanism == Mechanism::kTmaBulk ? kBulkThreads : kStoreThreads;
}

/// Issue times of single bursts spread by up to a quarter (two passes of 1024 threads): launches
/// enough for about a thousand bursts bring the mean to 1 %.
int launches_of(int producers) {
  return std::clamp(1000 / (producers * kRounds * 3 / 4) + 1, 1, 20);
}

std::vector<int> producer_counts(const ProbeNode& node, std::vector<int> wanted) {
  std::vector<int> out;
  for (const int k : wanted)
    if (k >= 1 && k <= node.sms) out.push_back(k);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

class Planner {
 public:
  Planner(const ProbeNode& node, const PlanOptions& options) : node_(node), options_(options) {}

  void stage(std::string name) { stages_.push_back({std::move(name), {}}); }

  /// Window runs over all combinations; gaps are fractions of V/R.
  template <class Gaps>
  void windows(const std::vector<Flow>& flows, Mechanism mechanism, std::vector<int> threads,
               const std::vector<int>& producers, std::vector<std::uint32_t> bytes,
               std::uint32_t chunk, const Gaps& gaps, bool per_sm = false) {
    for (const int t : threads)
      for (const int k : producers)
        for (const std::uint32_t b : bytes)
          for (const double part : gaps) {
            const double drain = k * static_cast<double>(b) / (options_.expected_gb_s * 1e3);
            // What every SM did tells how groups share: a few sizes of burst are enough for that.
            const bool of_each = per_sm && 4 * k >= node_.sms && b % 16384 == 0 && b != 49152;
            add("window",
                window_run(flows, mechanism, k, t, b, chunk, part * drain, options_.expected_gb_s),
                of_each);
          }
  }

  void isolated(const std::vector<Flow>& flows, Mechanism mechanism, std::vector<int> threads,
                const std::vector<int>& producers, std::vector<std::uint32_t> bytes,
                std::uint32_t chunk) {
    for (const int t : threads)
      for (const int k : producers)
        for (const std::uint32_t b : bytes)
          add("isolated", isolated_run(flows, mechanism, k, t, b, chunk), false,
              options_.depth == Depth::kFull ? launches_of(k) : 1);
  }

  void add(std::string experiment, BurstRun run, bool per_sm = false, int launches = 1) {
    stages_.back().runs.push_back({std::move(experiment), std::move(run), per_sm, launches});
  }

  std::vector<Stage> take() { return std::move(stages_); }

 private:
  const ProbeNode& node_;
  PlanOptions options_;
  std::vector<Stage> stages_;
};

std::vector<std::uint32_t> kib(std::initializer_list<double> sizes) {
  std::vector<std::uint32_t> out;
  for (const double size : sizes) out.push_back(static_cast<std::uint32_t>(size * 1024));
  return out;
}

}  // namespace

std::vector<Flow> one_way(int from, int to, std::vector<int> sms) {
  return {Flow{from, {to}, std::move(sms)}};
}

std::vector<Flow> both_ways() { return {Flow{0, {1}, {}}, Flow{1, {0}, {}}}; }

std::vector<Flow> all_to_all(int gpus) {
  std::vector<Flow> flows;
  for (int from = 0; from < gpus; ++from) {
    Flow flow{from, {}, {}};
    for (int step = 1; step < gpus; ++step) flow.targets.push_back((from + step) % gpus);
    flows.push_back(flow);
  }
  return flows;
}

std::vector<Flow> all_to_one(int gpus, int to) {
  std::vector<Flow> flows;
  for (int from = 0; from < gpus; ++from)
    if (from != to) flows.push_back({from, {to}, {}});
  return flows;
}

namespace {

BurstRun burst_run(RunKind kind, std::vector<Flow> flows, Mechanism mechanism, int producers,
                   int threads, std::uint32_t bytes, std::uint32_t chunk) {
  BurstRun run;
  run.kind = kind;
  run.mechanism = mechanism;
  run.flows = std::move(flows);
  run.producers = producers;
  run.threads = threads;
  run.bytes = bytes;
  run.chunk = mechanism == Mechanism::kTmaBulk ? chunk : 0;
  return run;
}

}  // namespace

BurstRun window_run(std::vector<Flow> flows, Mechanism mechanism, int producers, int threads,
                    std::uint32_t bytes, std::uint32_t chunk, double gap_us, double expected_gb_s) {
  BurstRun run =
      burst_run(RunKind::kWindow, std::move(flows), mechanism, producers, threads, bytes, chunk);
  run.gap_us = gap_us;
  const double period =
      std::max(gap_us + 0.4, producers * static_cast<double>(bytes) / (expected_gb_s * 1e3));
  run.window_us = std::clamp(96 * period, 1500.0, 6000.0);
  run.warm_us = std::max(200.0, 10 * period);
  return run;
}

BurstRun isolated_run(std::vector<Flow> flows, Mechanism mechanism, int producers, int threads,
                      std::uint32_t bytes, std::uint32_t chunk) {
  BurstRun run =
      burst_run(RunKind::kAligned, std::move(flows), mechanism, producers, threads, bytes, chunk);
  run.gap_us = 2;
  run.rounds = kRounds;
  run.drain_each_round = true;
  return run;
}

namespace {

/// A simulated node: fewer points, since a run costs a second of arithmetic and not a millisecond.
std::vector<Stage> simulated_plan(const ProbeNode& node, const PlanOptions& options) {
  const int all = node.sms;
  Planner plan(node, options);
  const auto few = producer_counts(node, {16, all / 4, all / 2, all});
  const std::vector<double> gaps{0.0, 0.5, 0.9, 1.2};
  plan.stage("bursts with a gap");
  plan.windows(one_way(), Mechanism::kStoreV4, {kStoreThreads}, few, kib({8, 16, 32, 64}), 0, gaps,
               true);
  plan.stage("isolated bursts");
  plan.isolated(one_way(), Mechanism::kStoreV4, {kStoreThreads},
                producer_counts(node, {1, 16, all / 4, all / 2, all}),
                kib({0.5, 4, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128}), 0);
  plan.stage("both directions");
  plan.windows(both_ways(), Mechanism::kStoreV4, {kStoreThreads}, {all}, kib({16, 64}), 0, gaps);
  return plan.take();
}

}  // namespace

std::vector<Stage> calibration_plan(const ProbeNode& node, const PlanOptions& options) {
  if (node.simulated) return simulated_plan(node, options);
  const bool full = options.depth == Depth::kFull;
  const int all = node.sms;
  const Mechanism v4 = Mechanism::kStoreV4;
  const Mechanism bulk = Mechanism::kTmaBulk;
  Planner plan(node, options);
  const auto remote = one_way();
  const auto local = one_way(0, 0);
  const auto few = producer_counts(node, {all / 4, all / 2, all});
  const auto many = producer_counts(node, {4, 8, 16, 24, all / 4, 48, all / 2, 3 * all / 4, all});
  const auto sizes = kib({4, 8, 16, 24, 32, 48, 64});
  const auto long_sizes =
      full ? kib({0.5, 1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 40, 48, 64, 96, 128})
           : kib({0.5, 4, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128});

  plan.stage("bursts with a gap");
  plan.windows(remote, v4, {kStoreThreads}, full ? many : few, full ? sizes : kib({8, 16, 32, 64}),
               0, kGaps, true);
  plan.stage("isolated bursts");
  plan.isolated(
      remote, v4, {kStoreThreads},
      producer_counts(node, full ? std::vector<int>{1, 4, 8, 16, all / 4, all / 2, 3 * all / 4, all}
                                 : std::vector<int>{1, 16, all / 4, all / 2, all}),
      long_sizes, 0);
  plan.stage("both directions");
  if (full) {
    plan.windows(both_ways(), v4, {kStoreThreads}, few, kib({8, 16, 32, 64}), 0, kGaps);
    plan.isolated(both_ways(), v4, {kStoreThreads}, few, kib({16, 24, 32, 64, 128}), 0);
  } else {
    plan.windows(both_ways(), v4, {kStoreThreads}, {all}, kib({16, 32, 64}), 0, kFewGaps);
  }
  plan.stage("TMA bulk stores");
  for (const std::uint32_t chunk : full ? kib({0.5, 2, 4, 8, 16}) : kib({8})) {
    const bool main_chunk = chunk == 8192;
    if (main_chunk) {
      plan.windows(remote, bulk, {kBulkThreads}, full ? many : few, kib({8, 16, 32, 64}), chunk,
                   kGaps);
      plan.isolated(remote, bulk, {kBulkThreads},
                    producer_counts(node, {1, 16, all / 4, all / 2, all}),
                    kib({8, 16, 24, 32, 48, 64, 96, 128}), chunk);
    } else {
      plan.windows(remote, bulk, {kBulkThreads}, few, kib({16, 32, 64}), chunk, kFewGaps);
      plan.isolated(remote, bulk, {kBulkThreads}, {1, all}, kib({16, 32, 64, 128}), chunk);
    }
  }
  plan.stage("local controls");
  plan.isolated(local, v4, {kStoreThreads}, {1, all}, long_sizes, 0);
  plan.isolated(local, bulk, {kBulkThreads}, {1, all}, kib({8, 16, 32, 64}), 8192);
  plan.windows(local, v4, {kStoreThreads}, few, kib({8, 32}), 0, kFewGaps);
  if (full) plan.windows(local, bulk, {kBulkThreads}, {all}, kib({8, 32}), 8192, kFewGaps);

  plan.stage("thread counts and store widths");
  for (const int threads : full ? std::vector<int>{64, 128, 512, 1024} : std::vector<int>{1024}) {
    const bool deep = full && (threads == 128 || threads == 1024);
    plan.windows(remote, v4, {threads}, deep ? few : std::vector<int>{all}, kib({8, 16, 32, 64}), 0,
                 kFewGaps);
    plan.isolated(remote, v4, {threads}, producer_counts(node, {1, 16, all / 4, all / 2, all}),
                  deep ? long_sizes : kib({4, 8, 16, 24, 32, 64, 128}), 0);
    if (full) plan.isolated(local, v4, {threads}, {1, all}, kib({4, 16, 32, 64}), 0);
  }
  if (full)
    for (const Mechanism narrow : {Mechanism::kStoreV1, Mechanism::kStoreV2}) {
      plan.windows(remote, narrow, {kStoreThreads}, few, kib({8, 16, 32}), 0, kFewGaps);
      plan.isolated(remote, narrow, {kStoreThreads}, producer_counts(node, {1, all / 4, all}),
                    kib({2, 4, 8, 16, 24, 32, 64}), 0);
      plan.isolated(local, narrow, {kStoreThreads}, {1, all}, kib({4, 16, 32}), 0);
    }

  plan.stage("aligned and free-running bursts");
  for (const int k : full ? few : std::vector<int>{all})
    for (const std::uint32_t bytes : kib({16, 32, 64, 128})) {
      for (const double gap :
           full ? std::vector<double>{1, 3, 6, 12, 20, 40} : std::vector<double>{2, 20}) {
        BurstRun run = isolated_run(remote, v4, k, kStoreThreads, bytes, 0);
        run.drain_each_round = false;
        run.gap_us = gap;
        plan.add("aligned", run);
        run.free_running = true;
        plan.add("free", run);
      }
    }
  for (const Mechanism mechanism : {v4, bulk})
    for (const int threads :
         mechanism == bulk ? std::vector<int>{kBulkThreads} : std::vector<int>{128, 256, 512, 1024})
      for (const int k : {1, all})
        for (const auto& flows : {local, remote}) {
          BurstRun run = isolated_run(flows, mechanism, k, threads, 65536, 8192);
          run.drain_each_round = false;
          run.gap_us = 60;
          run.shared_load = true;
          plan.add("shared_load", run);
        }
  return plan.take();
}

std::vector<Stage> validation_plan(const ProbeNode& node, int windowed, int isolated,
                                   std::uint64_t seed, double expected_gb_s) {
  std::mt19937_64 random(seed);
  // Not std::uniform_…_distribution: its draws differ between standard libraries.
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1.0p-53; };
  const auto between = [&](double low, double high) { return low + (high - low) * uniform(); };
  const auto bytes_between = [&](double low, double high) {
    return static_cast<std::uint32_t>(between(low, high) / 256) * 256;
  };
  std::vector<Stage> stages{{"unseen points", {}}};
  const auto add = [&](const char* experiment, BurstRun run, bool per_sm) {
    stages.back().runs.push_back({experiment, std::move(run), per_sm, 1});
  };
  const int low_k = std::min(4, node.sms);
  for (int i = 0; i < windowed; ++i) {
    const int kind = i % 10;  // 7 of 10 store 16 bytes one way, 1 both ways, 2 are bulk stores
    const int k = i % 3 == 0 ? node.sms : static_cast<int>(between(low_k, node.sms + 0.999));
    const std::uint32_t bytes = bytes_between(4096, 65536);
    const double drain = k * static_cast<double>(bytes) / (expected_gb_s * 1e3);
    const double gap = uniform() < 0.15 ? 0.0 : between(0, 1.8) * drain;
    const Mechanism mechanism = kind >= 8 ? Mechanism::kTmaBulk : Mechanism::kStoreV4;
    add("window",
        window_run(kind == 7 ? both_ways() : one_way(), mechanism, k, threads_of(mechanism), bytes,
                   8192, gap, expected_gb_s),
        kind < 7);
  }
  for (int i = 0; i < isolated; ++i) {
    const int k = i % 3 == 0 ? node.sms : static_cast<int>(between(16, node.sms + 0.999));
    const Mechanism mechanism = i % 6 == 5 ? Mechanism::kTmaBulk : Mechanism::kStoreV4;
    add("isolated",
        isolated_run(one_way(), mechanism, k, threads_of(mechanism), bytes_between(26000, 131072),
                     8192),
        false);
  }
  return stages;
}

}  // namespace xstage::probe
