#include "xstage/sim/fused_moe.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace xstage::sim {

namespace {

// From the last product of a row's Linear-1 until other SMs begin with its Linear-2: SwiGLU, a bulk
// store and its completion, a counter, a look at it. With these two a launch with a lead of one
// row, in which everything waits for that, takes 0.97 times the simulated time in the median.
constexpr double kSignalUs = 2;
// A tile is claimed when three steps of the one before are left to fetch, and three more are in
// flight: so many of 128 values before its end.
constexpr double kClaimSteps = 6;
// Tiles differ by what the caches hold; without a spread small leads stay in a step that no real
// launch keeps.
constexpr double kMathSpread = 0.1;

/// (token, expert) pairs whose results cross the link out of a rank or into it: the most of any.
double most_remote_pairs(const MoeTraffic& traffic) {
  const auto ranks = static_cast<std::size_t>(traffic.ranks);
  std::vector<double> out(ranks), in(ranks);
  const int local = traffic.experts_local();
  for (int expert = 0; expert < traffic.experts; ++expert)
    for (int source = 0; source < traffic.ranks; ++source) {
      if (source == expert / local) continue;
      out[static_cast<std::size_t>(expert / local)] += traffic.at(expert, source);
      in[static_cast<std::size_t>(source)] += traffic.at(expert, source);
    }
  return std::max(*std::max_element(out.begin(), out.end()),
                  *std::max_element(in.begin(), in.end()));
}

}  // namespace

std::vector<plan::DispatchLoad> dispatch_loads(const MoeTraffic& traffic, const MoeLayerSpec& layer,
                                               double link_rate) {
  const auto hidden = static_cast<double>(layer.hidden);
  // A value of one byte, and a scale of four for 128 of them.
  const double wire_bytes = hidden * (1 + 4.0 / 128);
  const int local = traffic.experts_local();
  std::vector<plan::DispatchLoad> loads;
  for (int rank = 0; rank < traffic.ranks; ++rank) {
    double out = 0, in = 0, here = 0, pairs = 0;
    for (int other = 0; other < traffic.ranks; ++other) {
      const double comes = traffic.distinct_at(rank, other, layer.tokens);
      here += comes;
      if (other == rank) continue;
      in += comes;
      out += traffic.distinct_at(other, rank, layer.tokens);
    }
    for (int e = rank * local; e < (rank + 1) * local; ++e)
      for (int source = 0; source < traffic.ranks; ++source) pairs += traffic.at(e, source);
    loads.push_back({std::max(out, in) * wire_bytes / link_rate,
                     static_cast<double>(layer.tokens) * hidden * 1e-6, here * hidden * 1e-6,
                     pairs * hidden * 1e-6});
  }
  return loads;
}

Result<FusedMoe> set_up_fused_moe(const model::Profile& profile, const plan::FusedTimes& times,
                                  const MoeLayerSpec& layer, const MoeTraffic& traffic) {
  FusedMoe out;
  out.times = plan::times_of(times, layer.name, layer.hidden, layer.intermediate);
  MoeOptions options;
  options.store.mechanism = model::Mechanism::kTmaBulk;
  options.block_m = kFusedBlockM;
  options.block_n = kFusedBlockN;
  options.claimed = true;
  auto setup = set_up_moe(profile, layer, traffic, options);
  if (!setup) return setup.error();
  out.setup = std::move(setup).value();

  // Tiles as long as the products take alone, on the busiest rank.
  const auto rows = static_cast<double>(std::max<std::int64_t>(out.setup.most_rows, 1));
  double experts = 0, most_of_expert = 0, all = 0;
  for (const auto& local : out.setup.local_tokens) {
    double used = 0;
    for (const std::uint32_t count : local) {
      used += count > 0 ? 1 : 0;
      const auto of_expert = static_cast<double>(schedule::rows_of(count, kFusedBlockM));
      most_of_expert = std::max(most_of_expert, of_expert);
      all += of_expert;
    }
    experts = std::max(experts, used);
  }
  if (all > 0) out.unevenness = most_of_expert * traffic.experts / all;
  MoeKernel& k = out.setup.kernel;
  const auto tile = [&](double us, std::int32_t tiles) {
    return us * out.setup.workers / (rows * tiles);
  };
  const plan::FusedProducts &first = out.times.times.linear1, &second = out.times.times.linear2;
  k.linear1_memory_us = tile(first.expert_us * experts, k.tiling.n1);
  k.linear2_memory_us = tile(second.expert_us * experts, k.tiling.n2);
  k.linear1_us = k.linear1_memory_us + tile(first.row_us * rows, k.tiling.n1);
  k.linear2_us = k.linear2_memory_us + tile(second.row_us * rows, k.tiling.n2);
  k.fixed_us = 0;  // part of the measured products
  k.signal_us = kSignalUs;
  k.math_spread = kMathSpread;
  const auto claim = [](double tile_us, std::int64_t depth) {
    return tile_us * std::min(1.0, kClaimSteps * 128 / static_cast<double>(depth));
  };
  k.claim_first_us = claim(k.linear1_us, layer.hidden);
  k.claim_second_us = claim(k.linear2_us, layer.intermediate);
  out.setup.times = {k.linear1_us, k.linear2_us, out.times.source, !out.times.measured};

  const double link_rate = out.setup.store.fabric[0].drain_rate;
  const auto hidden = static_cast<double>(layer.hidden);
  out.link_us = most_remote_pairs(traffic) * hidden * 2 / link_rate;

  // All tokens are there before the first tile: dispatch is part of the start.
  k.token_bytes = 0;
  k.start_us = 0;
  for (const plan::DispatchLoad& load : dispatch_loads(traffic, layer, link_rate)) {
    k.start_us = std::max(k.start_us, times.start.at(load));
    out.landed_us = std::max(out.landed_us, times.start.landed_us(load));
  }
  k.slot_sum_us = times.slot_sum.at(static_cast<double>(layer.topk + 1) *
                                    static_cast<double>(layer.tokens) * hidden * 2e-6);
  return out;
}

double simulated_us(const FusedMoe& moe, const schedule::MoeSchedule& schedule,
                    std::uint64_t seed) {
  return simulate_moe(moe.setup, schedule, seed).time_us;
}

MoeCandidate predict(const FusedMoe& moe, const schedule::MoeSchedule& schedule,
                     std::uint64_t seed) {
  const MoeResult simulated = simulate_moe(moe.setup, schedule, seed);
  const bool wave = schedule.kind == schedule::MoeScheduleKind::kWave;
  MoeCandidate out{schedule,
                   moe.times.times.correction(wave ? 0 : schedule.lead)
                       .at({simulated.time_us, moe.link_us, moe.unevenness}),
                   0, 0};
  for (const MoeRankResult& rank : simulated.ranks) {
    out.stall_us += rank.stall_us / static_cast<double>(simulated.ranks.size());
    out.wait_us += rank.wait_linear1_us / static_cast<double>(simulated.ranks.size());
  }
  return out;
}

std::vector<schedule::MoeSchedule> fused_candidates(const FusedMoe& moe) {
  const std::int64_t cover = schedule::covering_lead(moe.setup.kernel.tiling, moe.setup.workers);
  std::vector<schedule::MoeSchedule> out{wave_schedule(moe.setup)};
  // A lead that was measured, where it comes near enough: tiles of Linear-1 take longer than those
  // of Linear-2, so that half of the covering lead already waits little.
  for (const std::int64_t lead :
       {cover <= 32 ? std::int64_t{16} : cover, std::int64_t{32}, std::int64_t{64}})
    if (2 * lead >= cover && (out.size() == 1 || lead > out.back().lead))
      out.push_back(schedule::MoeSchedule::interleaved(lead));
  return out;
}

MoeChoice choose_fused_schedule(const FusedMoe& moe, std::uint64_t seed, double spread) {
  MoeChoice choice;
  for (const schedule::MoeSchedule& s : fused_candidates(moe)) {
    choice.candidates.push_back(predict(moe, s, seed));
    if (choice.candidates.back().time_us < choice.candidates[choice.best].time_us)
      choice.best = choice.candidates.size() - 1;
  }
  std::string leads;
  for (std::size_t i = 1; i < choice.candidates.size(); ++i)
    leads += fmt::format("{}lead {} {:.0f} us", i > 1 ? ", " : "",
                         choice.candidates[i].schedule.lead, choice.candidates[i].time_us);
  const MoeCandidate& wave = choice.candidates.front();
  const MoeCandidate& fastest = choice.candidates[choice.best];
  if (choice.best != 0 && wave.time_us <= fastest.time_us * (1 + spread)) choice.best = 0;
  choice.reason = choice.best == 0
                      ? fmt::format("expert wave: {:.0f} us predicted; {}", wave.time_us, leads)
                      : fmt::format("lead {}: predicted {}; expert wave {:.0f} us",
                                    fastest.schedule.lead, leads, wave.time_us);
  return choice;
}

}  // namespace xstage::sim
