// Ulysses attention on threads: right, the same bits wherever rows land, and the users' cases.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/numbers.hpp"
#include "cpu/ulysses_data.hpp"
#include "support/sanitizers.hpp"

namespace xstage::cpu {
namespace {

using layout::UlyssesConfig;

UlyssesConfig small(std::int32_t ranks, std::int64_t rows = 101) {
  UlyssesConfig c;
  c.ranks = ranks;
  c.heads = c.kv_heads = 8;
  c.head_dim = 32;
  c.rows = c.key_rows = rows;
  c.block_m = 16;
  c.block_n = 24;
  c.workers = 3;
  layout::set_segments(c, layout::sharded(rows, ranks));
  layout::set_key_segments(c, layout::sharded(rows, ranks));
  return c;
}

UlyssesGroup group_of(const UlyssesConfig& c) {
  auto group =
      UlyssesGroup::create(std::vector<UlyssesConfig>(static_cast<std::size_t>(c.ranks), c));
  EXPECT_TRUE(group.ok()) << group.error().message();
  auto out = std::move(group).value();
  out.poison();
  return out;
}

std::vector<UlyssesOutput> check(const UlyssesConfig& c, double size = 1,
                                 const std::vector<std::int64_t>& key_length = {}) {
  const auto data = UlyssesData::random(c, 5, size);
  const auto outputs = group_of(c).launch(data.inputs, key_length).value();
  const UlyssesErrors errors = compare_with_reference(data, outputs, key_length);
  EXPECT_TRUE(errors.finite);
  EXPECT_TRUE(errors.fused_equals_local);
  EXPECT_LE(errors.error, UlyssesErrors::kFactor * errors.bf16_error + 1e-9);
  EXPECT_LE(errors.log_sum_exp, 1e-3);
  EXPECT_EQ(errors.rows_checked, c.rows * c.heads * c.batch);
  return outputs;
}

TEST(Ulysses, AgreesWithDoublePrecisionOnOneToEightRanks) {
  for (const std::int32_t ranks : {1, 2, 3, 4, 8})
    for (const auto order :
         {schedule::UlyssesOrderKind::kRemoteFirst, schedule::UlyssesOrderKind::kRowMajor}) {
      UlyssesConfig c = small(ranks);
      c.order = order;
      check(c);
    }
}

TEST(Ulysses, LargeLogits) { check(small(2), 8); }

TEST(Ulysses, SameBitsForAnyNumberOfRanksAndWorkersLaunchAfterLaunch) {
  const auto gathered = [](const UlyssesConfig& c, const std::vector<UlyssesOutput>& outputs) {
    // Even shards in order: the outputs behind each other are the whole sequence (batch 1).
    std::vector<std::uint16_t> all;
    for (const auto& output : outputs)
      all.insert(all.end(), output.output.begin(), output.output.end());
    EXPECT_EQ(all.size(), static_cast<std::size_t>(c.rows * c.heads * c.head_dim));
    return all;
  };
  const auto expected = gathered(small(1), check(small(1)));
  constexpr int kRuns = test::kSlowness > 1 ? 3 : 20;
  for (const std::int32_t ranks : {1, 2, 3, 4, 8})
    for (const std::int32_t workers : {1, 2, 5})
      for (const auto order :
           {schedule::UlyssesOrderKind::kRemoteFirst, schedule::UlyssesOrderKind::kRowMajor}) {
        UlyssesConfig c = small(ranks);
        c.workers = workers;
        c.order = order;
        const auto data = UlyssesData::random(c, 5);
        auto group = group_of(c);
        for (int run = 0; run < kRuns; ++run) {
          ASSERT_EQ(gathered(c, group.launch(data.inputs).value()), expected);
          group.poison();
        }
      }
}

// U1
TEST(Ulysses, SequenceThatDoesNotDivide) {
  for (const std::int64_t rows : {1, 7, 33, 129}) {
    check(small(4, rows));
  }
}

// U2
TEST(Ulysses, HeadsThatDoNotDivide) {
  for (const auto& [heads, ranks] : {std::pair{30, 4}, {12, 8}, {38, 4}, {28, 8}, {3, 4}}) {
    UlyssesConfig c = small(ranks, 40);
    c.heads = c.kv_heads = heads;
    c.head_dim = 16;
    c.replicate_kv_heads = heads < ranks;  // 3 heads on 4 ranks: one rank has none
    check(c);
  }
}

// U3
TEST(Ulysses, PaddedKeysGetNoWeight) {
  UlyssesConfig c = small(3);
  c.batch = 2;
  const std::vector<std::int64_t> lengths = {101, 70};
  check(c, 1, lengths);
  // The same as the run whose keys end there.
  auto data = UlyssesData::random(c, 5);
  const auto padded = group_of(c).launch(data.inputs, {70, 70}).value();
  UlyssesConfig shorter = c;
  shorter.key_rows = 70;
  layout::set_key_segments(shorter, layout::sharded(70, 3));
  UlyssesData cut = UlyssesData::random(shorter, 5);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    // Keys and values of the long run, cut off.
    const layout::Share share = layout::share_of(70, 3, static_cast<std::int32_t>(rank));
    for (int which : {1, 2})
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t row = 0; row < share.count; ++row)
          for (std::int64_t h = 0; h < 8; ++h) {
            const layout::TensorView& view =
                which == 1 ? cut.inputs[rank].key : cut.inputs[rank].value;
            std::copy_n(data.key_row(which == 1 ? data.key : data.value, b, share.begin + row, h),
                        32, static_cast<std::uint16_t*>(view.data) + view.index(b, row, h));
          }
    cut.inputs[rank].query = data.inputs[rank].query;
  }
  const auto unpadded = group_of(shorter).launch(cut.inputs).value();
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(padded[rank].output, unpadded[rank].output);
}

// U4
TEST(Ulysses, TextBeforeAfterAndOnAllRanks) {
  for (const auto place : {layout::TextRows::kBefore, layout::TextRows::kAfter,
                           layout::TextRows::kBeforeOnAll, layout::TextRows::kAfterOnAll}) {
    UlyssesConfig c = small(3);
    const auto segments = layout::sharded_with_text({13, place}, 101 - 13, 3);
    layout::set_segments(c, segments);
    layout::set_key_segments(c, segments);
    const auto outputs = check(c);
    if (place != layout::TextRows::kBeforeOnAll && place != layout::TextRows::kAfterOnAll) continue;
    const std::ptrdiff_t text = 13 * c.heads * c.head_dim;
    for (const auto& output : outputs)
      EXPECT_TRUE(std::equal(output.output.begin(), output.output.begin() + text,
                             outputs[0].output.begin()));
  }
}

// U5
TEST(Ulysses, ReplicatedKeysDoNotTravel) {
  UlyssesConfig c = small(4);
  c.key_rows = 23;
  c.keys_replicated = true;
  c.key_segment_count = 0;
  check(c);
}

// U6
TEST(Ulysses, GroupedQueries) {
  UlyssesConfig c = small(8, 40);
  c.heads = 32;
  c.kv_heads = 8;
  c.head_dim = 16;
  check(c);
  c = small(16, 40);
  c.heads = 32;
  c.kv_heads = 8;
  c.head_dim = 16;
  const auto refused = UlyssesGroup::create(std::vector<UlyssesConfig>(16, c));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().field, "kv_heads");
  c.replicate_kv_heads = true;
  check(c);
}

// U7
TEST(Ulysses, RingDegreeIsRefusedWithTheReason) {
  UlyssesConfig c = small(2);
  c.ring = 2;
  const auto refused = UlyssesGroup::create({c, c});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().field, "ring");
  EXPECT_NE(refused.error().allowed.find("log-sum-exp"), std::string::npos);
}

// U8
TEST(Ulysses, FullyMaskedRowsAreZero) {
  UlyssesConfig c = small(3);
  c.batch = 2;
  const auto outputs = check(c, 1, {0, 101});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto half = static_cast<std::ptrdiff_t>(outputs[rank].output.size() / 2);
    EXPECT_TRUE(std::all_of(outputs[rank].output.begin(), outputs[rank].output.begin() + half,
                            [](std::uint16_t value) { return value == 0; }));
    EXPECT_TRUE(std::isinf(outputs[rank].log_sum_exp[0]) && outputs[rank].log_sum_exp[0] < 0);
  }
  EXPECT_FALSE(group_of(c).launch(UlyssesData::random(c, 5).inputs, {0, 102}).ok());
}

// U13
TEST(Ulysses, ScaleBatchAndStrides) {
  UlyssesConfig c = small(3);
  c.scale = 0.3f;
  c.batch = 2;
  c.output_order = layout::OutputOrder::kHeadsRows;
  check(c);
  // Inputs stored as [batch, heads, rows, head_dim] are views with other strides.
  const auto data = UlyssesData::random(c, 5);
  const auto expected = group_of(c).launch(data.inputs).value();
  auto inputs = data.inputs;
  std::vector<std::vector<std::uint16_t>> kept;
  for (auto& input : inputs)
    for (layout::TensorView* view : {&input.query, &input.key, &input.value}) {
      layout::TensorView other = *view;
      other.stride[1] = c.head_dim;
      other.stride[2] = view->shape[1] * c.head_dim;
      std::vector<std::uint16_t> memory(static_cast<std::size_t>(view->shape[0] * view->stride[0]));
      for (std::int64_t b = 0; b < view->shape[0]; ++b)
        for (std::int64_t r = 0; r < view->shape[1]; ++r)
          for (std::int64_t h = 0; h < view->shape[2]; ++h)
            std::copy_n(static_cast<const std::uint16_t*>(view->data) + view->index(b, r, h),
                        c.head_dim, memory.data() + other.index(b, r, h));
      other.data = memory.data();
      kept.push_back(std::move(memory));
      *view = other;
    }
  const auto strided = group_of(c).launch(inputs).value();
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(strided[rank].output, expected[rank].output);
  inputs[1].key.stride[1] += 1;
  const auto refused = group_of(c).launch(inputs);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().field, "rank 1 key.stride(1)");
}

// U15
TEST(Ulysses, WrongTensorsAreNamed) {
  const UlyssesConfig c = small(2);
  const auto data = UlyssesData::random(c, 5);
  struct Bad {
    const char* field;
    void (*change)(UlyssesInput&);
  };
  const Bad table[] = {
      {"rank 1 query.device", [](UlyssesInput& i) { i.query.device = layout::DeviceKind::kCuda; }},
      {"rank 1 key.dtype", [](UlyssesInput& i) { i.key.type = layout::ScalarType::kFp16; }},
      {"rank 1 value.dim", [](UlyssesInput& i) { i.value.dimensions = 3; }},
      {"rank 1 value.shape", [](UlyssesInput& i) { i.value.shape[2] = 7; }},
      {"rank 1 query.requires_grad", [](UlyssesInput& i) { i.query.requires_grad = true; }}};
  for (const Bad& bad : table) {
    auto inputs = data.inputs;
    bad.change(inputs[1]);
    const auto refused = group_of(c).launch(inputs);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().field, bad.field);
    EXPECT_FALSE(refused.error().allowed.empty());
  }
}

TEST(Ulysses, ARankThatStopsIsNamedAndTheNextLaunchWorks) {
  const UlyssesConfig c = small(3);
  const auto data = UlyssesData::random(c, 5);
  auto group = group_of(c);
  const auto expected = group.launch(data.inputs).value();
  for (const auto step : {UlyssesStep::kExchange, UlyssesStep::kAttention}) {
    UlyssesLaunchOptions options;
    options.stopped_rank = 1;
    options.stop_before = step;
    options.limit_ns = options.first_limit_ns = std::uint64_t{1000000000} * test::kSlowness;
    const auto result = group.launch(data.inputs, {}, options);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().kind, ErrorKind::kTimeout);
    EXPECT_NE(result.error().what.find("from rank 1"), std::string::npos) << result.error().what;
    const auto again = group.launch(data.inputs).value();
    for (std::size_t rank = 0; rank < 3; ++rank)
      EXPECT_EQ(again[rank].output, expected[rank].output);
  }
}

}  // namespace
}  // namespace xstage::cpu
