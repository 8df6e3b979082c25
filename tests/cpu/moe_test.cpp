// The MoE layer on threads: right, the same bits however it is scheduled, and the users' cases.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "moe_case.hpp"
#include "shapes/shapes.hpp"
#include "support/sanitizers.hpp"

namespace xstage::cpu {
namespace {

using layout::MoeConfig;
using schedule::MoeSchedule;

/// The tokens of one rank in equal shares.
std::vector<MoeInput> shares(const MoeInput& whole, const MoeConfig& config) {
  std::vector<MoeInput> out(static_cast<std::size_t>(config.ranks));
  const std::int64_t tokens = whole.tokens / config.ranks;
  for (std::int32_t rank = 0; rank < config.ranks; ++rank) {
    const auto part = [&](const auto& values, std::int64_t each) {
      const auto begin = values.begin() + rank * tokens * each;
      return std::decay_t<decltype(values)>(begin, begin + tokens * each);
    };
    MoeInput& share = out[static_cast<std::size_t>(rank)];
    share.tokens = tokens;
    share.x = part(whole.x, config.hidden);
    share.experts = part(whole.experts, config.topk);
    share.weights = part(whole.weights, config.topk);
  }
  return out;
}

/// Rows of the busiest rank.
std::int64_t most_rows(const MoeCase& layer) {
  std::vector<std::uint32_t> tokens(static_cast<std::size_t>(layer.config.experts), 0);
  for (const MoeInput& input : layer.inputs)
    for (const std::int32_t expert : input.experts) ++tokens[static_cast<std::size_t>(expert)];
  std::vector<std::int64_t> rows(static_cast<std::size_t>(layer.config.ranks), 0);
  const std::size_t local = tokens.size() / rows.size();
  for (std::size_t expert = 0; expert < tokens.size(); ++expert)
    rows[expert / local] += schedule::rows_of(tokens[expert], layer.config.block_m);
  return *std::max_element(rows.begin(), rows.end());
}

TEST(Moe, AgreesWithTheReferenceOnOneToEightRanks) {
  for (const std::int32_t ranks : {1, 2, 3, 4, 8})
    for (const auto format : {WeightFormat::kW8A8, WeightFormat::kBf16}) {
      MoeConfig c = MoeCase::small(ranks);
      c.format = format;
      c.schedule = MoeSchedule::interleaved(2);
      const MoeErrors errors =
          MoeCase(c, 24, "balanced", static_cast<std::uint64_t>(ranks)).check();
      RecordProperty("ranks" + std::to_string(ranks) + shapes::name(format) + "_end_to_end",
                     std::to_string(errors.end_to_end));
      EXPECT_EQ(errors.tokens_checked, 24 * ranks);
    }
}

TEST(Moe, SameBitsWhateverTheScheduleLeadWorkersAndDispatch) {
  for (const auto format : {WeightFormat::kW8A8, WeightFormat::kBf16}) {
    MoeConfig c = MoeCase::small(2);
    c.format = format;
    MoeCase layer(c, 37, "zipf:1.2");
    const Outputs expected = layer.run();
    std::vector<MoeSchedule> schedules = {MoeSchedule::wave(1), MoeSchedule::wave(2),
                                          MoeSchedule::wave(64)};
    for (const std::int64_t lead : {1, 2, 3, 4, 7, 16, 64})
      schedules.push_back(MoeSchedule::interleaved(lead));
    for (const MoeSchedule& s : schedules)
      for (const std::int32_t workers : {1, 2, 5})
        for (const auto dispatch : {layout::MoeDispatch::kPerSlot, layout::MoeDispatch::kPerRank}) {
          layer.config.schedule = s;
          layer.config.workers = workers;
          layer.config.dispatch = dispatch;
          ASSERT_EQ(layer.run(), expected) << static_cast<int>(s.kind) << " group " << s.group
                                           << " lead " << s.lead << " workers " << workers;
        }
  }
}

// M14: a token's bits depend on itself alone, so 48 tokens on one rank give what they give in
// shares of 2, 3, 4 or 8 ranks, under every lead that the rows of a rank tell apart.
TEST(Moe, SameBitsOnAnyNumberOfRanksUnderEveryLeadOverTwentyRuns) {
  constexpr int kRuns = test::kSlowness > 1 ? 3 : 20;
  MoeConfig c = MoeCase::small(1);
  c.experts = 24;
  c.capacity = 48;
  MoeCase layer(c, 48, "zipf:0.8");
  const MoeInput whole = layer.inputs[0];
  const std::vector<std::uint16_t> expected = layer.run()[0];
  for (const std::int32_t ranks : {1, 2, 3, 4, 8}) {
    layer.config.ranks = ranks;
    layer.config.capacity = 48 / ranks;
    layer.inputs = shares(whole, layer.config);
    std::vector<MoeSchedule> schedules = {MoeSchedule::wave(1), MoeSchedule::wave(2),
                                          MoeSchedule::wave(24 / ranks)};
    const std::int64_t rows = most_rows(layer);
    for (std::int64_t lead = 1; lead <= rows + 1; ++lead)
      schedules.push_back(MoeSchedule::interleaved(lead));
    for (const MoeSchedule& s : schedules) {
      layer.config.schedule = s;
      auto group = layer.group();
      for (int run = 0; run < kRuns; ++run) {
        group.poison();
        const Outputs outputs = group.launch(layer.weights, layer.inputs).value();
        std::vector<std::uint16_t> all;
        for (const auto& output : outputs) all.insert(all.end(), output.begin(), output.end());
        ASSERT_EQ(all, expected) << ranks << " ranks, group " << s.group << " lead " << s.lead
                                 << ", run " << run;
      }
    }
  }
}

// M14
TEST(Moe, TwentyLaunchesOfOneGroupGiveTheSameBitsAndOtherInputsOthers) {
  MoeConfig c = MoeCase::small(3);
  c.schedule = MoeSchedule::interleaved(1);
  const MoeCase layer(c, 30), other(c, 17, "zipf:2", 9);
  auto group = layer.group();
  const Outputs expected = group.launch(layer.weights, layer.inputs).value();
  const Outputs between = other.run();
  for (int run = 0; run < 20; ++run) {
    group.poison();
    ASSERT_EQ(group.launch(layer.weights, layer.inputs).value(), expected) << run;
    group.poison();
    ASSERT_EQ(group.launch(other.weights, other.inputs).value(), between) << run;
  }
}

// M4
TEST(Moe, RanksWithoutTokens) {
  MoeCase layer(MoeCase::small(3), 20);
  auto& empty = layer.inputs[1];
  empty = {};
  layer.check();
  EXPECT_TRUE(layer.run()[1].empty());
  for (auto& input : layer.inputs) input = {};
  for (const auto& output : layer.run()) EXPECT_TRUE(output.empty());
}

// M5
TEST(Moe, OneExpertARankAndOneInAll) {
  MoeConfig c = MoeCase::small(4);
  c.experts = 4;
  c.topk = 2;
  MoeCase(c, 20).check();
  c = MoeCase::small(1);
  c.experts = 1;
  c.topk = 1;
  MoeCase(c, 20).check();
}

// M6
TEST(Moe, HugeCapacityGivesTheSameBits) {
  MoeConfig c = MoeCase::small(2);
  MoeCase layer(c, 40);
  const Outputs expected = layer.run();
  layer.config.capacity = std::int64_t{1} << 24;  // a combine slot then spans 8.6 GB
  auto group = layer.group();
  EXPECT_GT(group.layout().combine.bytes / 3, std::int64_t{1} << 32);
  EXPECT_GT(group.layout().pool.bytes, std::int64_t{1} << 31);
  EXPECT_EQ(group.launch(layer.weights, layer.inputs).value(), expected);
}

// M7
TEST(Moe, UnusualSizes) {
  const std::pair<std::int64_t, std::int64_t> sizes[] = {
      {8192, 768}, {1152, 768}, {1152, 4608}, {1152, 6912}};
  for (const auto& [hidden, intermediate] : sizes) {
    MoeConfig c = MoeCase::small(2);
    c.experts = 2;
    c.topk = 1;
    c.hidden = hidden;
    c.intermediate = intermediate;
    MoeCase(c, 3).check();
  }
  MoeConfig c = MoeCase::small(2);
  c.block_n = 256;
  MoeCase(c, 20).check();
}

// M8
TEST(Moe, TokensOfZerosAndTinyTokens) {
  MoeCase layer(MoeCase::small(2), 20);
  const auto hidden = static_cast<std::ptrdiff_t>(layer.config.hidden);
  std::fill_n(layer.inputs[0].x.begin(), hidden, std::uint16_t{0});
  std::fill_n(layer.inputs[1].x.begin() + hidden, hidden, float_to_bf16(1e-38f));
  layer.check();
  const Outputs outputs = layer.run();
  for (std::ptrdiff_t i = 0; i < hidden; ++i)
    EXPECT_EQ(bf16_to_float(outputs[0][static_cast<std::size_t>(i)]), 0.0f);
  // A token with NaN must not touch the others.
  const Outputs before = layer.run();
  layer.inputs[0].x[0] = float_to_bf16(std::numeric_limits<float>::quiet_NaN());
  const Outputs after = layer.run();
  EXPECT_TRUE(std::equal(before[0].begin() + hidden, before[0].end(), after[0].begin() + hidden));
  EXPECT_EQ(before[1], after[1]);
}

// M9
TEST(Moe, OtherActivationsAreRefusedByName) {
  MoeConfig c = MoeCase::small(2);
  c.activation.alpha = 1.702f;
  const auto group = MoeGroup::create({c, c});
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.error().field, "activation.alpha");
}

TEST(Moe, ClampAndAddend) {
  MoeConfig c = MoeCase::small(2);
  c.activation.clamp = 0.25f;
  MoeCase layer(c, 20);
  const Outputs clamped = layer.run();
  layer.check();
  for (auto& input : layer.inputs) input.addend = input.x;
  layer.check();
  EXPECT_NE(layer.run(), clamped);
  layer.config.activation.clamp = 0;
  layer.inputs = MoeCase(c, 20).inputs;
  EXPECT_NE(layer.run(), clamped);
}

// M11
TEST(Moe, MoreTokensThanTheCapacityAreRefused) {
  MoeConfig c = MoeCase::small(2);
  c.capacity = 10;
  MoeCase layer(c, 10);
  auto group = layer.group();
  const Outputs expected = group.launch(layer.weights, layer.inputs).value();
  const auto refused = group.launch(layer.weights, MoeCase(c, 11).inputs);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().value, "11");
  EXPECT_EQ(refused.error().allowed, "0 to 10");
  EXPECT_EQ(group.launch(layer.weights, layer.inputs).value(), expected);
}

// M12
TEST(Moe, SkippedDuplicateAndImpossibleExperts) {
  MoeCase layer(MoeCase::small(2), 20);
  auto& ids = layer.inputs[0].experts;
  ids[0] = -1;                              // one slot
  std::fill_n(ids.begin() + 3, 3, -1);      // a whole token
  std::fill_n(ids.begin() + 6, 3, ids[6]);  // the same expert three times
  ids[9] = ids[10];
  layer.check();
  const Outputs outputs = layer.run();
  for (std::int64_t i = 0; i < layer.config.hidden; ++i)
    EXPECT_EQ(outputs[0][static_cast<std::size_t>(layer.config.hidden + i)], 0);
  for (const std::int32_t bad : {-2, 6, std::numeric_limits<std::int32_t>::max()}) {
    ids[13] = bad;
    const auto refused = layer.group().launch(layer.weights, layer.inputs);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().field, "rank 0 token 4 slot 1");
    EXPECT_EQ(refused.error().value, std::to_string(bad));
  }
}

// M13
TEST(Moe, EverythingToOneExpertOrOneRank) {
  MoeConfig c = MoeCase::small(4);
  c.topk = 1;
  MoeCase one(c, 40);
  for (auto& input : one.inputs) std::fill(input.experts.begin(), input.experts.end(), 7);
  one.check();
  MoeCase rank(MoeCase::small(4), 40);
  for (auto& input : rank.inputs)
    for (std::size_t i = 0; i < input.experts.size(); ++i)
      input.experts[i] = static_cast<std::int32_t>(3 + i % 3);
  rank.check();
  rank.config.schedule = MoeSchedule::interleaved(3);
  rank.check();
}

// M15
TEST(Moe, RanksThatWereSetUpDifferently) {
  std::vector<MoeConfig> of_rank(3, MoeCase::small(3));
  of_rank[1].schedule = MoeSchedule::interleaved(2);
  EXPECT_EQ(MoeGroup::create(of_rank).error().field, "schedule");
  of_rank[1] = MoeCase::small(3);
  of_rank[2].capacity = 41;
  const auto group = MoeGroup::create(of_rank);
  EXPECT_EQ(group.error().field, "capacity");
  EXPECT_EQ(group.error().value, "rank 0: 40, rank 2: 41");
}

// M16
TEST(Moe, RowCountsAroundTheTile) {
  for (const std::int32_t block_m : {64, 128})
    for (const std::int64_t rows : {1, 63, 64, 65, 127, 128, 129}) {
      MoeConfig c = MoeCase::small(2);
      c.block_m = block_m;
      c.experts = 2;
      c.topk = 1;
      c.capacity = 129;
      MoeCase layer(c, rows);
      // All of rank 0's tokens and the first of rank 1's go to rank 1: counts on both sides of it.
      std::fill(layer.inputs[0].experts.begin(), layer.inputs[0].experts.end(), 1);
      std::fill(layer.inputs[1].experts.begin(), layer.inputs[1].experts.end(), 0);
      layer.check();
    }
}

// M20
TEST(Moe, WeightBlocksWithTinyAndZeroScales) {
  MoeCase layer(MoeCase::small(2), 20);
  layer.weights.w1_scales[0] = 0;
  layer.weights.w1_scales[1] = 1e-38f;
  layer.weights.w2_scales[0] = 0;
  layer.weights.w2_scales[1] = 1e-30f;
  layer.check();
  std::fill(layer.weights.w1_scales.begin(), layer.weights.w1_scales.end(), 0.0f);
  const MoeErrors errors = layer.check();
  EXPECT_EQ(errors.end_to_end, 0);
  for (const auto& output : layer.run())
    for (const std::uint16_t value : output) EXPECT_EQ(value & 0x7fff, 0);
}

}  // namespace
}  // namespace xstage::cpu
