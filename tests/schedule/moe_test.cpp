// What both orders promise, on the order itself: exhaustive over small shapes, random over large
// ones.
#include "xstage/schedule/moe.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <vector>

#include "xstage/schedule/invariants.hpp"

namespace xstage::schedule {
namespace {

// The whole order of two rows, at compile time: it depends on nothing but its arguments.
struct Spelled {
  char text[16] = {};
};
constexpr Spelled spell(MoeSchedule schedule, MoeTiling tiling) {
  constexpr std::uint32_t tokens[] = {3, 0, 1};
  Spelled out;
  StaticTiles<MoeOrder> tiles(MoeOrder(tiling, schedule, tokens, 3), 0, 1);
  int at = 0;
  for (MoeTile tile; tiles.next(tile);)
    out.text[at++] = static_cast<char>((tile.linear == Linear::kFirst ? 'a' : 'A') + tile.row);
  return out;
}
constexpr bool equal(const Spelled& got, const char* want) {
  for (int i = 0; i < 16; ++i) {
    if (got.text[i] != want[i]) return false;
    if (want[i] == 0) return true;
  }
  return false;
}
static_assert(equal(spell(MoeSchedule::wave(1), {2, 1, 2}), "abABABcCC"));
static_assert(equal(spell(MoeSchedule::wave(3), {2, 1, 2}), "abcABABCC"));
static_assert(equal(spell(MoeSchedule::interleaved(1), {2, 1, 2}), "abAAcBBCC"));
static_assert(equal(spell(MoeSchedule::interleaved(1), {2, 2, 1}), "aabbAccBC"));
static_assert(equal(spell(MoeSchedule::interleaved(9), {2, 1, 2}), "abcABABCC"));

std::string check(const MoeTiling& tiling, const MoeSchedule& schedule,
                  const std::vector<std::uint32_t>& tokens) {
  const MoeOrder order(tiling, schedule, tokens.data(), static_cast<std::int32_t>(tokens.size()));
  const std::vector<MoeTile> tiles = all_tiles(order);
  std::string wrong = check_every_tile_once(tiles, tiling, tokens);
  // Rows dealt together come later than their place, or earlier, at both ends of the lead.
  const bool wave = schedule.kind == MoeScheduleKind::kWave;
  const std::int64_t lead = wave ? 0 : std::min(schedule.lead, order.rows());
  const std::int64_t slack = lead == 0 ? 0 : 2 * (std::min(lead, kRowsTogether) - 1);
  if (wrong.empty())
    wrong = check_linear2_after_linear1(tiles, tiling, order.rows(),
                                        std::max<std::int64_t>(lead - slack, 0));
  const std::int64_t live = live_rows_in_order(tiles, tiling, order.rows());
  if (wrong.empty() && (live > order.live_rows() || live < order.live_rows() - slack))
    wrong = std::to_string(live) + " rows live in the order, live_rows() says " +
            std::to_string(order.live_rows());
  if (wrong.empty() && order.ring_rows(4) < order.live_rows()) wrong = "ring below live rows";
  return wrong;
}

/// Every schedule that differs on up to `experts` experts and `rows` rows.
std::vector<MoeSchedule> schedules(std::int32_t experts, std::int64_t rows) {
  std::vector<MoeSchedule> out;
  for (std::int32_t group = 1; group <= experts + 1; ++group)
    out.push_back(MoeSchedule::wave(group));
  for (std::int64_t lead = 1; lead <= rows + 1; ++lead)
    out.push_back(MoeSchedule::interleaved(lead));
  return out;
}

TEST(MoeOrder, ExhaustiveOverSmallShapes) {
  std::int64_t cases = 0;
  for (std::uint32_t experts = 0; experts <= 3; ++experts)
    for (std::uint32_t code = 0; code < (1U << (3 * experts)); ++code) {
      std::vector<std::uint32_t> tokens;  // each expert 0 … 7 tokens, rows of 2: 0 … 4 rows
      for (std::uint32_t e = 0; e < experts; ++e) tokens.push_back((code >> (3 * e)) & 7U);
      for (std::int32_t n1 = 1; n1 <= 4; ++n1)
        for (std::int32_t n2 = 1; n2 <= 4; ++n2)
          for (const MoeSchedule& schedule : schedules(static_cast<std::int32_t>(experts), 5)) {
            ASSERT_EQ(check({2, n1, n2}, schedule, tokens), "")
                << "tokens code " << code << ", n1 " << n1 << ", n2 " << n2 << ", kind "
                << static_cast<int>(schedule.kind) << ", group " << schedule.group << ", lead "
                << schedule.lead;
            ++cases;
          }
    }
  EXPECT_GT(cases, 50000);
}

TEST(MoeOrder, RandomLargeShapes) {
  EXPECT_TRUE(rc::check("every tile once, Linear-1 first, lead kept, live rows as exported", [] {
    const auto experts = *rc::gen::inRange<std::int32_t>(1, 65);
    // Skew: few experts hold nearly everything, many hold nothing.
    const auto cap = *rc::gen::element<std::uint32_t>(1, 40, 300, 2000);
    std::vector<std::uint32_t> tokens;
    for (std::int32_t e = 0; e < experts; ++e)
      tokens.push_back(*rc::gen::element(0, 0, 1, 2) == 0
                           ? 0
                           : *rc::gen::resize(1000, rc::gen::inRange<std::uint32_t>(0, cap)));
    if (*rc::gen::arbitrary<bool>()) tokens[0] = 20000;
    const MoeTiling tiling{*rc::gen::element(64, 128, 192, 1), *rc::gen::inRange(1, 60),
                           *rc::gen::inRange(1, 60)};
    if (tiling.block_m == 1)
      for (auto& t : tokens) t %= 50;
    const auto schedule = *rc::gen::arbitrary<bool>()
                              ? MoeSchedule::wave(*rc::gen::inRange(1, experts + 1))
                              : MoeSchedule::interleaved(*rc::gen::inRange(1, 200));
    RC_ASSERT(check(tiling, schedule, tokens) == "");
  }));
}

TEST(MoeOrder, AnyStrideOrJumpSeesTheSameTiles) {
  EXPECT_TRUE(rc::check("advance(a); advance(b) is advance(a + b)", [] {
    const std::vector<std::uint32_t> tokens{300, 0, 5, 0, 0, 1000, 64, 65};
    const MoeTiling tiling{64, *rc::gen::inRange(1, 20), *rc::gen::inRange(1, 20)};
    const auto schedule = *rc::gen::arbitrary<bool>()
                              ? MoeSchedule::wave(*rc::gen::inRange(1, 9))
                              : MoeSchedule::interleaved(*rc::gen::inRange(1, 40));
    const MoeOrder order(tiling, schedule, tokens.data(), 8);
    const std::vector<MoeTile> tiles = all_tiles(order);
    MoeOrder jumping = order;
    std::uint64_t at = 0;
    std::uint64_t delta = *rc::gen::inRange<std::uint64_t>(0, tiles.size());
    while (jumping.advance(delta)) {
      at += delta;
      const MoeTile tile = jumping.tile();
      RC_ASSERT(tile.position == at);
      RC_ASSERT(tile.row == tiles[at].row);
      RC_ASSERT(tile.expert == tiles[at].expert);
      RC_ASSERT(tile.column == tiles[at].column);
      RC_ASSERT(tile.linear == tiles[at].linear);
      delta = *rc::gen::inRange<std::uint64_t>(1, 300);
    }
    RC_ASSERT(at + delta >= tiles.size());
    RC_ASSERT(!jumping.advance(0));
  }));
}

TEST(MoeOrder, WorkersTogetherTakeEveryPositionOnce) {
  const std::vector<std::uint32_t> tokens{130, 0, 257, 1};
  for (const MoeSchedule& schedule : schedules(4, 5))
    for (std::uint32_t workers = 1; workers <= 132; ++workers) {
      const MoeOrder order({64, 5, 3}, schedule, tokens.data(), 4);
      std::vector<int> taken(order.size());
      for (std::uint32_t w = 0; w < workers; ++w) {
        StaticTiles tiles(order, w, workers);
        for (MoeTile tile; tiles.next(tile);) ++taken[tile.position];
      }
      for (int times : taken) ASSERT_EQ(times, 1);
    }
}

// Every worker gets both kinds of tile in the ratio of the layer, for any number of workers: no
// worker works longer than the others because its stride falls into step with the mix.
TEST(MoeOrder, FixedStridesDealBothKindsEvenly) {
  for (const auto& [n1, n2] : {std::pair{32, 32}, {16, 32}, {12, 16}, {48, 56}, {48, 32}, {5, 1}})
    for (std::uint32_t workers : {1U, 2U, 6U, 7U, 108U, 131U, 132U, 148U}) {
      const std::vector<std::uint32_t> tokens{2000};
      const MoeOrder order({1, n1, n2}, MoeSchedule::interleaved(1), tokens.data(), 1);
      const double mean = static_cast<double>(n1) * 2000 / workers;
      for (std::uint32_t w = 0; w < workers; ++w) {
        StaticTiles tiles(order, w, workers);
        std::int64_t first = 0;
        for (MoeTile tile; tiles.next(tile);) {
          if (tile.linear == Linear::kFirst) ++first;
          ASSERT_EQ(
              StaticTiles<MoeOrder>::worker_of(tile.position, workers, order.rotation(workers)), w);
        }
        // Off by no more than a few tiles of some hundreds; without rotation it is off by half.
        ASSERT_NEAR(static_cast<double>(first), mean, 3 + 0.02 * mean)
            << "n1 " << n1 << ", n2 " << n2 << ", worker " << w << " of " << workers;
      }
    }
}

// Positions and rows past 2^31 (a capacity of 10^9 tokens): jump there, the neighbours must be
// right.
TEST(MoeOrder, PositionsPast32Bits) {
  const std::vector<std::uint32_t> tokens{4000000000U, 4000000000U, 7};
  MoeOrder order({1, 48, 56}, MoeSchedule::interleaved(1000), tokens.data(), 3);
  EXPECT_EQ(order.rows(), 8000000007);
  EXPECT_EQ(order.size(), 8000000007ULL * 104);
  ASSERT_TRUE(order.advance(order.size() - 1));
  EXPECT_EQ(order.tile().row, 8000000006);
  EXPECT_EQ(order.tile().expert, 2);
  EXPECT_EQ(order.tile().block, 6);
  EXPECT_EQ(order.tile().column, 55);
  EXPECT_FALSE(order.advance(1));
}

TEST(MoeOrder, NothingToDo) {
  for (const MoeSchedule& schedule : schedules(3, 3)) {
    const std::vector<std::uint32_t> tokens{0, 0, 0};
    EXPECT_FALSE(MoeOrder({128, 4, 4}, schedule, tokens.data(), 3).advance(0));
    EXPECT_FALSE(MoeOrder({128, 4, 4}, schedule, nullptr, 0).advance(0));
    EXPECT_EQ(MoeOrder({128, 4, 4}, schedule, tokens.data(), 3).live_rows(), 0);
  }
  EXPECT_FALSE(MoeOrder().advance(0));
}

TEST(MoeTiling, RoundsUpWhereSizesDoNotDivide) {
  EXPECT_EQ(moe_tiling(2048, 768, 128, 128), (MoeTiling{128, 12, 16}));
  EXPECT_EQ(moe_tiling(1152, 4608, 64, 256), (MoeTiling{64, 36, 5}));
  EXPECT_FALSE((MoeTiling{128, 0, 1}.valid()));
  EXPECT_FALSE(MoeSchedule::interleaved(0).valid());
}

TEST(WaveGroup, FillsTheMachineAboutTwice) {
  const MoeTiling lingbot = moe_tiling(2048, 768, 128, 128);
  // 2 ranks of 8192 tokens, top-8 of 128 experts: 1024 tokens an expert, 8 rows of 12 tiles.
  EXPECT_EQ(wave_group(2 * 8192 * 8, 128, 64, lingbot, 132), 3);
  EXPECT_EQ(wave_group(0, 128, 64, lingbot, 132), 64);
  EXPECT_EQ(wave_group(8, 8, 1, lingbot, 132), 1);
  EXPECT_TRUE(rc::check("between 1 and 2 fills more than wanted, or all experts", [&] {
    const auto local = *rc::gen::inRange<std::int32_t>(1, 300);
    const auto experts = std::int64_t{local} * *rc::gen::inRange(1, 9);
    const auto pairs = *rc::gen::resize(1000, rc::gen::inRange<std::int64_t>(1, 1000000));
    const auto group = wave_group(pairs, experts, local, lingbot, 132);
    RC_ASSERT(group >= 1);
    RC_ASSERT(group <= local);
    const double rows = pairs < experts
                            ? static_cast<double>(pairs) / static_cast<double>(experts)
                            : static_cast<double>((pairs + 128 * experts - 1) / (128 * experts));
    const double fill = group * rows * lingbot.n1 / 132.0;
    const std::int32_t groups = (local + group - 1) / group;
    if (groups > 1) RC_ASSERT(fill <= 2 + rows * lingbot.n1 / 132.0);
    // Evening the groups out shrinks them by less than half.
    if (group < local) RC_ASSERT(fill >= 1);
  }));
}

TEST(MaxRows, BoundsEveryRouting) {
  EXPECT_TRUE(rc::check("no routing makes more rows", [] {
    const auto tokens = *rc::gen::nonEmpty(
        rc::gen::container<std::vector<std::uint32_t>>(rc::gen::inRange(0U, 500U)));
    const auto block = *rc::gen::inRange(1, 130);
    std::int64_t rows = 0, pairs = 0;
    for (std::uint32_t t : tokens) {
      rows += rows_of(t, block);
      pairs += t;
    }
    RC_ASSERT(rows <= max_rows(pairs, static_cast<std::int64_t>(tokens.size()), block));
  }));
  EXPECT_EQ(max_rows(10, 3, 4), 4);  // 9 + … : 1, 1 and 8 tokens make 1 + 1 + 2 rows
  EXPECT_EQ(max_rows(2, 5, 4), 2);
  EXPECT_EQ(max_rows(0, 5, 4), 0);
}

}  // namespace
}  // namespace xstage::schedule
