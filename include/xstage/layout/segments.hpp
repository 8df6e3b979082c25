// Which rank owns which rows of a sequence, as a short table, and how heads are split over ranks.
//
// Even and uneven shards, text rows before or after the image, and rows that every rank wants are
// all rows of one table; a kernel reads nothing else.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"

namespace xstage::layout {

/// Destination of rows that every rank wants.
inline constexpr std::int32_t kAllRanks = -1;

/// Rows [begin, end) of the whole sequence go to `rank` (or kAllRanks), to its rows from `row` on.
struct RowSegment {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int32_t rank = 0;
  std::int64_t row = 0;
};

/// A piece of a tile that lies within one segment.
struct SegmentPiece {
  std::int64_t begin = 0;  ///< in the sequence
  std::int64_t end = 0;
  std::int32_t rank = 0;
  std::int64_t row = 0;  ///< at the destination, of `begin`
};

/// The pieces of rows [begin, end), in order: visit(SegmentPiece). A straddling tile has several.
XSTAGE_HD_CALLS
template <class Visit>
XSTAGE_HD constexpr void for_each_piece(const RowSegment* segments, std::int32_t count,
                                        std::int64_t begin, std::int64_t end, Visit&& visit) {
  for (std::int32_t i = 0; i < count; ++i) {
    const RowSegment& s = segments[i];
    if (s.end <= begin || s.begin >= end) continue;
    const std::int64_t from = s.begin > begin ? s.begin : begin;
    const std::int64_t to = s.end < end ? s.end : end;
    visit(SegmentPiece{from, to, s.rank, s.row + (from - s.begin)});
  }
}

/// Rows of the table that `rank` receives.
XSTAGE_HD constexpr std::int64_t rows_received(const RowSegment* segments, std::int32_t count,
                                               std::int32_t rank) {
  std::int64_t rows = 0;
  for (std::int32_t i = 0; i < count; ++i)
    if (segments[i].rank == rank || segments[i].rank == kAllRanks)
      rows += segments[i].end - segments[i].begin;
  return rows;
}

/// Consecutive items of `total` that part `part` of `parts` has; the first total % parts parts have
/// one more.
struct Share {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

XSTAGE_HD constexpr Share share_of(std::int64_t total, std::int32_t parts, std::int32_t part) {
  const std::int64_t each = total / parts;
  const std::int64_t more = total % parts;
  return {each * part + (part < more ? part : more), each + (part < more ? 1 : 0)};
}

/// The heads of one rank: query heads, and the key and value heads that they read.
struct HeadShare {
  Share query;
  Share key;
};

/// Where key and value heads are at least as many as ranks, each is on one rank and its query heads
/// with it; the counts may differ by one. With fewer of them the query heads are split, and a rank
/// has every key head that its query heads read (so some key heads are on several ranks).
XSTAGE_HD constexpr HeadShare heads_of(std::int64_t heads, std::int64_t kv_heads,
                                       std::int32_t ranks, std::int32_t rank) {
  const std::int64_t group = heads / kv_heads;
  if (kv_heads >= ranks) {
    const Share key = share_of(kv_heads, ranks, rank);
    return {{key.begin * group, key.count * group}, key};
  }
  const Share query = share_of(heads, ranks, rank);
  if (query.count == 0) return {query, {0, 0}};
  const std::int64_t first = query.begin / group;
  const std::int64_t last = (query.begin + query.count - 1) / group;
  return {query, {first, last - first + 1}};
}

}  // namespace xstage::layout
