// Workers that block on what they need: no deadlock with any number of them, in any order, as long
// as there are live_rows() buffers; and a deadlock with one fewer.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <random>
#include <vector>

#include "xstage/schedule/invariants.hpp"

namespace xstage::schedule {
namespace {

/// Which runnable worker goes on: the newest (others starve), the oldest, or any.
auto picker(int policy, std::uint64_t seed) {
  return [policy, engine = std::mt19937_64(seed)](std::size_t count) mutable -> std::size_t {
    if (policy == 0) return count - 1;
    if (policy == 1) return 0;
    return engine() % count;
  };
}

std::string run_all_ways(const MoeOrder& order, std::uint32_t workers, std::uint64_t seed) {
  const std::int64_t buffers = order.live_rows();
  for (Sharing sharing : {Sharing::kStatic, Sharing::kClaimed})
    for (int policy = 0; policy < 3; ++policy) {
      const WaitingRun run = run_with_waits(order, workers, sharing, buffers, picker(policy, seed));
      const std::string where = std::to_string(workers) + " workers, " +
                                (sharing == Sharing::kStatic ? "static" : "claimed") + ", policy " +
                                std::to_string(policy) + ": ";
      if (run.deadlock) return where + run.stuck;
      if (run.most_live > buffers)
        return where + std::to_string(run.most_live) + " live rows of " + std::to_string(buffers);
    }
  return {};
}

TEST(MoeRun, NoDeadlockWith1To132Workers) {
  const std::vector<std::uint32_t> tokens{300, 0, 5, 1, 0, 900, 64, 65, 0};
  for (const auto& [n1, n2] : {std::pair{3, 4}, {4, 3}, {9, 1}, {1, 9}}) {
    for (const MoeSchedule& schedule :
         {MoeSchedule::wave(1), MoeSchedule::wave(4), MoeSchedule::wave(9),
          MoeSchedule::interleaved(1), MoeSchedule::interleaved(7), MoeSchedule::interleaved(99)})
      for (std::uint32_t workers = 1; workers <= 132; ++workers) {
        const MoeOrder order({64, n1, n2}, schedule, tokens.data(), 9);
        ASSERT_EQ(run_all_ways(order, workers, workers), "")
            << "n1 " << n1 << ", n2 " << n2 << ", group " << schedule.group << ", lead "
            << schedule.lead;
      }
  }
}

TEST(MoeRun, NoDeadlockOnRandomShapes) {
  EXPECT_TRUE(rc::check("live_rows() buffers are enough", [] {
    std::vector<std::uint32_t> tokens;
    const auto experts = *rc::gen::inRange<std::int32_t>(1, 20);
    for (std::int32_t e = 0; e < experts; ++e)
      tokens.push_back(*rc::gen::element(0U, 0U, 1U, 7U, 30U));
    const MoeTiling tiling{*rc::gen::element(1, 4, 8), *rc::gen::inRange(1, 12),
                           *rc::gen::inRange(1, 12)};
    const auto schedule = *rc::gen::arbitrary<bool>()
                              ? MoeSchedule::wave(*rc::gen::inRange(1, experts + 1))
                              : MoeSchedule::interleaved(*rc::gen::inRange(1, 20));
    const MoeOrder order(tiling, schedule, tokens.data(), experts);
    const auto workers = *rc::gen::inRange<std::uint32_t>(1, 133);
    RC_ASSERT(run_all_ways(order, workers, *rc::gen::arbitrary<std::uint64_t>()) == "");
  }));
}

TEST(MoeRun, OneBufferTooFewIsADeadlockThatIsNamed) {
  const std::vector<std::uint32_t> tokens{256, 256, 256, 256};
  for (const MoeSchedule& schedule : {MoeSchedule::wave(2), MoeSchedule::interleaved(1)}) {
    const MoeOrder order({64, 4, 6}, schedule, tokens.data(), 4);
    const WaitingRun run =
        run_with_waits(order, 1, Sharing::kStatic, order.live_rows() - 1, picker(0, 0));
    EXPECT_TRUE(run.deadlock);
    EXPECT_NE(run.stuck.find("waits for Linear-2 of row 0"), std::string::npos) << run.stuck;
  }
}

// With the covering lead and tiles that all take one tick, no Linear-2 tile ever finds its row
// unready.
TEST(MoeRun, CoveringLeadCoversTilesOfEqualLength) {
  for (const auto& [n1, n2] : {std::pair{12, 16}, {32, 32}, {48, 32}, {5, 1}, {1, 5}, {200, 3}})
    for (std::uint32_t workers : {1U, 2U, 13U, 132U}) {
      const MoeTiling tiling{1, n1, n2};
      const std::vector<std::uint32_t> tokens{600};
      const std::int64_t lead = covering_lead(tiling, static_cast<std::int32_t>(workers));
      const std::vector<MoeTile> tiles =
          all_tiles(MoeOrder(tiling, MoeSchedule::interleaved(lead), tokens.data(), 1));
      std::vector<std::uint64_t> ready(600);
      for (const MoeTile& tile : tiles) {
        const std::uint64_t start = tile.position / workers;
        auto& row = ready[static_cast<std::size_t>(tile.row)];
        if (tile.linear == Linear::kFirst) {
          row = std::max(row, start + 1);
        } else if (tile.row < 600 - lead) {
          ASSERT_LE(row, start) << describe(tile) << ", n1 " << n1 << ", workers " << workers;
        }
      }
    }
}

}  // namespace
}  // namespace xstage::schedule
