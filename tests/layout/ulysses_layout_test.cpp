#include <gtest/gtest.h>

#include <limits>

#include "xstage/layout/check.hpp"

namespace xstage::layout {
namespace {

// Where a buffer might begin; only addresses are computed.
constexpr std::intptr_t kBase = 4096;
void* address() { return reinterpret_cast<void*>(kBase); }

UlyssesConfig small() {
  UlyssesConfig c;
  c.ranks = 4;
  c.batch = 2;
  c.heads = 30;
  c.kv_heads = 30;
  c.head_dim = 64;
  c.rows = 101;
  c.key_rows = 101;
  set_segments(c, sharded(101, 4));
  set_key_segments(c, sharded(101, 4));
  return c;
}

TEST(UlyssesLayout, SlotsHoldTheLargestRank) {
  const UlyssesLayout l = checked(small()).value();
  EXPECT_EQ(l.query_heads, 8);
  EXPECT_EQ(l.output_rows, 26);
  EXPECT_EQ(l.query.bytes, 2 * 2 * 101 * 8 * 64 * 2);
  const auto end = [](const void* p, const Region& r) {
    return reinterpret_cast<std::intptr_t>(p) - kBase - r.offset;
  };
  EXPECT_EQ(end(l.query_row(address(), 1, 8, 1, 100, 8), l.query), l.query.bytes);
  EXPECT_EQ(end(l.key_row(l.value, address(), 1, 8, 1, 100, 8), l.value), l.value.bytes);
  EXPECT_EQ(end(l.output_row(address(), 1, 26, 1, 25, 30), l.output), l.output.bytes);
  EXPECT_LE(l.query.offset + l.query.bytes, l.key.offset);
  EXPECT_LE(l.key.offset + l.key.bytes, l.value.offset);
  EXPECT_LE(l.value.offset + l.value.bytes, l.output.offset);
  EXPECT_LE(l.output.offset + l.output.bytes, l.symmetric_bytes);
}

TEST(UlyssesLayout, OutputInEitherOrder) {
  UlyssesConfig c = small();
  const auto at = [&](const UlyssesLayout& l, std::int64_t batch, std::int64_t row,
                      std::int64_t head) {
    return (reinterpret_cast<std::intptr_t>(l.output_row(address(), 0, 26, batch, row, head)) -
            kBase - l.output.offset) /
           2;
  };
  const UlyssesLayout rows_heads = checked(c).value();
  EXPECT_EQ(at(rows_heads, 0, 1, 0), 30 * 64);
  EXPECT_EQ(at(rows_heads, 0, 0, 1), 64);
  c.output_order = OutputOrder::kHeadsRows;
  const UlyssesLayout heads_rows = checked(c).value();
  EXPECT_EQ(at(heads_rows, 0, 1, 0), 64);
  EXPECT_EQ(at(heads_rows, 0, 0, 1), 26 * 64);
  EXPECT_EQ(at(heads_rows, 1, 0, 0), at(rows_heads, 1, 0, 0));
}

TEST(UlyssesLayout, MoreThan32BitsOfElements) {
  UlyssesConfig c = small();
  c.heads = c.kv_heads = 128;
  c.head_dim = 256;
  c.rows = c.key_rows = 1 << 20;
  set_segments(c, sharded(c.rows, 4));
  set_key_segments(c, sharded(c.rows, 4));
  const UlyssesLayout l = checked(c).value();
  EXPECT_EQ(l.query_slot, std::int64_t{2} * (1 << 20) * 32 * 256);
}

TEST(UlyssesLayout, WhatIsNotAllowedIsNamed) {
  struct Bad {
    const char* field;
    void (*change)(UlyssesConfig&);
  };
  const Bad table[] = {
      {"ring", [](UlyssesConfig& c) { c.ring = 2; }},
      {"kv_heads", [](UlyssesConfig& c) { c.kv_heads = 7; }},
      {"kv_heads", [](UlyssesConfig& c) { c.kv_heads = 2; }},
      {"head_dim", [](UlyssesConfig& c) { c.head_dim = 100; }},
      {"batch", [](UlyssesConfig& c) { c.batch = 0; }},
      {"rows", [](UlyssesConfig& c) { c.rows = 0; }},
      {"segments", [](UlyssesConfig& c) { c.rows = 102; }},
      {"segments", [](UlyssesConfig& c) { c.segment_count = 81; }},
      {"key_segments", [](UlyssesConfig& c) { c.key_segment_count = 0; }},
      {"workers", [](UlyssesConfig& c) { c.workers = 0; }},
      {"scale", [](UlyssesConfig& c) { c.scale = -1; }},
      {"scale", [](UlyssesConfig& c) { c.scale = std::numeric_limits<float>::quiet_NaN(); }}};
  for (const Bad& bad : table) {
    UlyssesConfig c = small();
    bad.change(c);
    const auto layout = checked(c);
    ASSERT_FALSE(layout.ok()) << bad.field;
    EXPECT_EQ(layout.error().field, bad.field);
  }
}

TEST(UlyssesLayout, FewerKeyHeadsThanRanksByChoiceOnly) {
  UlyssesConfig c = small();
  c.ranks = 16;
  c.heads = 32;
  c.kv_heads = 8;
  set_segments(c, sharded(101, 16));
  set_key_segments(c, sharded(101, 16));
  EXPECT_NE(checked(c).error().allowed.find("replicate_kv_heads"), std::string::npos);
  c.replicate_kv_heads = true;
  EXPECT_EQ(checked(c).value().key_heads, 1);
  c.ranks = 8;
  c.replicate_kv_heads = false;
  set_segments(c, sharded(101, 8));
  set_key_segments(c, sharded(101, 8));
  EXPECT_EQ(checked(c).value().query_heads, 4);
}

TEST(UlyssesLayout, DifferencesBetweenRanksAreNamed) {
  std::vector<UlyssesConfig> of_rank(4, small());
  EXPECT_TRUE(agreed(of_rank).ok());
  of_rank[3].segments[1].end += 1;
  EXPECT_EQ(agreed(of_rank).error().field, "segments");
  of_rank[3] = small();
  of_rank[1].order = schedule::UlyssesOrderKind::kRowMajor;
  EXPECT_EQ(agreed(of_rank).error().field, "order");
}

TEST(TensorView, WrongTensorsAreRefusedByName) {
  alignas(16) static std::uint16_t memory[4096];
  const TensorView wanted = TensorView::contiguous(nullptr, ScalarType::kBf16, 2, 4, 3, 64);
  const TensorView good = TensorView::contiguous(memory, ScalarType::kBf16, 2, 4, 3, 64);
  EXPECT_TRUE(check_view("query", good, wanted).ok());
  struct Bad {
    const char* field;
    void (*change)(TensorView&);
  };
  const Bad table[] = {{"query.device", [](TensorView& v) { v.device = DeviceKind::kCuda; }},
                       {"query.dtype", [](TensorView& v) { v.type = ScalarType::kFloat32; }},
                       {"query.requires_grad", [](TensorView& v) { v.requires_grad = true; }},
                       {"query.dim", [](TensorView& v) { v.dimensions = 3; }},
                       {"query.shape", [](TensorView& v) { v.shape[1] = 5; }},
                       {"query.data", [](TensorView& v) { v.data = nullptr; }},
                       {"query.data", [](TensorView& v) { v.data = memory + 1; }},
                       {"query.stride(3)", [](TensorView& v) { v.stride[3] = 2; }},
                       {"query.stride(1)", [](TensorView& v) { v.stride[1] = 193; }},
                       {"query.stride(2)", [](TensorView& v) { v.stride[2] = -64; }}};
  for (const Bad& bad : table) {
    TensorView view = good;
    bad.change(view);
    const auto result = check_view("query", view, wanted);
    ASSERT_FALSE(result.ok()) << bad.field;
    EXPECT_EQ(result.error().field, bad.field);
  }
}

}  // namespace
}  // namespace xstage::layout
