#include "xstage/schedule/ulysses.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>
#include <vector>

namespace xstage::schedule {
namespace {

using Kind = UlyssesOrderKind;

constexpr std::int64_t first_block(Kind kind) {
  const RowRange own[] = {{0, 256}};
  StaticTiles<UlyssesOrder> tiles(UlyssesOrder(kind, 2, 512, 128, own, 1), 0, 1);
  UlyssesTile tile;
  return tiles.next(tile) ? tile.block : -1;
}
static_assert(first_block(Kind::kRemoteFirst) == 2);
static_assert(first_block(Kind::kRowMajor) == 0);

std::vector<UlyssesTile> all(const UlyssesOrder& order) {
  std::vector<UlyssesTile> tiles;
  StaticTiles<UlyssesOrder> walk(order, 0, 1);
  for (UlyssesTile tile; walk.next(tile);) tiles.push_back(tile);
  return tiles;
}

/// Every tile once, positions consecutive, `local` right; remote-first: no remote tile after a
/// local.
std::string check(Kind kind, std::int64_t heads, std::int64_t rows, std::int32_t block_m,
                  const std::vector<RowRange>& own) {
  const UlyssesOrder order(kind, heads, rows, block_m, own.data(),
                           static_cast<std::int32_t>(own.size()));
  const auto tiles = all(order);
  const std::int64_t blocks = (rows + block_m - 1) / block_m;
  if (tiles.size() != static_cast<std::size_t>(heads * blocks) || tiles.size() != order.size())
    return "wrong number of tiles";
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  std::uint64_t remote = 0;
  bool local_seen = false;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const UlyssesTile& tile = tiles[i];
    if (tile.position != i) return "wrong position";
    if (tile.head < 0 || tile.head >= heads || tile.block < 0 || tile.block >= blocks)
      return "no such tile";
    if (!seen.emplace(tile.head, tile.block).second) return "a tile comes twice";
    const std::int64_t begin = tile.block * block_m, end = std::min(rows, begin + block_m);
    bool local = false;
    for (const RowRange& range : own) local = local || (range.begin <= begin && end <= range.end);
    if (local != tile.local) return "local is wrong";
    if (!local) ++remote;
    local_seen = local_seen || local;
    if (kind == Kind::kRemoteFirst && local_seen && !local) return "remote after local";
    if (kind == Kind::kRowMajor && (tile.head != static_cast<std::int64_t>(i) / blocks ||
                                    tile.block != static_cast<std::int64_t>(i) % blocks))
      return "not row-major";
  }
  return remote == order.remote_tiles() ? "" : "remote_tiles() is wrong";
}

TEST(UlyssesOrder, ExhaustiveOverSmallSequences) {
  for (Kind kind : {Kind::kRemoteFirst, Kind::kRowMajor})
    for (std::int64_t rows = 0; rows <= 14; ++rows)
      for (std::int32_t block = 1; block <= 5; ++block)
        for (std::int64_t begin = 0; begin <= rows; ++begin)
          for (std::int64_t end = begin; end <= rows; ++end)
            for (std::int64_t text = end; text <= rows; text += 2)
              for (std::int64_t heads : {0, 1, 3})
                ASSERT_EQ(check(kind, heads, rows, block, {{begin, end}, {text, rows}}), "")
                    << rows << " rows of " << block << ", own " << begin << " to " << end
                    << " and from " << text;
}

TEST(UlyssesOrder, RandomLong) {
  EXPECT_TRUE(rc::check("every tile once, remote first", [] {
    const auto rows = *rc::gen::resize(1000, rc::gen::inRange<std::int64_t>(1, 60000));
    const auto ranks = *rc::gen::inRange<std::int64_t>(1, 73);
    const auto rank = *rc::gen::inRange<std::int64_t>(0, ranks);
    const auto kind = *rc::gen::element(Kind::kRemoteFirst, Kind::kRowMajor);
    const std::vector<RowRange> own{{rows * rank / ranks, rows * (rank + 1) / ranks}};
    RC_ASSERT(check(kind, *rc::gen::inRange(1, 13), rows, *rc::gen::element(64, 128, 192), own) ==
              "");
  }));
}

TEST(UlyssesOrder, AnyStrideSeesTheSameTiles) {
  const std::vector<RowRange> own{{0, 700}, {2000, 2600}};
  const UlyssesOrder order(Kind::kRemoteFirst, 5, 4000, 128, own.data(), 2);
  const auto tiles = all(order);
  for (std::uint32_t workers = 1; workers <= 132; ++workers)
    for (std::uint32_t worker = 0; worker < workers; ++worker) {
      StaticTiles walk(order, worker, workers);
      std::uint64_t position = worker;
      for (UlyssesTile tile; walk.next(tile); position += workers) {
        ASSERT_EQ(tile.position, position);
        ASSERT_EQ(tile.head, tiles[position].head);
        ASSERT_EQ(tile.block, tiles[position].block);
      }
      ASSERT_GE(position, tiles.size());
    }
}

TEST(UlyssesOrder, RanksSendToDifferentPeersAtTheSameMoment) {
  constexpr std::int64_t kRanks = 8, kRows = 8 * 1024;
  for (std::uint64_t at = 0; at < 8; ++at) {
    std::set<std::int64_t> targets;
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      const RowRange own{rank * 1024, (rank + 1) * 1024};
      UlyssesOrder order(Kind::kRemoteFirst, 4, kRows, 128, &own, 1);
      ASSERT_TRUE(order.advance(at));
      targets.insert(order.tile().block / 8);
    }
    EXPECT_EQ(targets.size(), 8U);
  }
}

}  // namespace
}  // namespace xstage::schedule
