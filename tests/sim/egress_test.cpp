// Laws of the fabric: nothing is lost, queues stay within their capacity, shares are fair.
#include "xstage/sim/egress.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <map>

namespace xstage::sim {
namespace {

EgressParameters even(int sms, double drain_rate, double queue) {
  EgressParameters p;
  p.drain_rate = drain_rate;
  p.sm_rate = 50700;
  p.queue_per_sm = queue;
  p.groups.emplace_back();
  for (int sm = 0; sm < sms; ++sm) p.groups[0].push_back(sm);
  return p;
}

/// Runs until nothing is under way; times of the events by (kind, tag).
std::map<std::pair<EgressEvent, std::uint64_t>, double> run(Egress& egress) {
  std::map<std::pair<EgressEvent, std::uint64_t>, double> times;
  while (true) {
    const double next = egress.next_event();
    if (std::isinf(next)) return times;
    egress.advance(next);
    for (Egress::Event event; egress.poll(event);) times[{event.kind, event.tag}] = egress.now();
  }
}

TEST(Egress, ASmallBurstTakesItsUnloadedTimeAndThenDrains) {
  Egress egress(even(1, 373000, 20000), 1);
  egress.start(0, {16384, 0.17, 4096, 7});
  const auto times = run(egress);
  EXPECT_NEAR(times.at({EgressEvent::kIssued, 7}), 0.17, 1e-9);
  EXPECT_NEAR(times.at({EgressEvent::kDrained, 7}), 16384 / 50700.0, 1e-6);
  EXPECT_EQ(egress.backlog(), 0);
}

TEST(Egress, AnAlignedBurstBeyondTheCapacityWaitsForTheDrain) {
  constexpr int kSms = 100;
  Egress egress(even(kSms, 300000, 20000), 1);
  for (int sm = 0; sm < kSms; ++sm)
    egress.start(sm, {65536, 1.1, 4096, static_cast<std::uint64_t>(sm)});
  const auto times = run(egress);
  for (std::uint64_t sm = 0; sm < kSms; ++sm) {
    EXPECT_NEAR(times.at({EgressEvent::kIssued, sm}), (65536.0 - 20000) * kSms / 300000, 1e-3);
    EXPECT_NEAR(times.at({EgressEvent::kSettled, sm}), (65536.0 - 20000 + 4096) * kSms / 300000,
                1e-3);
    EXPECT_NEAR(times.at({EgressEvent::kDrained, sm}), 65536.0 * kSms / 300000, 1e-3);
  }
}

TEST(Egress, LeavingOneSmOutSpeedsUpItsGroupAndNobodyElse) {
  EgressParameters p = even(0, 30000, 1000);
  p.groups = {{0, 1, 2}, {3, 4, 5}, {6, 7}};
  const auto drained = [&](int absent) {
    Egress egress(p, 1);
    for (int sm = 0; sm < 8; ++sm)
      if (sm != absent) egress.start(sm, {10000, 0, 0, 0});
    std::map<int, int> bursts;
    while (egress.now() < 10000) {
      egress.advance(egress.next_event());
      for (Egress::Event event; egress.poll(event);)
        if (event.kind == EgressEvent::kIssued) {
          ++bursts[event.sm];
          egress.start(event.sm, {10000, 0, 0, 0});
        }
    }
    return bursts;
  };
  const auto all = drained(-1), without = drained(0);
  EXPECT_NEAR(static_cast<double>(all.at(6)) / all.at(0), 1.5, 0.02);
  EXPECT_NEAR(static_cast<double>(without.at(1)) / all.at(1), 1.5, 0.02);
  EXPECT_NEAR(static_cast<double>(without.at(3)) / all.at(3), 1.0, 0.01);
  EXPECT_NEAR(static_cast<double>(without.at(6)) / all.at(6), 1.0, 0.01);
}

TEST(Egress, TheFlowTakesItsShareAndWhatIsLeftOver) {
  Egress egress(even(10, 100000, 10000), 1);
  egress.append_flow(1e6, 99);
  const auto alone = run(egress);
  EXPECT_NEAR(alone.at({EgressEvent::kFlow, 99}), 10, 1e-6);
  Egress shared(even(10, 100000, 10000), 1);
  shared.append_flow(1e6, 99);
  for (int sm = 0; sm < 10; ++sm) shared.start(sm, {1e6, 0, 0, static_cast<std::uint64_t>(sm)});
  const auto both = run(shared);
  EXPECT_NEAR(both.at({EgressEvent::kFlow, 99}), 20, 1e-6);
  EXPECT_NEAR(both.at({EgressEvent::kDrained, 0}), 110, 1e-3);
}

TEST(Egress, BacklogStaysWithinCapacityAndEveryByteLeaves) {
  EXPECT_TRUE(rc::check("0 <= queue <= Q; drained after issued; total time is at least V/R", [] {
    EgressParameters p;
    p.drain_rate = *rc::gen::inRange(1000, 400000);
    p.sm_rate = *rc::gen::inRange(500, 60000);
    p.queue_per_sm = *rc::gen::inRange(1, 50000);
    const int groups = *rc::gen::inRange(1, 6);
    int sms = 0;
    for (int g = 0; g < groups; ++g) {
      p.groups.emplace_back();
      const int members = *rc::gen::inRange(1, 5);
      for (int i = 0; i < members; ++i) p.groups.back().push_back(sms++);
    }
    Egress egress(p, 1);
    p.peers = *rc::gen::inRange(1, 4);
    double total = 0;
    std::vector<int> left(static_cast<std::size_t>(sms));
    const auto burst = [&](int sm) {
      const Burst b{static_cast<double>(*rc::gen::inRange(0, 80000)),
                    *rc::gen::element(0.0, 0.1, 1.0),
                    static_cast<double>(*rc::gen::inRange(0, 5000)), 0};
      total += b.bytes;
      egress.start(sm, b);
    };
    for (int sm = 0; sm < sms; ++sm) {
      left[static_cast<std::size_t>(sm)] = *rc::gen::inRange(0, 6);
      burst(sm);
    }
    if (*rc::gen::arbitrary<bool>()) egress.append_flow(*rc::gen::inRange(1, 100000), 1);
    int issued = 0, settled = 0, drained = 0, events = 0;
    while (!std::isinf(egress.next_event())) {
      egress.advance(egress.next_event());
      RC_ASSERT(++events < 100000);
      for (int sm = 0; sm < sms; ++sm) {
        RC_ASSERT(egress.queue(sm) >= 0);
        RC_ASSERT(egress.queue(sm) <= p.queue_per_sm);
      }
      for (Egress::Event event; egress.poll(event);) {
        if (event.kind == EgressEvent::kSettled) ++settled;
        if (event.kind == EgressEvent::kDrained) ++drained;
        if (event.kind != EgressEvent::kIssued) continue;
        ++issued;
        if (left[static_cast<std::size_t>(event.sm)]-- > 0) burst(event.sm);
      }
    }
    RC_ASSERT(issued == settled);
    RC_ASSERT(issued == drained);
    RC_ASSERT(egress.backlog() == 0);
    RC_ASSERT(egress.now() >= (total - 0.1 * issued) / p.drain_rate * (1 - 1e-9));
  }));
}

TEST(Egress, PeersHaveTheirOwnLimits) {
  EgressParameters p = even(4, 100000, 1000);
  p.peers = 2;
  p.peer_rate = 40000;
  Egress egress(p, 1);
  for (int sm = 0; sm < 4; ++sm) egress.start(sm, {1e6, 0, 0, static_cast<std::uint64_t>(sm), 0});
  EXPECT_NEAR(egress.wanted(0), 40000, 1e-6);
  EXPECT_NEAR(run(egress).at({EgressEvent::kDrained, 0}), 4e6 / 40000, 1e-3);

  // Two peers: each gets its own SMs' share of the link; a receiver that takes half slows its own
  // alone.
  p.peer_rate = 60000;
  Egress two(p, 1);
  two.throttle(1, 0.5);
  for (int sm = 0; sm < 4; ++sm) two.start(sm, {1e6, 0, 0, static_cast<std::uint64_t>(sm), sm / 2});
  const auto times = run(two);
  EXPECT_NEAR(times.at({EgressEvent::kDrained, 0}), 1e6 / 25000, 1e-3);
  // Alone on the link after that, at half of what an SM can do with half of the link each.
  EXPECT_NEAR(times.at({EgressEvent::kDrained, 2}), 40 + 5e5 / (0.5 * 50000), 1e-3);
}

TEST(Egress, ABurstToAnotherPeerWaitsForTheQueueBeforeIt) {
  EgressParameters p = even(1, 10000, 20000);
  p.peers = 2;
  Egress egress(p, 1);
  egress.start(0, {10000, 0, 0, 1, 0});
  Egress::Event event;
  while (egress.poll(event)) {
  }
  egress.start(0, {10000, 0, 0, 2, 1});
  const auto times = run(egress);
  EXPECT_NEAR(times.at({EgressEvent::kDrained, 1}), 1, 1e-6);
  EXPECT_NEAR(times.at({EgressEvent::kDrained, 2}), 2, 1e-6);
}

TEST(Egress, TheSameSeedGivesTheSameTimes) {
  EgressParameters p = even(20, 100000, 10000);
  p.grain = 500;
  const auto end = [&](std::uint64_t seed) {
    Egress egress(p, seed);
    for (int sm = 0; sm < 20; ++sm) egress.start(sm, {50000, 1, 0, static_cast<std::uint64_t>(sm)});
    return run(egress);
  };
  EXPECT_EQ(end(3), end(3));
  EXPECT_NE(end(3), end(4));
}

}  // namespace
}  // namespace xstage::sim
