#include <algorithm>

#include "xstage/layout/check.hpp"

namespace xstage::layout {

std::vector<RowSegment> sharded(std::int64_t rows, std::int32_t ranks) {
  return sharded_with_text({0, TextRows::kNone}, rows, ranks);
}

std::vector<RowSegment> sharded_with_text(const Text& text, std::int64_t rows, std::int32_t ranks) {
  std::vector<RowSegment> out;
  const bool before = text.place == TextRows::kBefore || text.place == TextRows::kBeforeOnAll;
  const bool on_all = text.place == TextRows::kBeforeOnAll || text.place == TextRows::kAfterOnAll;
  const std::int64_t text_rows = text.place == TextRows::kNone ? 0 : text.rows;
  const auto text_share = [&](std::int32_t rank) {
    return on_all ? text_rows : share_of(text_rows, ranks, rank).count;
  };
  const auto add_text = [&](std::int64_t at) {
    if (on_all && text_rows > 0) out.push_back({at, at + text_rows, kAllRanks, 0});
    for (std::int32_t rank = 0; !on_all && rank < ranks; ++rank) {
      const Share share = share_of(text_rows, ranks, rank);
      const std::int64_t row = before ? 0 : share_of(rows, ranks, rank).count;
      if (share.count > 0)
        out.push_back({at + share.begin, at + share.begin + share.count, rank, row});
    }
  };
  const std::int64_t first = before ? text_rows : 0;
  if (before) add_text(0);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const Share share = share_of(rows, ranks, rank);
    const std::int64_t row = before || on_all ? text_share(rank) : 0;
    if (share.count > 0)
      out.push_back({first + share.begin, first + share.begin + share.count, rank, row});
  }
  if (!before) add_text(rows);
  return out;
}

void set_segments(UlyssesConfig& config, const std::vector<RowSegment>& segments) {
  config.segment_count = static_cast<std::int32_t>(segments.size());
  std::copy_n(segments.begin(), std::min<std::size_t>(segments.size(), UlyssesConfig::kMaxSegments),
              config.segments);
}

void set_key_segments(UlyssesConfig& config, const std::vector<RowSegment>& segments) {
  config.key_segment_count = static_cast<std::int32_t>(segments.size());
  std::copy_n(segments.begin(), std::min<std::size_t>(segments.size(), UlyssesConfig::kMaxSegments),
              config.key_segments);
}

}  // namespace xstage::layout
