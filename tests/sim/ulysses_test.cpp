#include "xstage/sim/ulysses.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "xstage/sim/timeline.hpp"

namespace xstage::sim {
namespace {

EgressParameters node(int sms) {
  EgressParameters p;
  p.drain_rate = 368500;
  p.sm_rate = 50700;
  p.queue_per_sm = 10000;
  p.grain = 800;
  p.groups.emplace_back();
  for (int sm = 0; sm < sms; ++sm) p.groups[0].push_back(sm);
  return p;
}

UlyssesKernel kernel(int ranks, std::int64_t heads, std::int64_t seq) {
  UlyssesKernel k;
  k.ranks = ranks;
  k.heads = heads;
  k.seq = seq;
  k.tile_us = 20;
  k.issue_us.assign(129, 0.7);
  k.flag_us = 1.15;
  return k;
}

TEST(SimulateUlysses, SendsEveryRowThatAnotherRankOwns) {
  EXPECT_TRUE(rc::check("bytes: heads of this rank x rows of the others", [] {
    const int ranks = *rc::gen::inRange(1, 6);
    const std::int64_t heads = *rc::gen::inRange(1, 14), seq = *rc::gen::inRange(1, 3000);
    UlyssesKernel k = kernel(ranks, heads, seq);
    k.order = *rc::gen::element(schedule::UlyssesOrderKind::kRemoteFirst,
                                schedule::UlyssesOrderKind::kRowMajor);
    k.staging = *rc::gen::inRange(0, 3);
    const UlyssesResult r = simulate_ulysses({node(*rc::gen::inRange(1, 20))}, k, 1);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto& one = r.ranks[static_cast<std::size_t>(rank)];
      const std::int64_t mine = heads * (rank + 1) / ranks - heads * rank / ranks;
      const std::int64_t own = seq * (rank + 1) / ranks - seq * rank / ranks;
      RC_ASSERT(one.remote_bytes == mine * (seq - own) * 256);
      RC_ASSERT(one.tiles == mine * ((seq + 127) / 128));
      RC_ASSERT(one.done_us <= r.time_us);
      RC_ASSERT(one.drained_us <= r.time_us);
    }
  }));
}

// Own tiles last: the tail has nothing left to drain, where the row-major order ends on remote
// tiles.
TEST(SimulateUlysses, RemoteFirstEndsSooner) {
  UlyssesKernel k = kernel(2, 8, 8192);
  const double remote_first = simulate_ulysses({node(132)}, k, 1).time_us;
  k.order = schedule::UlyssesOrderKind::kRowMajor;
  const double row_major = simulate_ulysses({node(132)}, k, 1).time_us;
  k.local_only = true;
  const double alone = simulate_ulysses({node(132)}, k, 1).time_us;
  EXPECT_LE(alone, remote_first);
  EXPECT_LT(remote_first, row_major);
}

// In row-major order all ranks send to the same owner at the same time; remote-first starts each
// rank at its own neighbour.
TEST(SimulateUlysses, SendersThatMeetAtOneReceiverWait) {
  UlyssesKernel k =
      kernel(4, 4, 65536);  // 512 blocks of one head: 132 SMs work on one owner's rows
  k.order = schedule::UlyssesOrderKind::kRowMajor;
  const UlyssesResult row_major = simulate_ulysses({node(132)}, k, 1);
  k.order = schedule::UlyssesOrderKind::kRemoteFirst;
  const UlyssesResult remote_first = simulate_ulysses({node(132)}, k, 1);
  EXPECT_LT(remote_first.ranks[0].stall_us, row_major.ranks[0].stall_us);
  EXPECT_LT(remote_first.time_us, row_major.time_us);
}

TEST(SimulateUlysses, AttentionAloneTakesItsTiles) {
  UlyssesKernel k = kernel(1, 4, 132 * 128);
  k.staging = 0;
  EXPECT_NEAR(simulate_ulysses({node(132)}, k, 1).time_us, 4 * 20.7, 1e-6);
  EXPECT_NEAR(attention_tile(16384, 128, 128).tile_us, 203, 5);
  EXPECT_FALSE(attention_tile(16384, 128, 128).assumed);
  EXPECT_TRUE(attention_tile(16384, 96, 128).assumed);
}

TEST(Timeline, IsACompleteChromeTrace) {
  TimelineOptions keep;
  keep.sms = {0, 1};
  keep.max_spans = 1000;
  keep.backlog_samples = 64;
  const UlyssesResult r = simulate_ulysses({node(4)}, kernel(2, 4, 4096), 1, keep);
  ASSERT_FALSE(r.timeline.spans.empty());
  for (const BacklogSeries& series : r.timeline.backlog) {
    EXPECT_LE(series.time_us.size(), 64U);
    EXPECT_GT(series.time_us.size(), 8U);
    for (std::size_t i = 1; i < series.time_us.size(); ++i)
      EXPECT_LT(series.time_us[i - 1], series.time_us[i]);
    for (double bytes : series.bytes) EXPECT_LE(bytes, 4 * 10000.0);
  }
  const std::string text = chrome_trace(r.timeline, "a \"title\"");
  const auto count = [&](const char* what) {
    std::size_t n = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
      ++n;
    return n;
  };
  EXPECT_EQ(count("\"ph\":\"X\""), r.timeline.spans.size());
  EXPECT_EQ(count("process_name"), 2U);
  EXPECT_EQ(count("thread_name"), 2U * 2U * 2U);  // math and epilogue of two SMs of two ranks
  EXPECT_NE(text.find("a \\\"title\\\""), std::string::npos);
  EXPECT_EQ(count("nan"), 0U);
}

}  // namespace
}  // namespace xstage::sim
