// The tile order of Ulysses attention whose output tiles go straight to the rank that owns their
// rows.
//
// A tile is one block of BLOCK_M query rows of one (batch entry, local head). In row-major order
// heads follow each other and blocks run through the sequence. In remote-first order all tiles that
// another rank owns (or shares) come first and this rank's own tiles last, so that the tail of the
// kernel stores locally and nothing of it has to cross the link. Remote blocks start behind this
// rank's own rows and wrap around: at every moment the ranks send to different peers, each to its
// next neighbours first, and no rank is everybody's target.
//
// The order is a pure function of sizes and of this rank's rows; workers share it as in
// `workers.hpp`. Cost of a step: two multiplications, no division.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"
#include "xstage/schedule/fast_divisor.hpp"
#include "xstage/schedule/workers.hpp"

namespace xstage::schedule {

enum class UlyssesOrderKind : std::uint8_t { kRemoteFirst, kRowMajor };

/// Query rows [begin, end) of the whole sequence whose outputs stay on this rank alone.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// One tile of attention output.
struct UlyssesTile {
  std::uint64_t position = 0;  ///< in the order
  std::int64_t head = 0;       ///< batch entry · local heads + local head
  std::int64_t block = 0;      ///< query block: rows block·BLOCK_M …
  bool local = false;          ///< all its rows belong to this rank alone (known in either order)
};

/// A cursor over the order of one rank's tiles.
class UlyssesOrder {
 public:
  /// Ranges of own rows that one order can hold: image and text shards, with room to spare.
  static constexpr std::int32_t kMaxRanges = 4;

  constexpr UlyssesOrder() = default;

  /// `heads` = batch · local heads; `rows` of the sequence; `block_m` rows a tile, at least 1.
  /// `own`: up to kMaxRanges ranges of own rows, ascending and disjoint. A tile that lies only
  /// partly in them counts as remote, and so do rows that are wanted on all ranks.
  XSTAGE_HD constexpr UlyssesOrder(UlyssesOrderKind kind, std::int64_t heads, std::int64_t rows,
                                   std::int32_t block_m, const RowRange* own, std::int32_t ranges)
      : kind_(kind), heads_(heads > 0 ? heads : 0) {
    blocks_ = rows > 0 ? (rows + block_m - 1) / block_m : 0;
    if (ranges > kMaxRanges) ranges = kMaxRanges;
    std::int64_t largest = 0;
    std::int64_t local = 0;
    for (std::int32_t i = 0; i < ranges; ++i) {
      RowRange blocks;
      blocks.begin = (own[i].begin + block_m - 1) / block_m;
      blocks.end = own[i].end >= rows ? blocks_ : own[i].end / block_m;
      if (blocks.begin >= blocks.end) continue;
      local += blocks.end - blocks.begin;
      own_[ranges_++] = blocks;
      if (blocks.end - blocks.begin > largest) {
        largest = blocks.end - blocks.begin;
        first_remote_ = blocks.end - local;  // remote blocks begin behind the largest own range
      }
    }
    remote_ = blocks_ - local;
    section_ = begin_section(kind_ == UlyssesOrderKind::kRowMajor ? blocks_ : remote_);
  }

  /// Tiles in all, and those of them that come before this rank's own.
  XSTAGE_HD constexpr std::uint64_t size() const {
    return static_cast<std::uint64_t>(heads_) * static_cast<std::uint64_t>(blocks_);
  }
  XSTAGE_HD constexpr std::uint64_t remote_tiles() const {
    return static_cast<std::uint64_t>(heads_) * static_cast<std::uint64_t>(remote_);
  }

  /// For StaticTiles: all tiles are alike, nothing to even out.
  XSTAGE_HD constexpr std::uint32_t rotation(std::uint32_t /*workers*/) const { return 0; }

  /// Moves `delta` positions forward. False once past the last tile.
  XSTAGE_HD constexpr bool advance(std::uint64_t delta) {
    while (true) {
      const std::uint64_t heads = section_.by_blocks.quotient(delta);
      std::int64_t index =
          index_ + static_cast<std::int64_t>(delta - heads * section_.by_blocks.divisor());
      std::int64_t head = head_ + static_cast<std::int64_t>(heads);
      if (index >= section_.blocks) {
        index -= section_.blocks;
        ++head;
      }
      if (head < heads_ && section_.blocks > 0) {
        position_ += delta;
        head_ = head;
        index_ = index;
        return true;
      }
      if (own_section_ || kind_ == UlyssesOrderKind::kRowMajor) {
        head_ = heads_;  // past the end it stays
        return false;
      }
      const auto left = static_cast<std::uint64_t>((heads_ - head_) * section_.blocks - index_);
      position_ += left;
      delta -= left;
      head_ = 0;
      index_ = 0;
      own_section_ = true;
      section_ = begin_section(blocks_ - remote_);
    }
  }

  /// The tile at the cursor. Only after advance() returned true.
  XSTAGE_HD constexpr UlyssesTile tile() const {
    UlyssesTile tile;
    tile.position = position_;
    tile.head = head_;
    tile.block = block();
    tile.local = is_local(tile.block);
    return tile;
  }

 private:
  /// Consecutive positions: for each head the same number of blocks.
  struct Section {
    std::int64_t blocks = 0;
    FastDivisor by_blocks;
  };

  XSTAGE_HD static constexpr Section begin_section(std::int64_t blocks) {
    return {blocks, FastDivisor(static_cast<std::uint32_t>(blocks > 0 ? blocks : 1))};
  }

  // The loops run to kMaxRanges, unused ranges being empty, so that a kernel keeps them in
  // registers.

  XSTAGE_HD constexpr std::int64_t block() const {
    std::int64_t block = index_;
    if (kind_ == UlyssesOrderKind::kRowMajor) return block;
    if (own_section_) {
      std::int64_t index = index_;
      bool found = false;
      for (std::int32_t i = 0; i < kMaxRanges; ++i) {
        const std::int64_t length = own_[i].end - own_[i].begin;
        if (!found && index < length) {
          block = own_[i].begin + index;
          found = true;
        }
        index -= length;
      }
      return block;
    }
    block += first_remote_;
    if (block >= remote_) block -= remote_;
    for (std::int32_t i = 0; i < kMaxRanges; ++i)
      if (i < ranges_ && block >= own_[i].begin) block += own_[i].end - own_[i].begin;
    return block;
  }

  XSTAGE_HD constexpr bool is_local(std::int64_t block) const {
    bool local = false;
    for (std::int32_t i = 0; i < kMaxRanges; ++i)
      local = local || (own_[i].begin <= block && block < own_[i].end);
    return local;
  }

  UlyssesOrderKind kind_ = UlyssesOrderKind::kRowMajor;
  std::int64_t heads_ = 0;
  std::int64_t blocks_ = 0;        // query blocks of the sequence, below 2^31
  RowRange own_[kMaxRanges] = {};  // in blocks, ascending
  std::int32_t ranges_ = 0;
  std::int64_t remote_ = 0;        // blocks a head that are not this rank's own
  std::int64_t first_remote_ = 0;  // which of them comes first

  Section section_;
  bool own_section_ = false;
  std::uint64_t position_ = 0;
  std::int64_t head_ = 0;
  std::int64_t index_ = 0;  // of the block within its section
};

}  // namespace xstage::schedule
