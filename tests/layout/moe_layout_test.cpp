#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

#include "xstage/layout/check.hpp"

namespace xstage::layout {
namespace {

MoeConfig small() {
  MoeConfig c;
  c.ranks = 4;
  c.topk = 3;
  c.experts = 16;
  c.hidden = 1152;
  c.intermediate = 768;
  c.capacity = 100;
  c.workers = 5;
  return c;
}

// Where a buffer might begin: nothing is read there, only addresses are computed. (An offset to a
// null pointer is undefined even then.)
constexpr std::intptr_t kBase = 4096;
void* address() { return reinterpret_cast<void*>(kBase); }

std::int64_t offset_in(const void* pointer, const Region& region) {
  return reinterpret_cast<std::intptr_t>(pointer) - kBase - region.offset;
}

// The last element of every array ends exactly where its region does: sizes and addresses come from
// the same formula, and nothing overlaps.
RC_GTEST_PROP(MoeLayout, LastElementsEndWhereTheirRegionsEnd, ()) {
  MoeConfig c = small();
  c.ranks = *rc::gen::inRange(1, 9);
  c.experts = c.ranks * *rc::gen::inRange(1, 20);
  c.topk = *rc::gen::inRange(1, static_cast<int>(std::min<std::int64_t>(c.experts, 10)) + 1);
  c.hidden = 128 * *rc::gen::inRange(1, 60);
  c.intermediate = 128 * *rc::gen::inRange(1, 60);
  c.capacity = *rc::gen::inRange(1, 100000);
  c.format = *rc::gen::element(WeightFormat::kW8A8, WeightFormat::kBf16);
  c.block_m = *rc::gen::element(16, 64, 128);
  const MoeLayout l = checked(c).value();
  void* const base = address();
  const std::int64_t tokens = l.max_rows * c.block_m;
  RC_ASSERT(offset_in(l.ready_word(base, c.ranks - 1), l.ready) + kFlagBytes == l.ready.bytes);
  RC_ASSERT(offset_in(l.arrived_word(base, 1, c.ranks - 1), l.arrived) + kFlagBytes ==
            l.arrived.bytes);
  RC_ASSERT(offset_in(l.counts_of(base, 1, c.ranks - 1) + l.experts_local, l.counts) ==
            l.counts.bytes);
  RC_ASSERT(offset_in(l.entries_of(base, 1, c.ranks - 1) + l.pairs, l.entries) == l.entries.bytes);
  RC_ASSERT(offset_in(l.landed_word(base, c.ranks - 1), l.landed) + kFlagBytes == l.landed.bytes);
  RC_ASSERT(offset_in(l.token(base, c.ranks - 1, c.capacity), l.tokens) == l.tokens.bytes);
  RC_ASSERT(offset_in(l.scales_of_token(base, c.ranks - 1, c.capacity), l.token_scales) ==
            l.token_scales.bytes);
  RC_ASSERT(offset_in(l.combine_row(base, static_cast<std::uint32_t>(l.pairs - 1)) + c.hidden,
                      l.combine) == l.combine.bytes);
  RC_ASSERT(offset_in(l.dispatched_word(base, 1, l.max_rows), l.dispatched) == l.dispatched.bytes);
  RC_ASSERT(offset_in(l.linear1_word(base, 1, l.max_rows), l.linear1) == l.linear1.bytes);
  RC_ASSERT(offset_in(l.pool_token(base, tokens), l.pool) == l.pool.bytes);
  RC_ASSERT(offset_in(l.pool_scales_of(base, l.max_rows, 0), l.pool_scales) == l.pool_scales.bytes);
  RC_ASSERT(offset_in(l.origin(base, tokens), l.origins) == l.origins.bytes);
  RC_ASSERT(offset_in(l.intermediate_token(base, tokens), l.intermediate) == l.intermediate.bytes);
  RC_ASSERT(offset_in(l.intermediate_scales_of(base, l.max_rows, 0), l.intermediate_scales) ==
            l.intermediate_scales.bytes);
  const Region* const symmetric[] = {&l.stop,    &l.ready,  &l.landed,       &l.arrived, &l.counts,
                                     &l.entries, &l.tokens, &l.token_scales, &l.combine};
  const Region* const own[] = {&l.control,      &l.dispatched,         &l.linear1,
                               &l.pool,         &l.pool_scales,        &l.origins,
                               &l.intermediate, &l.intermediate_scales};
  for (int i = 0; i + 1 < 9; ++i)
    RC_ASSERT(symmetric[i]->offset + symmetric[i]->bytes <= symmetric[i + 1]->offset);
  for (int i = 0; i + 1 < 8; ++i) RC_ASSERT(own[i]->offset + own[i]->bytes <= own[i + 1]->offset);
}

TEST(MoeLayout, CombineSlotsAreSlotMajor) {
  const MoeLayout l = checked(small()).value();
  const auto at = [&](std::uint32_t pair) {
    return offset_in(l.combine_row(address(), pair), l.combine) / 2;
  };
  EXPECT_EQ(at(0), 0);
  EXPECT_EQ(at(1), 100 * 1152);  // slot 1 of token 0
  EXPECT_EQ(at(3), 1152);        // slot 0 of token 1
}

TEST(MoeLayout, OffsetsBeyond32Bits) {
  MoeConfig c = small();
  c.capacity = std::int64_t{1} << 28;
  const MoeLayout l = checked(c).value();
  EXPECT_EQ(offset_in(l.combine_row(address(), 3u * ((1u << 28) - 1) + 2), l.combine),
            (std::int64_t{3} * (1 << 28) - 1) * 1152 * 2);
  c.hidden = 7168;
  EXPECT_TRUE(checked(c).ok());
}

TEST(MoeLayout, RowsHoldEverybodysTokens) {
  // Everything may go to one expert of one rank, or spread so that every expert has a partial row.
  MoeConfig c = small();
  const MoeLayout l = checked(c).value();
  EXPECT_GE(l.max_rows, (4 * 100 * 3 + c.block_m - 1) / c.block_m);
  EXPECT_GE(l.max_rows, l.experts_local);
}

TEST(MoeLayout, ShapesOfTheCases) {
  for (const std::int64_t hidden : {1152, 8192}) {
    for (const std::int64_t intermediate : {768, 4608, 6912}) {
      MoeConfig c = small();
      c.hidden = hidden;
      c.intermediate = intermediate;
      EXPECT_TRUE(checked(c).ok()) << hidden << " " << intermediate;
    }
  }
}

struct Bad {
  const char* field;
  void (*change)(MoeConfig&);
};

TEST(MoeLayout, WhatIsNotAllowedIsNamed) {
  const Bad table[] = {{"hidden", [](MoeConfig& c) { c.hidden = 1100; }},
                       {"hidden", [](MoeConfig& c) { c.hidden = 0; }},
                       {"intermediate", [](MoeConfig& c) { c.intermediate = 770; }},
                       {"experts", [](MoeConfig& c) { c.experts = 15; }},
                       {"topk", [](MoeConfig& c) { c.topk = 17; }},
                       {"topk", [](MoeConfig& c) { c.topk = 0; }},
                       {"ranks", [](MoeConfig& c) { c.ranks = 0; }},
                       {"workers", [](MoeConfig& c) { c.workers = 0; }},
                       {"block_m", [](MoeConfig& c) { c.block_m = -1; }},
                       {"block_n", [](MoeConfig& c) { c.block_n = 96; }},
                       {"capacity", [](MoeConfig& c) { c.capacity = -1; }},
                       {"capacity", [](MoeConfig& c) { c.capacity = std::int64_t{1} << 39; }},
                       {"weights", [](MoeConfig& c) { c.format = WeightFormat::kW4A8; }},
                       {"schedule", [](MoeConfig& c) { c.schedule.group = 0; }},
                       {"activation.alpha", [](MoeConfig& c) { c.activation.alpha = 1.702f; }},
                       {"activation.up_offset", [](MoeConfig& c) { c.activation.up_offset = 1; }},
                       {"activation.bias", [](MoeConfig& c) { c.activation.bias = true; }},
                       {"activation.clamp", [](MoeConfig& c) { c.activation.clamp = -1; }},
                       {"activation.clamp", [](MoeConfig& c) {
                          c.activation.clamp = std::numeric_limits<float>::quiet_NaN();
                        }}};
  for (const Bad& bad : table) {
    MoeConfig c = small();
    bad.change(c);
    const auto layout = checked(c);
    ASSERT_FALSE(layout.ok()) << bad.field;
    EXPECT_EQ(layout.error().field, bad.field);
    EXPECT_FALSE(layout.error().allowed.empty());
  }
  EXPECT_TRUE(checked(small()).ok());
}

TEST(MoeLayout, DifferencesBetweenRanksAreNamed) {
  const Bad table[] = {
      {"capacity", [](MoeConfig& c) { c.capacity = 101; }},
      {"hidden", [](MoeConfig& c) { c.hidden = 1280; }},
      {"schedule", [](MoeConfig& c) { c.schedule = schedule::MoeSchedule::interleaved(4); }},
      {"workers", [](MoeConfig& c) { c.workers = 6; }},
      {"dispatch", [](MoeConfig& c) { c.dispatch = MoeDispatch::kPerSlot; }}};
  for (const Bad& bad : table) {
    std::vector<MoeConfig> of_rank(4, small());
    EXPECT_TRUE(agreed(of_rank).ok());
    bad.change(of_rank[2]);
    const auto config = agreed(of_rank);
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().field, bad.field);
    EXPECT_NE(config.error().value.find("rank 2"), std::string::npos);
    EXPECT_EQ(config.error().value.find("rank 1"), std::string::npos);
  }
  std::vector<MoeConfig> leads(2, small());
  leads[0].schedule = schedule::MoeSchedule::interleaved(4);
  leads[1].schedule = schedule::MoeSchedule::interleaved(5);
  EXPECT_EQ(agreed(leads).error().field, "schedule");
  EXPECT_FALSE(agreed(std::vector<MoeConfig>{}).ok());
}

}  // namespace
}  // namespace xstage::layout
