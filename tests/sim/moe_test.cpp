#include "xstage/sim/moe.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdlib>

namespace xstage::sim {
namespace {

using schedule::MoeSchedule;

EgressParameters node(int sms, double drain_rate = 368500, double queue = 22500) {
  EgressParameters p;
  p.drain_rate = drain_rate;
  p.sm_rate = 50700;
  p.queue_per_sm = queue;
  p.grain = 1000;
  for (int sm = 0; sm < sms; ++sm) {
    if (sm % 6 == 0) p.groups.emplace_back();
    p.groups.back().push_back(sm);
  }
  return p;
}

/// Every rank sends `tokens` tokens to every expert.
MoeTraffic even_traffic(int ranks, int experts, std::uint32_t tokens) {
  MoeTraffic t;
  t.ranks = ranks;
  t.experts = experts;
  t.tokens.assign(static_cast<std::size_t>(ranks * experts), tokens);
  return t;
}

MoeKernel kernel(std::int32_t n1, std::int32_t n2, MoeSchedule schedule) {
  MoeKernel k;
  k.tiling = {128, n1, n2};
  k.schedule = schedule;
  k.linear1_us = 8.86;
  k.linear2_us = 3.32;
  k.fixed_us = 0.09;
  k.signal_us = 0.7;
  k.issue_us.assign(129, 0.455);
  k.residual = 4096;
  k.flag_us = 1.15;
  return k;
}

double time_of(const MoeKernel& k, const MoeTraffic& t, int sms = 132, std::uint64_t seed = 1) {
  const MoeResult r = simulate_moe({node(sms)}, t, k, seed);
  EXPECT_FALSE(r.deadlock.has_value()) << *r.deadlock;
  return r.time_us;
}

TEST(SimulateMoe, OneRankTakesItsMathTime) {
  const MoeTraffic t = even_traffic(1, 11, 1152);  // 99 rows: 9 · 132 and 12 · 132 tiles
  MoeKernel k = kernel(12, 16, MoeSchedule::wave(11));
  k.signal_us = 0;
  const MoeResult r = simulate_moe({node(132)}, t, k, 1);
  EXPECT_EQ(r.ranks[0].rows, 99);
  EXPECT_EQ(r.ranks[0].remote_bytes, 0);
  EXPECT_NEAR(r.time_us, 9 * 8.95 + 12 * (3.41 + 0.455), 1e-6);
  EXPECT_NEAR(r.ranks[0].math_us, 9 * 8.95 + 12 * 3.41, 1e-6);
  EXPECT_EQ(r.ranks[0].stall_us, 0);
}

TEST(SimulateMoe, BytesAreThoseOfRemoteTokens) {
  const MoeTraffic t = even_traffic(2, 8, 300);
  for (const MoeSchedule& s : {MoeSchedule::wave(2), MoeSchedule::interleaved(3)}) {
    const MoeResult r = simulate_moe({node(20)}, t, kernel(4, 6, s), 1);
    for (const MoeRankResult& rank : r.ranks) {
      EXPECT_EQ(rank.rows, 4 * 5);
      EXPECT_EQ(rank.remote_bytes, 4 * 300 * 6 * 256);
      EXPECT_LE(rank.most_backlog, 20 * 22500.0);
      EXPECT_GE(rank.drained_us * 368500, rank.remote_bytes);
    }
  }
}

// A tile that is claimed before the one in front of it is done is late where that one waits, and
// with a small lead its row's Linear-2 tiles wait for it in turn.
TEST(SimulateMoe, ClaimsAheadCostSmallLeadsMost) {
  const MoeTraffic t = even_traffic(2, 64, 600);
  const auto slower_by = [&](const MoeSchedule& s) {
    MoeKernel k = kernel(8, 16, s);
    k.claimed = true;
    const double plain = time_of(k, t);
    k.claim_first_us = k.linear1_us;
    k.claim_second_us = k.linear2_us;
    return time_of(k, t) / plain;
  };
  EXPECT_GT(slower_by(MoeSchedule::interleaved(1)), 1.1);
  EXPECT_NEAR(slower_by(MoeSchedule::interleaved(40)), 1, 0.03);
}

// The paper's point: at the same work, the interleaved order stalls less where traffic is heavy.
TEST(SimulateMoe, InterleavingHidesTheLinkWhereWaveStalls) {
  // Of four ranks' tokens three quarters leave. With two, the wave mixes an expert's rows that stay
  // and that leave, column by column, and stalls no more than the interleaved order.
  const MoeTraffic t = even_traffic(4, 64, 512);
  const MoeResult wave = simulate_moe({node(132)}, t, kernel(12, 16, MoeSchedule::wave(3)), 1);
  const MoeResult inter =
      simulate_moe({node(132)}, t, kernel(12, 16, MoeSchedule::interleaved(24)), 1);
  EXPECT_LT(inter.ranks[0].stall_us, wave.ranks[0].stall_us);
  EXPECT_LT(inter.time_us, wave.time_us);
}

TEST(SimulateMoe, StagingTakesStallsOffTheMathWarps) {
  const MoeTraffic t = even_traffic(2, 16, 512);
  MoeKernel k = kernel(12, 16, MoeSchedule::interleaved(24));
  k.residual = 0;
  const double without = time_of(k, t);
  k.staging = 2;
  EXPECT_LT(time_of(k, t), without);
}

TEST(SimulateMoe, DispatchDelaysTheFirstRowsAndSharesTheLink) {
  const MoeTraffic t = even_traffic(2, 64, 512);
  MoeKernel k = kernel(12, 16, MoeSchedule::interleaved(12));
  const double there = time_of(k, t);
  k.token_bytes = 2112;
  k.start_us = 8;
  k.pull_us = 1;
  const MoeResult r = simulate_moe({node(132)}, t, k, 1);
  EXPECT_GT(r.time_us, there + 8);
  EXPECT_GT(r.ranks[0].wait_tokens_us, 0);
  EXPECT_GE(r.ranks[0].dispatched_us, 32 * 512 * 2112 / 368500.0);
  // A larger lead lets dispatch finish earlier: fewer stores compete with it.
  k.schedule = MoeSchedule::interleaved(100);
  EXPECT_LT(simulate_moe({node(132)}, t, k, 1).ranks[0].dispatched_us, r.ranks[0].dispatched_us);
}

TEST(SimulateMoe, TheSameSeedGivesTheSameResult) {
  const MoeTraffic t = even_traffic(2, 8, 200);
  const MoeKernel k = kernel(12, 16, MoeSchedule::interleaved(12));
  EXPECT_EQ(time_of(k, t, 132, 5), time_of(k, t, 132, 5));
  EXPECT_NE(time_of(k, t, 132, 5), time_of(k, t, 132, 6));
}

TEST(SimulateMoe, NothingToDoAndOneSided) {
  EXPECT_NEAR(time_of(kernel(4, 4, MoeSchedule::wave(1)), even_traffic(2, 4, 0)), 1.15, 1e-9);
  MoeTraffic t = even_traffic(2, 4, 0);
  t.tokens[1] = 5000;  // all of rank 1's tokens to expert 0 of rank 0
  const MoeResult r = simulate_moe({node(132)}, t, kernel(4, 4, MoeSchedule::interleaved(9)), 1);
  EXPECT_EQ(r.ranks[1].rows, 0);
  EXPECT_EQ(r.ranks[0].remote_bytes, 5000 * 4 * 256);
  EXPECT_EQ(r.ranks[1].done_us, r.ranks[0].done_us);
}

TEST(SimulateMoe, TooFewBuffersAreADeadlockThatNamesItsCycle) {
  const MoeTraffic t = even_traffic(1, 4, 512);
  for (bool claimed : {false, true})
    for (const MoeSchedule& s : {MoeSchedule::interleaved(1), MoeSchedule::wave(2)}) {
      MoeKernel k = kernel(4, 6, s);
      k.claimed = claimed;
      const std::vector<std::uint32_t> tokens(4, 512);
      const schedule::MoeOrder order(k.tiling, s, tokens.data(), 4);
      k.buffers = order.live_rows();
      EXPECT_FALSE(simulate_moe({node(12)}, t, k, 1).deadlock.has_value());
      k.buffers = order.live_rows() - 1;
      k.workers = 1;
      const auto found = simulate_moe({node(12)}, t, k, 1).deadlock;
      ASSERT_TRUE(found.has_value());
      EXPECT_NE(found->find("waits for the buffer of row 0"), std::string::npos) << *found;
      EXPECT_NE(found->find(claimed ? "nobody has claimed" : "a later tile of the same SM"),
                std::string::npos)
          << *found;
      // More SMs reach further before they all stand still.
      if (s.kind == schedule::MoeScheduleKind::kInterleaved)
        k.schedule = MoeSchedule::interleaved(6);
      k.workers = 12;
      k.buffers = 2;
      const auto many = simulate_moe({node(12)}, t, k, 1).deadlock;
      ASSERT_TRUE(many.has_value());
      EXPECT_NE(many->find("rank 0 SM"), std::string::npos) << *many;
    }
}

TEST(SimulateMoe, LostSignalsAreNamed) {
  const MoeTraffic t = even_traffic(2, 4, 512);
  for (Fault fault : {Fault::kLostLinear1Signal, Fault::kLostBufferRelease, Fault::kLostTokens}) {
    MoeKernel k = kernel(4, 6, MoeSchedule::interleaved(3));
    k.token_bytes = 2048;
    k.buffers = 8;
    k.fault = fault;
    k.fault_row = 2;
    const auto found = simulate_moe({node(12)}, t, k, 1).deadlock;
    ASSERT_TRUE(found.has_value());
    EXPECT_NE(found->find("a signal was lost"), std::string::npos) << *found;
    EXPECT_NE(found->find("rank 0"), std::string::npos) << *found;
    EXPECT_NE(found->find("row 2"), std::string::npos) << *found;
  }
}

// Random schedules on random small nodes: all finish, all bytes arrive, live rows stay within the
// ring.
TEST(SimulateMoe, RandomSchedulesOnRandomNodesRunClean) {
  const char* many = std::getenv("XSTAGE_LONG_TESTS");
  const int runs = many != nullptr ? 100000 : 3000;
  std::mt19937_64 random(20260725);
  const auto in = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<std::uint64_t>(most - least + 1));
  };
  for (int i = 0; i < runs; ++i) {
    MoeTraffic t;
    t.ranks = in(1, 4);
    t.experts = t.ranks * in(1, 4);
    std::int64_t pairs = 0;
    for (int e = 0; e < t.experts; ++e)
      for (int s = 0; s < t.ranks; ++s) {
        t.tokens.push_back(in(0, 2) == 0 ? 0 : static_cast<std::uint32_t>(in(0, 20)));
        if (e / t.experts_local() != s) pairs += t.tokens.back();
      }
    MoeKernel k;
    k.tiling = {in(1, 8), in(1, 6), in(1, 6)};
    k.schedule = in(0, 1) ? MoeSchedule::wave(in(1, 4)) : MoeSchedule::interleaved(in(1, 12));
    k.claimed = in(0, 1) == 1;
    k.linear1_us = in(0, 100) * 0.1;
    k.linear2_us = in(0, 100) * 0.1;
    k.fixed_us = in(0, 3) * 0.1;
    k.signal_us = in(0, 3) * 0.3;
    k.staging = in(0, 3);
    k.piece_bytes = in(0, 20) * 64.0;
    k.issue_us.assign(static_cast<std::size_t>(k.tiling.block_m) + 1, in(0, 5) * 0.1);
    k.residual = in(0, 1) * 512.0;
    k.token_bytes = in(0, 1) * 500.0;
    k.pull_us = in(0, 2) * 0.5;
    k.flag_us = 1;
    EgressParameters p = node(in(1, 14), in(1, 100) * 1000.0, in(1, 30) * 1000.0);
    p.sm_rate = in(1, 50) * 1000.0;
    p.grain = in(0, 2) * 300.0;
    // The ring must be at least as large as the schedule's bound on every rank.
    std::int64_t need = 1;
    for (int r = 0; r < t.ranks; ++r) {
      std::vector<std::uint32_t> tokens;
      for (int e = 0; e < t.experts_local(); ++e) {
        std::uint32_t sum = 0;
        for (int s = 0; s < t.ranks; ++s) sum += t.at(r * t.experts_local() + e, s);
        tokens.push_back(sum);
      }
      need = std::max(
          need,
          schedule::MoeOrder(k.tiling, k.schedule, tokens.data(), t.experts_local()).live_rows());
    }
    k.buffers = in(0, 1) == 0 ? 0 : need + in(0, 2);
    const MoeResult r = simulate_moe({p}, t, k, random());
    ASSERT_FALSE(r.deadlock.has_value()) << "run " << i << ": " << *r.deadlock;
    double sent = 0;
    for (const MoeRankResult& rank : r.ranks) {
      sent += static_cast<double>(rank.remote_bytes);
      if (k.buffers > 0) {
        ASSERT_LE(rank.most_live_rows, k.buffers);
      }
      ASSERT_LE(rank.most_backlog, p.queue_per_sm * 14);
      ASSERT_LE(rank.drained_us, r.time_us);
    }
    ASSERT_EQ(sent, static_cast<double>(pairs) * k.tiling.n2 * k.piece_bytes);
  }
}

}  // namespace
}  // namespace xstage::sim
