#include "xstage/layout/segments.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "xstage/layout/check.hpp"

namespace xstage::layout {
namespace {

RC_GTEST_PROP(Segments, BuiltTablesCoverEveryRowAndEveryDestination, ()) {
  const auto ranks = *rc::gen::inRange(1, 9);
  const std::int64_t rows = *rc::gen::inRange(1, 200);
  Text text;
  text.place = *rc::gen::element(TextRows::kNone, TextRows::kBefore, TextRows::kAfter,
                                 TextRows::kBeforeOnAll, TextRows::kAfterOnAll);
  text.rows = text.place == TextRows::kNone ? 0 : *rc::gen::inRange(0, 40);
  const auto segments = sharded_with_text(text, rows, ranks);
  const auto received = check_segments(segments, rows + text.rows, ranks);
  RC_ASSERT(received.ok());
  for (std::int32_t rank = 0; rank < ranks; ++rank)
    RC_ASSERT((*received)[static_cast<std::size_t>(rank)] ==
              rows_received(segments.data(), static_cast<std::int32_t>(segments.size()), rank));
  // Pieces of any tiling are the rows themselves, once each, in order.
  const std::int64_t tile = *rc::gen::inRange(1, 70);
  std::int64_t next = 0;
  for (std::int64_t begin = 0; begin < rows + text.rows; begin += tile)
    for_each_piece(segments.data(), static_cast<std::int32_t>(segments.size()), begin,
                   std::min(begin + tile, rows + text.rows), [&](const SegmentPiece& piece) {
                     RC_ASSERT(piece.begin == next && piece.end > piece.begin);
                     next = piece.end;
                   });
  RC_ASSERT(next == rows + text.rows);
}

TEST(Segments, UnevenShardsOfTheCases) {
  const auto wan = sharded(57826, 4);
  EXPECT_EQ(wan[0].end - wan[0].begin, 14457);
  EXPECT_EQ(wan[3].end - wan[3].begin, 14456);
  EXPECT_EQ(sharded(32760, 2)[1].begin, 16380);
}

TEST(Segments, BadTablesAreNamed) {
  const std::vector<RowSegment> bad[] = {{},
                                         {{0, 5, 0, 0}},
                                         {{0, 5, 0, 0}, {6, 10, 1, 0}},
                                         {{0, 5, 0, 0}, {4, 10, 1, 0}},
                                         {{0, 5, 0, 0}, {5, 10, 2, 0}},
                                         {{0, 5, 0, 0}, {5, 10, -2, 0}},
                                         {{0, 5, 0, 0}, {5, 10, 0, 4}},
                                         {{0, 5, 0, 0}, {5, 10, 0, 6}},
                                         {{0, 5, 0, 1}, {5, 10, 1, 0}},
                                         {{0, 5, kAllRanks, 0}, {5, 10, 1, 0}},
                                         {{0, 5, 0, 0}, {5, 12, 1, 0}},
                                         {{0, 5, 0, std::int64_t{1} << 62}, {5, 10, 1, 0}},
                                         {{0, 0, 0, 0}, {0, 10, 1, 0}}};
  for (const auto& segments : bad) {
    const auto result = check_segments(segments, 10, 2);
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().field.find("segments"), std::string::npos);
  }
}

RC_GTEST_PROP(Heads, EveryQueryHeadOnceAndItsKeyHeadWithIt, ()) {
  const auto ranks = *rc::gen::inRange(1, 17);
  const std::int64_t kv = *rc::gen::inRange(1, 40);
  const std::int64_t group = *rc::gen::inRange(1, 9);
  std::int64_t next = 0, most = 0, least = kv * group;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const HeadShare share = heads_of(kv * group, kv, ranks, rank);
    RC_ASSERT(share.query.begin == next || share.query.count == 0);
    next += share.query.count;
    most = std::max(most, share.query.count);
    least = std::min(least, share.query.count);
    for (std::int64_t q = share.query.begin; q < share.query.begin + share.query.count; ++q)
      RC_ASSERT(q / group >= share.key.begin && q / group < share.key.begin + share.key.count);
  }
  RC_ASSERT(next == kv * group);
  RC_ASSERT(most - least <= (kv >= ranks ? group : 1));
}

TEST(Heads, CountsOfTheCases) {
  const auto counts = [](std::int64_t heads, std::int32_t ranks) {
    std::vector<std::int64_t> out;
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      out.push_back(heads_of(heads, heads, ranks, rank).query.count);
    return out;
  };
  EXPECT_EQ(counts(30, 4), (std::vector<std::int64_t>{8, 8, 7, 7}));
  EXPECT_EQ(counts(12, 8), (std::vector<std::int64_t>{2, 2, 2, 2, 1, 1, 1, 1}));
  EXPECT_EQ(counts(38, 4), (std::vector<std::int64_t>{10, 10, 9, 9}));
}

}  // namespace
}  // namespace xstage::layout
