#include "cuda/probe/findings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>

#include "xstage/model/fit.hpp"
#include "xstage/model/samples.hpp"
#include "xstage/model/work_split.hpp"

namespace xstage::probe {
namespace {

using model::Mechanism;
using nlohmann::json;

constexpr int kThreads = 256;
constexpr Mechanism kStore = Mechanism::kStoreV4;

json error_json(const Error& error) { return {{"error", error.message()}}; }

/// Burst for burst: issue and what came after it, µs, without the first quarter of the rounds.
struct AlignedMeans {
  double issue = 0, after = 0;
  double odd_issue = 0;  ///< of odd rounds, where rounds come in pairs; `issue` then of even ones
};

Result<AlignedMeans> aligned_means(Prober& prober, const BurstRun& run) {
  Result<std::vector<FlowRecords>> records = prober.run(run);
  if (!records) return records.error();
  const FlowRecords& flow = records->front();
  const double us = 1e-3 / flow.clock_ghz;
  const bool pairs = run.pair_spacing_us > 0;
  AlignedMeans out;
  double even = 0, odd = 0;
  for (std::size_t i = 0; i < flow.producers.size(); ++i)
    for (int round = run.rounds / 4 / 2 * 2; round < run.rounds; ++round) {
      const RoundRecord& one = flow.rounds[i * kMaxRounds + static_cast<std::size_t>(round)];
      if (pairs && (round & 1) != 0) {
        out.odd_issue += one.issue * us;
        ++odd;
      } else {
        out.issue += one.issue * us;
        out.after += one.after * us;
        ++even;
      }
    }
  out.issue /= even;
  out.after /= even;
  if (odd > 0) out.odd_issue /= odd;
  return out;
}

BurstRun isolated(int producers, std::uint32_t bytes, std::vector<int> sms = {}) {
  return isolated_run(one_way(0, 1, std::move(sms)), kStore, producers, kThreads, bytes, 0);
}

/// Total rate of a set of SMs that store without a gap, GB/s.
Result<double> saturated_rate(Prober& prober, int gpu, int peer, const std::vector<int>& sms,
                              int producers, std::uint32_t bytes) {
  const BurstRun run =
      window_run(one_way(gpu, peer, sms), kStore, producers, kThreads, bytes, 0, 0, 373);
  Result<std::vector<FlowRecords>> records = prober.run(run);
  if (!records) return records.error();
  const Sample s = summarise("window", run, {std::move(records).value()}).front();
  return s.producers * static_cast<double>(bytes) / (s.period_aggregate * 1e3);
}

std::vector<int> quarter_counts(int sms) { return {sms / 4, sms / 2, 3 * sms / 4, sms}; }

Result<FoundGroups> find_groups_once(Prober& prober, int gpu, int peer, double window_us) {
  const auto start = std::chrono::steady_clock::now();
  const int sms = prober.node().sms;
  FoundGroups found;
  found.gpu = gpu;
  std::vector<double> all;
  std::vector<std::vector<double>> without;
  for (int out = -1; out < sms; ++out) {
    std::vector<int> active;
    for (int sm = 0; sm < sms; ++sm)
      if (sm != out) active.push_back(sm);
    BurstRun run = window_run(one_way(gpu, peer, active), kStore, sms, kThreads, 16384, 0, 0, 373);
    run.window_us = out < 0 ? 2 * window_us : window_us;
    Result<std::vector<FlowRecords>> records = prober.run(run);
    if (!records) return records.error();
    std::vector<double> bursts_per_ms(static_cast<std::size_t>(sms), 0.0);
    for (const ProducerRecord& r : records->front().producers)
      if (r.bursts > 1)
        bursts_per_ms[r.smid] = (r.bursts - 1) * records->front().clock_ghz * 1e6 /
                                static_cast<double>(r.last_start - r.first_start);
    found.csv += fmt::format("{},{}", gpu, out);
    for (const double value : bursts_per_ms) found.csv += fmt::format(",{:.0f}", value * 2.25);
    found.csv += '\n';
    if (out < 0)
      all = std::move(bursts_per_ms);
    else
      without.push_back(std::move(bursts_per_ms));
  }
  Result<std::vector<std::vector<int>>> groups = model::groups_from_leave_one_out(all, without);
  if (!groups) return groups.error();
  found.groups = std::move(groups).value();
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return found;
}

}  // namespace

Result<FoundGroups> find_groups(Prober& prober, int gpu, int peer) {
  // A disturbed run shows as SMs that disagree about being mates; a longer window settles it.
  Result<FoundGroups> found = Error{};
  for (const double window_us : {1500.0, 3000.0, 6000.0}) {
    found = find_groups_once(prober, gpu, peer, window_us);
    if (!found && found.error().kind == ErrorKind::kTimeout) break;
    // SMs come in pairs: one without a mate was missed by the noise of a short window.
    const auto alone = [](const std::vector<int>& group) { return group.size() < 2; };
    if (found && std::none_of(found->groups.begin(), found->groups.end(), alone)) break;
  }
  return found;
}

json to_json(const FoundGroups& found) {
  std::map<std::size_t, int> sizes;
  for (const auto& group : found.groups) ++sizes[group.size()];
  json by_size = json::array();
  for (const auto& [size, count] : sizes) by_size.push_back({{"sms", size}, {"groups", count}});
  return {{"gpu", found.gpu},
          {"groups", found.groups},
          {"by_size", by_size},
          {"seconds", found.seconds}};
}

json capacity_estimates(Prober& prober, double rate_gb_s) {
  const double rate = rate_gb_s * 1e3;  // bytes/µs
  json rows = json::array();
  std::vector<int> counts = quarter_counts(prober.node().sms);
  counts.insert(counts.begin(), std::min(16, prober.node().sms));
  for (const int k : counts) {
    // The idle fence is that of a burst of one warp: nothing to drain but a round trip.
    const Result<AlignedMeans> idle = aligned_means(prober, isolated(k, 512));
    if (!idle) return error_json(idle.error());
    std::vector<double> by_burst, by_fence, early;
    for (const std::uint32_t bytes : {98304u, 131072u, 163840u}) {
      const double volume = k * static_cast<double>(bytes);
      const Result<AlignedMeans> burst = aligned_means(prober, isolated(k, bytes));
      if (!burst) return error_json(burst.error());
      const double drained_at = burst->issue + burst->after - idle->after;
      by_burst.push_back(volume - rate * burst->issue);
      by_fence.push_back(rate * (burst->after - idle->after));
      early.push_back(volume - rate * drained_at);
    }
    const auto mean = [](const std::vector<double>& v) {
      double sum = 0;
      for (const double x : v) sum += x;
      return sum / static_cast<double>(v.size());
    };
    // Recovery: a second burst that starts too early issues later by what was missing. So each
    // spacing tells the one at which the second burst would have been undisturbed.
    const std::uint32_t bytes = 98304;
    const double drain = k * static_cast<double>(bytes) / rate;
    std::vector<double> undisturbed, first_issue;
    for (const double part : {0.94, 0.955, 0.97, 0.985}) {
      BurstRun run = isolated(k, bytes);
      run.pair_spacing_us = part * drain;
      const Result<AlignedMeans> pair = aligned_means(prober, run);
      if (!pair) return error_json(pair.error());
      undisturbed.push_back(run.pair_spacing_us + pair->odd_issue - pair->issue);
      first_issue.push_back(pair->issue);
    }
    const double recovery_gap = mean(undisturbed) - mean(first_issue);
    rows.push_back({{"producers", k},
                    {"isolated_bytes", mean(by_burst)},
                    {"fence_bytes", mean(by_fence)},
                    {"recovery_bytes", rate * recovery_gap},
                    {"recovery_gap_us", recovery_gap},
                    {"undisturbed_spacing_us", mean(undisturbed)},
                    {"drain_us", drain},
                    {"drained_early_bytes", mean(early)},
                    {"idle_fence_us", idle->after}});
  }
  return {
      {"mechanism", "st_v4"},
      {"threads", kThreads},
      {"rows", rows},
      {"explanation",
       "isolated = V - R*mean(T_iss): what the X-Stage holds when the mean producer has issued. "
       "fence = R*(mean fence - idle fence): an SM's fence ends when its own stores are through, "
       "and "
       "SMs in small groups are through before the link is, so it misses drained_early = V - "
       "R*(mean "
       "instant at which an SM is through): isolated = fence + drained_early. drained_early is "
       "negative where few SMs store: under load the last store takes longer than the idle round "
       "trip that was taken off. recovery = R*(spacing at which a second burst is undisturbed - "
       "mean(T_iss)) waits for the whole drain, like isolated"}};
}

json by_sm_and_group(Prober& prober, const FoundGroups& found) {
  // Small and large groups of GPU 0, largest first.
  std::vector<std::vector<int>> groups = found.groups;
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  if (groups.size() < 2) return {{"error", "fewer than two groups of SMs were found"}};
  const std::vector<int>& large = groups.front();
  const std::vector<int>& small = groups.back();
  struct Set {
    std::string what;
    std::vector<int> sms;
    int groups;
  };
  std::vector<Set> sets;
  for (std::size_t n = 1; n <= large.size(); ++n)
    sets.push_back({fmt::format("{} of a group of {}", n, large.size()),
                    {large.begin(), large.begin() + static_cast<std::ptrdiff_t>(n)},
                    1});
  sets.push_back({fmt::format("a whole group of {}", small.size()), small, 1});
  for (const std::size_t many : {std::size_t{2}, std::size_t{4}, std::size_t{8}, groups.size()}) {
    if (many > groups.size()) continue;
    Set whole{fmt::format("{} whole groups", many), {}, static_cast<int>(many)};
    for (std::size_t g = 0; g < many; ++g)
      whole.sms.insert(whole.sms.end(), groups[g].begin(), groups[g].end());
    sets.push_back(std::move(whole));
  }
  for (std::size_t each = 1; each <= small.size(); ++each) {
    Set spread{fmt::format("{} of each group", each), {}, static_cast<int>(groups.size())};
    for (const auto& group : groups)
      spread.sms.insert(spread.sms.end(), group.begin(),
                        group.begin() + static_cast<std::ptrdiff_t>(each));
    sets.push_back(std::move(spread));
  }
  Set twelve{fmt::format("1 of each of {} groups", groups.size() / 2),
             {},
             static_cast<int>(groups.size() / 2)};
  for (std::size_t g = 0; g < groups.size() / 2; ++g) twelve.sms.push_back(groups[g].front());
  sets.push_back(std::move(twelve));

  json rows = json::array();
  double ss = 0, sg = 0, gg = 0, sq = 0, gq = 0;
  double group_alone = 0;
  for (const Set& set : sets) {
    const int n = static_cast<int>(set.sms.size());
    const Result<double> rate = saturated_rate(prober, 0, 1, set.sms, n, 65536);
    if (!rate) return error_json(rate.error());
    const std::uint32_t bytes = n < 24 ? 262144 : 131072;
    const Result<AlignedMeans> burst = aligned_means(prober, isolated(n, bytes, set.sms));
    const Result<AlignedMeans> one =
        aligned_means(prober, isolated(1, bytes, {set.sms.begin(), set.sms.begin() + 1}));
    if (!burst || !one) return error_json(burst ? one.error() : burst.error());
    if (set.groups == 1) group_alone = std::max(group_alone, *rate);
    json row{{"set", set.what},          {"sms", n},
             {"groups", set.groups},     {"rate_gb_per_s", *rate},
             {"issue_us", burst->issue}, {"capacity_bytes", nullptr}};
    // Without a stall the burst says nothing about capacity.
    if (burst->issue > 1.2 * one->issue) {
      const double capacity = n * static_cast<double>(bytes) - *rate * 1e3 * burst->issue;
      row["capacity_bytes"] = capacity;
      if (set.groups > 1) {
        ss += n * n;
        sg += n * set.groups;
        gg += set.groups * set.groups;
        sq += n * capacity;
        gq += set.groups * capacity;
      }
    }
    rows.push_back(std::move(row));
  }
  json out{{"gpu", 0},
           {"sets", rows},
           {"one_group_alone_gb_per_s", group_alone},
           {"sm_bytes", nullptr},
           {"group_bytes", nullptr}};
  const double determinant = ss * gg - sg * sg;
  if (determinant > 1e-6 * ss * gg) {
    out["sm_bytes"] = (sq * gg - gq * sg) / determinant;
    out["group_bytes"] = (gq * ss - sq * sg) / determinant;
  }
  return out;
}

json onset(Prober& prober, const model::Profile* profile) {
  constexpr double kFactor = 1.1;
  constexpr std::uint32_t kGrain = 256;
  json rows = json::array();
  for (const int k : quarter_counts(prober.node().sms)) {
    std::vector<double> found;
    // T_iss over T_iss0 on both sides of the onset: far from 1.1 there, the bisection is well
    // posed.
    double below = 0, above = std::numeric_limits<double>::infinity();
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::uint32_t low = 4096 / kGrain, high = 131072 / kGrain;
      double ratio_low = 0, ratio_high = 0;
      while (high - low > 1) {
        const std::uint32_t middle = (low + high) / 2;
        const Result<AlignedMeans> burst = aligned_means(prober, isolated(k, middle * kGrain));
        BurstRun alone = isolated(1, middle * kGrain);
        alone.rounds = kMaxRounds;  // one producer alone needs many bursts for a mean this sharp
        const Result<AlignedMeans> one = aligned_means(prober, alone);
        if (!burst || !one) return error_json(burst ? one.error() : burst.error());
        const double ratio = burst->issue / one->issue;
        const bool felt = ratio > kFactor;
        (felt ? high : low) = middle;
        (felt ? ratio_high : ratio_low) = ratio;
      }
      found.push_back(high * static_cast<double>(kGrain));
      below = std::max(below, ratio_low);
      above = std::min(above, ratio_high);
    }
    std::sort(found.begin(), found.end());
    json row{{"producers", k},
             {"bytes", found[1]},
             {"bytes_min", found[0]},
             {"bytes_max", found[2]},
             {"volume_bytes", found[1] * k},
             {"ratio_below", below},
             {"ratio_at", above},
             {"predicted_bytes", nullptr},
             {"error_fraction", nullptr}};
    if (profile != nullptr) {
      const auto exceeds = [&](std::uint32_t grains) {
        model::Workload work;
        work.producers = k;
        work.bytes = static_cast<std::int64_t>(grains) * kGrain;
        work.gap_us = 1000;
        work.mechanism = kStore;
        work.threads = kThreads;
        const Result<model::Prediction> p = model::predict(*profile, work);
        return p && p->isolated_issue_us && *p->isolated_issue_us > kFactor * p->isolated_issue0_us;
      };
      std::uint32_t low = 4096 / kGrain, high = 262144 / kGrain;
      if (exceeds(high)) {
        while (high - low > 1) (exceeds((low + high) / 2) ? high : low) = (low + high) / 2;
        row["predicted_bytes"] = high * kGrain;
        row["error_fraction"] = std::abs(high * static_cast<double>(kGrain) / found[1] - 1);
      }
    }
    rows.push_back(std::move(row));
  }
  return {{"what", "smallest B at which the mean aligned issue time exceeds 1.1 T_iss0"},
          {"mechanism", "st_v4"},
          {"threads", kThreads},
          {"rows", rows}};
}

json completion(Prober& prober) {
  json fences = json::array();
  for (const int k : {1, prober.node().sms})
    for (const bool remote : {false, true})
      for (const std::uint32_t bytes : {512u, 16384u, 65536u}) {
        BurstRun run = isolated(k, bytes);
        run.flows = one_way(0, remote ? 1 : 0);
        const Result<AlignedMeans> means = aligned_means(prober, run);
        if (!means) return error_json(means.error());
        fences.push_back({{"target", remote ? "remote" : "local"},
                          {"producers", k},
                          {"bytes", bytes},
                          {"issue_us", means->issue},
                          {"fence_us", means->after}});
      }
  json trips = json::array();
  for (const std::uint32_t bytes : {0u, 4096u, 65536u, 262144u}) {
    const Result<std::vector<double>> trip = prober.round_trip(0, 1, bytes);
    if (!trip) return error_json(trip.error());
    trips.push_back({{"payload_bytes", bytes},
                     {"median_us", (*trip)[trip->size() / 2]},
                     {"p05_us", (*trip)[trip->size() / 20]},
                     {"p95_us", (*trip)[trip->size() - 1 - trip->size() / 20]}});
  }
  return {{"fence", fences}, {"flag_round_trip", trips}};
}

json residue(const std::vector<Sample>& samples, double rate_gb_s) {
  json rows = json::array();
  // In a window without a gap: period − issue − what the loop costs when nothing is queued.
  for (const Sample& s : samples) {
    if (s.experiment != "window" || s.run.gap_us > 0 || s.target != "remote" ||
        s.direction != "uni" || s.run.bytes != 65536)
      continue;
    double loop = -1;
    for (const Sample& quiet : samples)
      if (quiet.experiment == "window" && quiet.run.mechanism == s.run.mechanism &&
          quiet.run.threads == s.run.threads && quiet.run.chunk == s.run.chunk &&
          quiet.producers == s.producers && quiet.target == "remote" && quiet.direction == "uni" &&
          quiet.period_aggregate < quiet.run.gap_us * 1.2 && quiet.period_aggregate > 0) {
        const double cost = quiet.period_aggregate - quiet.gap_us - quiet.issue.mean;
        if (loop < 0 || cost < loop) loop = cost;
      }
    if (loop < 0) loop = 0.1;
    const double wait = s.period_aggregate - s.issue.mean - loop;
    rows.push_back({{"by", "window without a gap"},
                    {"mechanism", model::name(s.run.mechanism)},
                    {"threads", s.run.threads},
                    {"chunk_bytes", s.run.chunk},
                    {"producers", s.producers},
                    {"wait_us", wait},
                    {"bytes", wait * rate_gb_s * 1e3 / s.producers}});
  }
  // Behind one aligned burst: until a shared load of every thread has returned, idle taken off.
  for (const Sample& s : samples) {
    if (s.experiment != "shared_load" || s.target != "remote" || s.producers < 2 ||
        s.run.mechanism == Mechanism::kTmaBulk)
      continue;
    for (const Sample& idle : samples)
      if (idle.experiment == "shared_load" && idle.target == "local" && idle.producers == 1 &&
          idle.run.mechanism == s.run.mechanism && idle.run.threads == s.run.threads)
        rows.push_back(
            {{"by", "shared load after an aligned burst"},
             {"mechanism", model::name(s.run.mechanism)},
             {"threads", s.run.threads},
             {"chunk_bytes", 0},
             {"producers", s.producers},
             {"wait_us", s.after.mean - idle.after.mean},
             {"bytes", (s.after.mean - idle.after.mean) * rate_gb_s * 1e3 / s.producers}});
  }
  return {{"rows", rows}};
}

json yardsticks(Prober& prober, double rate_gb_s) {
  json out{{"probe_gb_per_s", rate_gb_s}};
  for (const auto& [kind, key] : {std::pair{CopyKind::kCopyEngine, "copy_engine_gb_per_s"},
                                  std::pair{CopyKind::kCopyKernel, "copy_kernel_gb_per_s"}}) {
    const Result<double> rate = prober.copy(kind, 0, 1);
    out[key] = rate ? json(*rate) : json(nullptr);
    if (!rate) out["error"] = rate.error().message();
  }
  const auto difference = [&](const char* key) {
    return out[key].is_number() ? json(std::abs(rate_gb_s / out[key].get<double>() - 1))
                                : json(nullptr);
  };
  out["copy_engine_difference_fraction"] = difference("copy_engine_gb_per_s");
  out["copy_kernel_difference_fraction"] = difference("copy_kernel_gb_per_s");
  out["note"] =
      "R is the rate of stores; a plain copy kernel stores too and is what R is held against. The "
      "copy engine writes longer packets, so less of the link goes to headers: no kernel's stores "
      "reach its rate";
  return out;
}

json work_split(Prober& prober, const FoundGroups& found, const model::Profile* profile) {
  const int sms = prober.node().sms;
  constexpr std::uint32_t kBytes = 32768;
  const int per_sm = 64, tiles = per_sm * sms;
  // An SM's share of a saturated link: one over its group's size, made to sum up to all tiles.
  std::vector<double> weight(static_cast<std::size_t>(sms), 0);
  for (const auto& group : found.groups)
    for (const int sm : group)
      weight[static_cast<std::size_t>(sm)] =
          1.0 / (static_cast<double>(found.groups.size()) * static_cast<double>(group.size()));
  std::vector<int> shared;
  int given = 0;
  for (const double w : weight) {
    shared.push_back(static_cast<int>(w * tiles));
    given += shared.back();
  }
  for (std::size_t sm = 0; given < tiles; sm = (sm + 1) % shared.size(), ++given) ++shared[sm];

  std::map<std::size_t, int> sizes;
  for (const auto& group : found.groups) ++sizes[group.size()];
  std::vector<model::GroupClass> classes;
  for (const auto& [size, count] : sizes) classes.push_back({static_cast<int>(size), count});

  json rows = json::array();
  for (const double work : {0.0, 5.0, 8.0, 10.0, 11.0, 12.0, 15.0}) {
    json row{{"work_us", work}};
    std::optional<model::Prediction> predicted;
    if (profile != nullptr) {
      model::Workload load;
      load.producers = sms;
      load.bytes = kBytes;
      load.gap_us = work;
      load.mechanism = kStore;
      load.threads = kThreads;
      if (Result<model::Prediction> p = model::predict(*profile, load)) predicted = *p;
    }
    double equal_us = 0;
    for (const auto& [policy, counts] :
         {std::pair{"equal", std::vector<int>(static_cast<std::size_t>(sms), per_sm)},
          std::pair{"by_group", shared}, std::pair{"claimed", std::vector<int>{}}}) {
      std::vector<double> times;
      for (int repeat = 0; repeat < 5; ++repeat) {
        SplitRun run;
        run.bytes = kBytes;
        run.work_us = work;
        run.tiles = tiles;
        run.tiles_of_sm = counts;
        const Result<SplitResult> result = prober.split(run);
        if (!result) return error_json(result.error());
        times.push_back(result->drained_us);
      }
      std::sort(times.begin(), times.end());
      const double us = times[times.size() / 2];
      if (equal_us == 0) equal_us = us;
      row[policy] = {{"time_us", us}, {"gain", equal_us / us}};
    }
    if (predicted) {
      const model::WorkSplit split = model::work_split(
          classes, per_sm, kBytes, predicted->issue0_us + work, predicted->drain_gb_s);
      row["predicted"] = {{"equal_us", split.equal_us},
                          {"by_group_us", split.by_group_us},
                          {"claimed_us", split.claimed_us},
                          {"by_group_gain", split.by_group_gain()},
                          {"claimed_gain", split.claimed_gain()}};
    }
    rows.push_back(std::move(row));
  }
  return {{"bytes", kBytes}, {"tiles", tiles}, {"threads", kThreads}, {"rows", rows}};
}

json litmus(Prober& prober, std::int64_t rounds) {
  const auto text = [](LitmusSignal signal, bool bulk) {
    switch (signal) {
      case LitmusSignal::kRelease:
        return bulk ? "release at system scope behind the copies' completion"
                    : "release at system scope behind a barrier of the storing threads";
      case LitmusSignal::kRelaxed:
        return bulk ? "behind local completion alone, without release (wrong)"
                    : "behind the barrier, without release (wrong)";
      case LitmusSignal::kEarly: break;
    }
    return bulk ? "as soon as the copies are started, without release (wrong)"
                : "release by one storing thread, without the barrier (wrong)";
  };
  json rows = json::array();
  for (const LitmusSignal signal :
       {LitmusSignal::kRelease, LitmusSignal::kRelaxed, LitmusSignal::kEarly})
    for (const Mechanism mechanism : model::kMechanisms) {
      LitmusRun run;
      run.mechanism = mechanism;
      run.signal = signal;
      run.rounds = rounds;
      const bool right = signal == LitmusSignal::kRelease;
      // A long message takes longer to arrive, so that a signal sent too early overtakes it.
      run.payload_bytes = right ? 4096 : 32768;
      const Result<LitmusResult> result = prober.litmus(run);
      if (!result) return {{"rows", rows}, {"error", result.error().message()}};
      rows.push_back({{"mechanism", model::name(mechanism)},
                      {"signal", text(signal, mechanism == Mechanism::kTmaBulk)},
                      {"right", right},
                      {"payload_bytes", run.payload_bytes},
                      {"messages", result->messages},
                      {"stale_messages", result->stale_messages},
                      {"stale_words", result->stale_words},
                      {"seconds", result->seconds}});
    }
  return {{"signals", "sync::Arrivals over the policy of threads on a GPU"}, {"rows", rows}};
}

json group_errors(const std::vector<PerSm>& runs, const FoundGroups& found,
                  const model::Profile& profile) {
  std::map<int, std::size_t> size_of;
  for (const auto& group : found.groups)
    for (const int sm : group) size_of[sm] = group.size();
  struct Class {
    std::vector<double> errors;
    double predicted = 0, measured = 0;
  };
  std::map<std::size_t, Class> classes;
  for (const PerSm& one : runs) {
    if (one.run.producers != static_cast<int>(size_of.size()) || one.run.flows.size() > 1 ||
        one.run.mechanism != kStore || one.run.threads != kThreads)
      continue;
    model::Workload work;
    work.producers = one.run.producers;
    work.bytes = one.run.bytes;
    work.gap_us = one.run.gap_us;
    work.mechanism = kStore;
    work.threads = kThreads;
    const Result<model::Prediction> predicted = model::predict(profile, work);
    if (!predicted) continue;
    std::map<std::size_t, std::pair<double, double>> measured;  // issue sum, bursts
    const double us = 1e-3 / one.records.clock_ghz;
    for (const ProducerRecord& r : one.records.producers) {
      auto& [sum, bursts] = measured[size_of[static_cast<int>(r.smid)]];
      sum += static_cast<double>(r.issue_sum) * us;
      bursts += r.bursts;
    }
    for (const model::GroupPrediction& g : predicted->groups) {
      const auto at = measured.find(static_cast<std::size_t>(g.sms));
      if (at == measured.end() || at->second.second == 0) continue;
      const double mean = at->second.first / at->second.second;
      if (mean < 1.2 * predicted->issue0_us) continue;  // nothing stalls: no class differs
      Class& of = classes[at->first];
      of.errors.push_back(std::abs(g.issue_us / mean - 1));
      of.predicted += g.issue_us;
      of.measured += mean;
    }
  }
  json rows = json::array();
  for (const auto& [size, of] : classes) {
    const model::ErrorSummary summary = model::summarise(of.errors);
    rows.push_back({{"group_sms", size},
                    {"n", summary.points},
                    {"issue_fraction", {{"median", summary.median}, {"p95", summary.p95}}},
                    {"mean_issue_us",
                     {{"measured", of.measured / static_cast<double>(of.errors.size())},
                      {"predicted", of.predicted / static_cast<double>(of.errors.size())}}},
                    {"mean_issue_error_fraction", std::abs(of.predicted / of.measured - 1)}});
  }
  return {{"rows", rows}};
}

}  // namespace xstage::probe
