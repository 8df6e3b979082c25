#include "xstage/sim/moe_layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace xstage::sim {
namespace {

// Measured on two H200 (data/h200x2): round trip of a flag without payload, half of it one way.
constexpr double kFlagUs = 1.15;
constexpr double kRoundTripUs = 2.3;
constexpr double kFixedUs = 0.09;         // loop of a persistent kernel, a tile
constexpr double kHbmBytesPerUs = 4.3e6;  // copy
// Assumed: a row's last Linear-1 tile is visible to other SMs after a release and an acquire in L2;
// counts are exchanged by two barriers across GPUs.
constexpr double kSignalUs = 0.7;
constexpr double kStartUs = 6;

/// Share of the (token, expert) pairs of a source at a receiver that bring a token there for the
/// first time, and so the bytes of `kOncePerRank`.
double first_time_share(const MoeTraffic& traffic, std::int64_t tokens) {
  double pairs = 0, firsts = 0;
  const int local = traffic.experts_local();
  for (int receiver = 0; receiver < traffic.ranks; ++receiver)
    for (int source = 0; source < traffic.ranks; ++source) {
      if (source == receiver || tokens == 0) continue;
      for (int e = 0; e < local; ++e) pairs += traffic.at(receiver * local + e, source);
      firsts += traffic.distinct_at(receiver, source, tokens);
    }
  return pairs > 0 ? firsts / pairs : 1;
}

}  // namespace

double MoeTraffic::distinct_at(int receiver, int source, std::int64_t of) const {
  if (!distinct.empty())
    return distinct[static_cast<std::size_t>(receiver) * static_cast<std::size_t>(ranks) +
                    static_cast<std::size_t>(source)];
  if (of <= 0) return 0;
  double unseen = 1;
  for (int e = receiver * experts_local(); e < (receiver + 1) * experts_local(); ++e)
    unseen *= 1 - std::min(1.0, at(e, source) / static_cast<double>(of));
  return static_cast<double>(of) * (1 - unseen);
}

Result<MoeSetup> set_up_moe(const model::Profile& profile, const MoeLayerSpec& layer,
                            const MoeTraffic& traffic, const MoeOptions& options) {
  MoeSetup out;
  StoreOptions store_options = options.store;
  store_options.both_ways = traffic.ranks > 1;
  auto store = store_model(profile, store_options);
  if (!store) return store.error();
  out.store = std::move(store).value();
  out.assumed = out.store.notes;
  out.traffic = traffic;
  out.workers = static_cast<std::int32_t>(out.store.order.size());
  MoeKernel& k = out.kernel;
  k.tiling =
      schedule::moe_tiling(layer.hidden, layer.intermediate, options.block_m, options.block_n);
  if (!k.tiling.valid())
    return bad_input("the layer has more tiles a row than a schedule can hold", "tiles a row",
                     fmt::format("{} and {}", k.tiling.n1, k.tiling.n2), "1 to 32767 each");
  k.claimed = options.claimed;
  k.buffers = options.buffers;

  std::int64_t remote = 0;
  const int local = traffic.experts_local();
  for (int rank = 0; rank < traffic.ranks; ++rank) {
    std::vector<std::uint32_t> tokens;
    std::int64_t rows = 0;
    for (int e = 0; e < local; ++e) {
      std::int64_t sum = 0;
      for (int source = 0; source < traffic.ranks; ++source) {
        const std::int64_t count = traffic.at(rank * local + e, source);
        sum += count;
        if (source != rank) remote += count;
      }
      tokens.push_back(static_cast<std::uint32_t>(sum));
      out.pairs += sum;
      rows += schedule::rows_of(tokens.back(), options.block_m);
    }
    out.most_rows = std::max(out.most_rows, rows);
    out.local_tokens.push_back(std::move(tokens));
  }
  if (out.pairs > 0)
    out.remote_fraction = static_cast<double>(remote) / static_cast<double>(out.pairs);

  out.times = plan::tile_times(
      {layer.name, layer.hidden, layer.intermediate, layer.weight_bytes, layer.activation_bytes},
      traffic.experts, traffic.ranks, out.most_rows, k.tiling, out.workers);
  if (options.linear1_us || options.linear2_us) {
    out.times.linear1_us = options.linear1_us.value_or(out.times.linear1_us);
    out.times.linear2_us = options.linear2_us.value_or(out.times.linear2_us);
    out.times.source = "tile times as given";
    out.times.assumed = false;
  }
  if (out.times.assumed) out.assumed.push_back("tile times: " + out.times.source);
  k.linear1_us = out.times.linear1_us;
  k.linear2_us = out.times.linear2_us;
  k.fixed_us = kFixedUs;
  k.signal_us = kSignalUs;
  k.start_us = traffic.ranks > 1 ? kStartUs : 0;
  k.pull_us = kRoundTripUs;
  k.flag_us = kFlagUs;
  out.assumed.push_back(fmt::format(
      "a row's Linear-1 is seen by other SMs after {} us, tokens can be pulled after {} us",
      kSignalUs, kStartUs));

  const bool bulk = out.store.mechanism->mechanism == model::Mechanism::kTmaBulk;
  k.staging = options.staging >= 0 ? options.staging : (bulk ? 1 : 0);
  k.residual = bulk ? 0 : out.store.residual;
  k.piece_bytes = 2.0 * std::min<double>(options.block_n, static_cast<double>(layer.hidden));
  out.tile_bytes = k.piece_bytes * options.block_m;
  for (int tokens = 0; tokens <= options.block_m; ++tokens)
    k.issue_us.push_back(out.store.issue_us(tokens * k.piece_bytes));
  if (bulk && out.store.mechanism->chunk_bytes > 0 &&
      out.store.mechanism->chunk_bytes != k.piece_bytes)
    out.assumed.push_back(fmt::format("bulk stores of {:.0f} bytes issue like those of {} bytes",
                                      k.piece_bytes, out.store.mechanism->chunk_bytes));

  const double scales =
      layer.activation_bytes == 1 ? static_cast<double>(layer.hidden) / 128 * 4 : 0;
  k.token_bytes = static_cast<double>(layer.hidden) * layer.activation_bytes + scales;
  if (traffic.ranks > 2)
    out.assumed.push_back("no limit on what one rank receives from several others at once");
  if (traffic.ranks > 1) {
    if (options.dispatch == Dispatch::kOncePerRank)
      k.token_bytes *= first_time_share(traffic, layer.tokens);
    out.assumed.push_back("reads by peers and stores share a busy link half and half");
  } else {
    k.token_bytes = 0;
  }
  k.slot_sum_us = static_cast<double>(layer.topk + 1) * static_cast<double>(layer.tokens) *
                  static_cast<double>(layer.hidden) * 2 / kHbmBytesPerUs;
  return out;
}

schedule::MoeSchedule wave_schedule(const MoeSetup& setup) {
  return schedule::MoeSchedule::wave(schedule::wave_group(setup.pairs, setup.traffic.experts,
                                                          setup.traffic.experts_local(),
                                                          setup.kernel.tiling, setup.workers));
}

std::vector<std::int64_t> candidate_leads(const MoeSetup& setup) {
  std::vector<std::int64_t> leads;
  const std::int64_t cover = schedule::covering_lead(setup.kernel.tiling, setup.workers);
  for (std::int64_t lead = cover; lead < setup.most_rows && leads.size() < 5; lead *= 2)
    leads.push_back(lead);
  if (leads.empty()) leads.push_back(std::max<std::int64_t>(1, std::min(cover, setup.most_rows)));
  return leads;
}

MoeResult simulate_moe(const MoeSetup& setup, const schedule::MoeSchedule& schedule,
                       std::uint64_t seed, const TimelineOptions& timeline) {
  MoeKernel kernel = setup.kernel;
  kernel.schedule = schedule;
  return simulate_moe(setup.store.fabric, setup.traffic, kernel, seed, timeline);
}

Result<MoeChoice> choose_moe_schedule(const MoeSetup& setup, std::uint64_t seed, double spread) {
  MoeChoice choice;
  std::vector<schedule::MoeSchedule> schedules{wave_schedule(setup)};
  for (const std::int64_t lead : candidate_leads(setup))
    schedules.push_back(schedule::MoeSchedule::interleaved(lead));
  for (const schedule::MoeSchedule& s : schedules) {
    const MoeResult r = simulate_moe(setup, s, seed);
    if (r.deadlock)
      return Error{ErrorKind::kCheckFailed, "the schedule deadlocks: " + *r.deadlock, {}, {}, {}};
    MoeCandidate candidate{s, r.time_us, 0, 0};
    for (const MoeRankResult& rank : r.ranks) {
      candidate.stall_us += rank.stall_us / static_cast<double>(r.ranks.size());
      candidate.wait_us += rank.wait_linear1_us / static_cast<double>(r.ranks.size());
    }
    choice.candidates.push_back(candidate);
    if (r.time_us < choice.candidates[choice.best].time_us)
      choice.best = choice.candidates.size() - 1;
  }
  const MoeCandidate& wave = choice.candidates[0];
  const MoeCandidate& fastest = choice.candidates[choice.best];
  const auto is_wave = choice.best == 0;
  if (!is_wave && wave.time_us <= fastest.time_us * (1 + spread)) {
    choice.reason = fmt::format(
        "expert wave: {:.0f} us, within {:.1f} % of the fastest lead ({}: {:.0f} us); traffic "
        "stalls an "
        "SM for {:.0f} us only",
        wave.time_us, spread * 100, fastest.schedule.lead, fastest.time_us, wave.stall_us);
    choice.best = 0;
  } else if (is_wave) {
    const auto next = std::min_element(
        choice.candidates.begin() + 1, choice.candidates.end(),
        [](const MoeCandidate& a, const MoeCandidate& b) { return a.time_us < b.time_us; });
    choice.reason = fmt::format("expert wave: {:.0f} us against {:.0f} us for the best lead ({})",
                                wave.time_us, next->time_us, next->schedule.lead);
  } else {
    choice.reason = fmt::format(
        "interleaved with a lead of {} rows: {:.0f} us against {:.0f} us for the expert wave, "
        "where an "
        "SM stalls for {:.0f} us and waits {:.0f} us for Linear-1, in place of {:.0f} and {:.0f}",
        fastest.schedule.lead, fastest.time_us, wave.time_us, wave.stall_us, wave.wait_us,
        fastest.stall_us, fastest.wait_us);
  }
  return choice;
}

}  // namespace xstage::sim
