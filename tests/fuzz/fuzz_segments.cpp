// Tables of row segments and the sizes around them: what is accepted covers every row once and has
// a layout in which nothing overlaps.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "xstage/layout/check.hpp"

namespace {

using namespace xstage::layout;

void require(bool holds) {
  if (!holds) std::abort();
}

/// Numbers out of bytes: mostly small ones, and all 64 bits behind a byte of 255.
class Numbers {
 public:
  Numbers(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  std::int64_t next() {
    const std::uint8_t first = byte();
    if (first < 250) return first;
    std::int64_t value = 0;
    const std::size_t bytes = first == 255 ? 8 : first - 248;
    for (std::size_t i = 0; i < bytes; ++i)
      value = static_cast<std::int64_t>(static_cast<std::uint64_t>(value) << 8 | byte());
    return value;
  }
  /// A number of steps as a size, with an overflow that is defined.
  std::int64_t next_in(std::int64_t step) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(next()) *
                                     static_cast<std::uint64_t>(step));
  }
  std::int32_t small() { return static_cast<std::int32_t>(next()); }
  bool more() const { return left_ > 0; }

 private:
  std::uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  const std::uint8_t* data_;
  std::size_t left_;
};

void expect_every_row_once(const UlyssesConfig& c) {
  std::int64_t next = 0;
  for_each_piece(c.segments, c.segment_count, 0, c.rows, [&](const SegmentPiece& piece) {
    require(piece.begin == next && piece.end > piece.begin && piece.row >= 0);
    require(piece.rank == kAllRanks || (piece.rank >= 0 && piece.rank < c.ranks));
    next = piece.end;
  });
  require(next == c.rows);
}

void expect_every_head_once(const UlyssesConfig& c) {
  std::int64_t next = 0;
  for (std::int32_t rank = 0; rank < c.ranks; ++rank) {
    const HeadShare share = heads_of(c.heads, c.kv_heads, c.ranks, rank);
    require(share.query.begin == next && share.query.count >= 0);
    next += share.query.count;
    require(share.key.begin >= 0 && share.key.begin + share.key.count <= c.kv_heads);
  }
  require(next == c.heads);
}

void expect_apart(const Region* const* regions, int count, std::int64_t bytes) {
  std::int64_t end = 0;
  for (int i = 0; i < count; ++i) {
    require(regions[i]->offset >= end && regions[i]->bytes >= 0);
    end = regions[i]->offset + regions[i]->bytes;
  }
  require(end <= bytes);
}

void attention(Numbers& numbers) {
  UlyssesConfig c;
  c.ranks = numbers.small();
  c.ring = 1;
  c.batch = numbers.next();
  c.heads = numbers.next();
  c.kv_heads = numbers.next();
  c.head_dim = numbers.next_in(8);
  c.rows = numbers.next();
  c.key_rows = c.rows;
  c.replicate_kv_heads = numbers.next() % 2 == 1;
  std::vector<RowSegment> segments;
  while (numbers.more() && segments.size() < 2 * UlyssesConfig::kMaxSegments)
    segments.push_back({numbers.next(), numbers.next(), numbers.small() - 1, numbers.next()});
  set_segments(c, segments);
  set_key_segments(c, segments);
  const auto layout = checked(c);
  if (!layout) {
    require(!layout.error().field.empty() && !layout.error().message().empty());
    return;
  }
  expect_every_row_once(c);
  expect_every_head_once(c);
  const Region* const regions[] = {&layout->stop,  &layout->exchanged, &layout->output_arrived,
                                   &layout->query, &layout->key,       &layout->value,
                                   &layout->output};
  expect_apart(regions, 7, layout->symmetric_bytes);
}

void moe(Numbers& numbers) {
  MoeConfig c;
  c.ranks = numbers.small();
  c.topk = numbers.small();
  c.experts = numbers.next();
  c.hidden = numbers.next_in(128);
  c.intermediate = numbers.next_in(128);
  c.capacity = numbers.next();
  c.block_m = numbers.small();
  c.workers = numbers.small();
  c.format = numbers.next() % 2 ? xstage::WeightFormat::kBf16 : xstage::WeightFormat::kW8A8;
  const auto layout = checked(c);
  if (!layout) {
    require(!layout.error().field.empty() && !layout.error().message().empty());
    return;
  }
  const MoeLayout& l = *layout;
  const Region* const symmetric[] = {&l.stop,    &l.ready,  &l.arrived,      &l.counts,
                                     &l.entries, &l.tokens, &l.token_scales, &l.combine};
  const Region* const own[] = {&l.control,      &l.dispatched,         &l.linear1,
                               &l.pool,         &l.pool_scales,        &l.origins,
                               &l.intermediate, &l.intermediate_scales};
  expect_apart(symmetric, 8, l.symmetric_bytes);
  expect_apart(own, 8, l.workspace_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Numbers numbers(data, size);
  if (numbers.next() % 2 == 0)
    attention(numbers);
  else
    moe(numbers);
  return 0;
}
