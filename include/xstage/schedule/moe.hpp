// The two tile orders of a fused expert-parallel MoE layer: expert wave and interleaved.
//
// One rank owns some experts. Each expert's tokens are cut into rows of BLOCK_M tokens (a row is
// one M-block of one expert; the last one may be partly filled, an expert without tokens has none).
// A row has n1 Linear-1 tiles and n2 Linear-2 tiles. Every Linear-2 tile of a row needs all
// Linear-1 tiles of that row and sends its result to other ranks, so the order of tiles decides how
// Linear-2's bursts of remote stores are spread over time; nothing else changes between the
// schedules.
//
//   expert wave   the experts in groups; all Linear-1 tiles of a group, then all its Linear-2
//   tiles,
//                 then the next group
//   interleaved   Linear-1 of the first `lead` rows; then, row by row, n1 Linear-1 tiles of row
//                 r + lead mixed evenly with n2 Linear-2 tiles of row r; then what remains
//
// In both, up to kRowsTogether rows of an expert are dealt column by column instead of row by row:
// they fetch the same weights at the same time, so that these are read from memory once.
//
// Both are one global sequence of positions that is a pure function of the token counts, the tiling
// and the schedule, so every worker and every rank that knows these agrees on it. Workers share it
// as in `workers.hpp`:
//
//   MoeOrder order(tiling, schedule, tokens_of_expert, experts);
//   StaticTiles tiles(order, blockIdx.x, gridDim.x);
//   for (MoeTile tile; tiles.next(tile);) {
//     if (tile.linear == Linear::kFirst) {
//       // with fewer Linear-1 output buffers than rows: wait until row tile.row - buffers is read
//       …; signal_linear1_done(tile.row);                       // n1 signals make the row ready
//     } else {
//       wait_for_linear1(tile.row);  …; store_to_owners(tile);
//     }
//   }
//
// Waiting like this cannot deadlock with any number of workers, in either way of sharing, as long
// as there are at least `order.live_rows()` Linear-1 output buffers used in a ring: every wait is
// for tiles at smaller positions, and the worker that holds the smallest unfinished position never
// waits.
//
// Cost of a step: a few multiplications, no division, plus one pass over the experts in all.
// No heap, no exceptions, no standard containers. Positions and rows are 64-bit.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"
#include "xstage/schedule/fast_divisor.hpp"
#include "xstage/schedule/workers.hpp"

namespace xstage::schedule {

enum class Linear : std::uint8_t { kFirst = 1, kSecond = 2 };

/// How the two matrix products are cut. `n1` = 2·intermediate / BLOCK_N and `n2` = hidden /
/// BLOCK_N, rounded up.
struct MoeTiling {
  std::int32_t block_m = 128;  ///< tokens a row, at least 1
  std::int32_t n1 = 1;         ///< Linear-1 tiles a row, 1 … 32767
  std::int32_t n2 = 1;         ///< Linear-2 tiles a row, 1 … 32767

  XSTAGE_HD constexpr bool valid() const {
    return block_m >= 1 && n1 >= 1 && n1 <= 32767 && n2 >= 1 && n2 <= 32767;
  }
  friend constexpr bool operator==(const MoeTiling&, const MoeTiling&) = default;
};

/// Tiling of a layer with hidden size `hidden` and intermediate size `intermediate`.
XSTAGE_HD constexpr MoeTiling moe_tiling(std::int64_t hidden, std::int64_t intermediate,
                                         std::int32_t block_m, std::int32_t block_n) {
  return {block_m, static_cast<std::int32_t>((2 * intermediate + block_n - 1) / block_n),
          static_cast<std::int32_t>((hidden + block_n - 1) / block_n)};
}

enum class MoeScheduleKind : std::uint8_t { kWave, kInterleaved };

/// Which order. The same on every rank.
struct MoeSchedule {
  MoeScheduleKind kind = MoeScheduleKind::kWave;
  std::int32_t group = 1;  ///< wave: experts in a group, at least 1
  std::int64_t lead = 1;   ///< interleaved: rows by which Linear-1 runs ahead, at least 1

  XSTAGE_HD static constexpr MoeSchedule wave(std::int32_t group) {
    return {MoeScheduleKind::kWave, group, 1};
  }
  XSTAGE_HD static constexpr MoeSchedule interleaved(std::int64_t lead) {
    return {MoeScheduleKind::kInterleaved, 1, lead};
  }
  XSTAGE_HD constexpr bool valid() const { return group >= 1 && lead >= 1; }
  friend constexpr bool operator==(const MoeSchedule&, const MoeSchedule&) = default;
};

/// One tile of work.
struct MoeTile {
  std::uint64_t position = 0;  ///< in the global order
  std::int64_t row = 0;     ///< global row: its tokens lie at row·block_m of a pool padded by rows
  std::int64_t block = 0;   ///< row within its expert
  std::int32_t expert = 0;  ///< local expert
  std::int32_t column = 0;  ///< N-block, below n1 or n2
  std::int32_t tokens = 0;  ///< rows of the tile that are filled, 1 … block_m
  Linear linear = Linear::kFirst;
};

/// Rows of an expert with that many tokens.
XSTAGE_HD constexpr std::int64_t rows_of(std::uint32_t tokens, std::int32_t block_m) {
  return (static_cast<std::int64_t>(tokens) + block_m - 1) / block_m;
}

/// The most rows that `pairs` (token, expert) pairs on `experts` experts can make, whatever the
/// routing: what a buffer must hold whose owner does not know the counts.
XSTAGE_HD constexpr std::int64_t max_rows(std::int64_t pairs, std::int64_t experts,
                                          std::int32_t block_m) {
  if (pairs <= 0) return 0;
  const std::int64_t used = pairs < experts ? pairs : experts;
  return used + (pairs - used) / block_m;
}

/// Experts in a group of the wave schedule so that one group fills the machine about twice:
/// `pairs` (token, expert) pairs are expected on `experts` experts (both group-wide), of which this
/// rank owns `local_experts`. Groups are evened out, so that the last one is no small remainder.
XSTAGE_HD constexpr std::int32_t wave_group(std::int64_t pairs, std::int64_t experts,
                                            std::int32_t local_experts, const MoeTiling& tiling,
                                            std::int32_t workers) {
  if (local_experts <= 1) return 1;
  if (pairs <= 0) return local_experts;
  // Tiles of Linear-1 that one expert is expected to bring; below one token an expert most experts
  // are empty and count with their probability.
  const std::int64_t row_tokens = static_cast<std::int64_t>(tiling.block_m) * experts;
  const std::int64_t rows = pairs < experts ? 1 : (pairs + row_tokens - 1) / row_tokens;
  const std::int64_t wanted = 2 * static_cast<std::int64_t>(workers);
  std::int64_t size = (wanted + rows * tiling.n1 - 1) / (rows * tiling.n1);
  if (pairs < experts) size = (wanted * experts + pairs * tiling.n1 - 1) / (pairs * tiling.n1);
  if (size >= local_experts) return local_experts;
  const std::int64_t groups = (local_experts + size - 1) / size;
  return static_cast<std::int32_t>((local_experts + groups - 1) / groups);
}

/// Rows of an expert whose tiles of one column follow each other. More would not fit the L2 cache
/// beside the weights of the columns in flight.
inline constexpr std::int64_t kRowsTogether = 8;

/// The smallest lead at which, if all tiles take the same time, no Linear-2 tile waits for its row
/// as long as Linear-1 goes on beside it: `workers` tiles of later rows fit in between, whether the
/// row was made before the mix began or in it, and wherever it stands among the rows dealt with it.
XSTAGE_HD constexpr std::int64_t covering_lead(const MoeTiling& tiling, std::int32_t workers) {
  return kRowsTogether + (static_cast<std::int64_t>(workers) + tiling.n1 - 1) / tiling.n1;
}

/// A cursor over the global order of one rank's tiles.
class MoeOrder {
 public:
  constexpr MoeOrder() = default;

  /// `tokens[0 … experts)`: tokens of each local expert; read while the cursor moves, so it must
  /// stay where it is (for a kernel: shared memory). `tiling` and `schedule` must be valid().
  XSTAGE_HD constexpr MoeOrder(const MoeTiling& tiling, const MoeSchedule& schedule,
                               const std::uint32_t* tokens, std::int32_t experts)
      : tokens_(tokens),
        experts_(experts),
        tiling_(tiling),
        schedule_(schedule),
        by_n1_(static_cast<std::uint32_t>(tiling.n1)),
        by_n2_(static_cast<std::uint32_t>(tiling.n2)),
        by_both_(static_cast<std::uint32_t>(tiling.n1 + tiling.n2)) {
    for (std::int32_t expert = 0; expert < experts; ++expert) rows_ += rows_of_expert(expert);
    // lead <= 0 or group <= 0 would never end; they are not valid(), and are taken as 1.
    if (schedule_.group < 1) schedule_.group = 1;
    if (schedule_.lead < 1) schedule_.lead = 1;
    if (schedule_.lead > rows_) schedule_.lead = rows_;
    part_ = Part::kBegin;
    next_part();
  }

  XSTAGE_HD constexpr const MoeTiling& tiling() const { return tiling_; }
  XSTAGE_HD constexpr std::int64_t rows() const { return rows_; }
  /// Tiles in all.
  XSTAGE_HD constexpr std::uint64_t size() const {
    return static_cast<std::uint64_t>(rows_) * by_both_.divisor();
  }

  /// Rows whose Linear-1 output must be held at the same time. With a ring of this many buffers
  /// (row r uses buffer r mod live_rows() after row r - live_rows() was read) no order of execution
  /// deadlocks; with one fewer a single worker may (wave, or a lead of 1: does). More lets workers
  /// run ahead: see ring_rows(). One pass over the experts; call it once.
  XSTAGE_HD constexpr std::int64_t live_rows() const {
    if (rows_ == 0) return 0;
    // Rows are dealt together at both ends of the lead.
    if (schedule_.kind == MoeScheduleKind::kInterleaved) {
      const std::int64_t rows = schedule_.lead + 2 * rows_together() - 1;
      return rows < rows_ ? rows : rows_;
    }
    std::int64_t most = 0;
    for (std::int32_t first = 0; first < experts_; first += schedule_.group) {
      const std::int64_t rows = group_rows(first);
      if (rows > most) most = rows;
    }
    return most;
  }

  /// The same with room for `workers` tiles in flight at both ends, so that the ring is not what
  /// workers wait for: interleaved, the rows that many tiles span; wave, the largest two
  /// neighbouring groups.
  XSTAGE_HD constexpr std::int64_t ring_rows(std::int32_t workers) const {
    std::int64_t most = 0;
    if (schedule_.kind == MoeScheduleKind::kInterleaved) {
      most = live_rows() + 1 + (2 * static_cast<std::int64_t>(workers)) / by_both_.divisor();
    } else {
      std::int64_t before = 0;
      for (std::int32_t first = 0; first < experts_; first += schedule_.group) {
        const std::int64_t rows = group_rows(first);
        if (before + rows > most) most = before + rows;
        before = rows;
      }
    }
    return most < rows_ ? most : rows_;
  }

  /// For StaticTiles: the rotation with which every worker gets both kinds of tile in the ratio n1
  /// : n2. The mix repeats every (n1 + n2) / gcd(n1, n2) positions; `workers` + rotation shares no
  /// factor with that.
  XSTAGE_HD constexpr std::uint32_t rotation(std::uint32_t workers) const {
    if (schedule_.kind != MoeScheduleKind::kInterleaved) return 0;
    const auto n1 = static_cast<std::uint32_t>(tiling_.n1);
    const std::uint32_t pattern = by_both_.divisor() / common_divisor(n1, by_both_.divisor());
    for (std::uint32_t rotation = 0; rotation < workers; ++rotation)
      if (common_divisor(workers + rotation, pattern) == 1) return rotation;
    return workers > 1 ? 1 : 0;  // few workers, a pattern of many factors
  }

  /// Moves `delta` positions forward. False once past the last tile; the cursor then stays there.
  XSTAGE_HD constexpr bool advance(std::uint64_t delta) {
    while (part_ != Part::kEnd) {
      const std::uint32_t period = by_.divisor();
      const std::uint64_t steps = by_.quotient(delta);
      const auto rest = static_cast<std::uint32_t>(delta - steps * period);
      std::int64_t step = step_ + static_cast<std::int64_t>(steps);
      std::uint32_t offset = offset_ + rest;
      if (offset >= period) {
        offset -= period;
        ++step;
      }
      if (step < steps_) {
        position_ += delta;
        step_ = step;
        offset_ = offset;
        locate();
        return true;
      }
      const std::uint64_t left = static_cast<std::uint64_t>(steps_ - step_) * period - offset_;
      position_ += left;
      delta -= left;
      next_part();
    }
    return false;
  }

  /// The tile at the cursor. Only after advance() returned true.
  XSTAGE_HD constexpr MoeTile tile() const {
    const bool first = linear_ == Linear::kFirst;
    MoeTile tile;
    tile.position = position_;
    tile.row = row_;
    tile.block = row_ - (first ? first_.begin : second_.begin);
    tile.expert = first ? first_.expert : second_.expert;
    tile.column = static_cast<std::int32_t>(column_);
    const std::int64_t left =
        static_cast<std::int64_t>(tokens_[tile.expert]) - tile.block * tiling_.block_m;
    tile.tokens = left < tiling_.block_m ? static_cast<std::int32_t>(left) : tiling_.block_m;
    tile.linear = linear_;
    return tile;
  }

 private:
  /// A stretch of the order in which every step (n1, n2 or n1 + n2 positions) belongs to one row of
  /// Linear-1, of Linear-2, or to one of each.
  enum class Part : std::uint8_t { kBegin, kFirst, kMixed, kSecond, kEnd };

  /// The expert that owns a row. Rows only grow within each linear, so finding it is one pass in
  /// all.
  struct RowCursor {
    std::int32_t expert = -1;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  XSTAGE_HD static constexpr std::uint32_t common_divisor(std::uint32_t a, std::uint32_t b) {
    while (b != 0) {
      const std::uint32_t rest = a % b;
      a = b;
      b = rest;
    }
    return a;
  }

  XSTAGE_HD constexpr void seek(RowCursor& cursor, std::int64_t row) const {
    while (row >= cursor.end) {
      ++cursor.expert;
      cursor.begin = cursor.end;
      cursor.end += rows_of_expert(cursor.expert);
    }
  }

  /// 32-bit, so that it costs no 64-bit division; tokens + block_m may pass 2^32.
  XSTAGE_HD constexpr std::int64_t rows_of_expert(std::int32_t expert) const {
    const auto block = static_cast<std::uint32_t>(tiling_.block_m);
    const std::uint32_t tokens = tokens_[expert];
    return static_cast<std::int64_t>(tokens / block) + (tokens % block != 0 ? 1 : 0);
  }

  XSTAGE_HD constexpr std::int64_t group_rows(std::int32_t first) const {
    std::int64_t rows = 0;
    for (std::int32_t i = 0; i < schedule_.group && first + i < experts_; ++i)
      rows += rows_of_expert(first + i);
    return rows;
  }

  XSTAGE_HD constexpr void next_part() {
    step_ = 0;
    offset_ = 0;
    if (schedule_.kind == MoeScheduleKind::kWave)
      next_wave_part();
    else
      next_interleaved_part();
    // A copy, not a reference: a cursor whose address is taken would live in a kernel's local
    // memory.
    if (part_ == Part::kFirst) by_ = by_n1_;
    if (part_ == Part::kMixed) by_ = by_both_;
    if (part_ == Part::kSecond) by_ = by_n2_;
  }

  /// kFirst and kSecond of one group after the other; groups without tokens are passed over.
  XSTAGE_HD constexpr void next_wave_part() {
    if (part_ == Part::kFirst) {
      part_ = Part::kSecond;
      return;
    }
    base_ += steps_;  // the rows of the group that is done; none before the first
    steps_ = 0;
    while (group_ < experts_ && steps_ == 0) {
      steps_ = group_rows(group_);
      group_ = schedule_.group < experts_ - group_ ? group_ + schedule_.group : experts_;
    }
    part_ = steps_ > 0 ? Part::kFirst : Part::kEnd;
  }

  XSTAGE_HD constexpr void next_interleaved_part() {
    switch (part_) {
      case Part::kBegin:
        part_ = rows_ > 0 ? Part::kFirst : Part::kEnd;
        steps_ = schedule_.lead;
        return;
      case Part::kFirst:
        part_ = Part::kMixed;
        steps_ = rows_ - schedule_.lead;
        return;
      case Part::kMixed:
        part_ = Part::kSecond;
        base_ = rows_ - schedule_.lead;
        steps_ = schedule_.lead;
        return;
      default: part_ = Part::kEnd; return;
    }
  }

  /// Which tile the cursor stands on, from part, step and offset.
  XSTAGE_HD constexpr void locate() {
    linear_ = part_ == Part::kSecond ? Linear::kSecond : Linear::kFirst;
    row_ = base_ + step_;
    column_ = offset_;
    if (part_ == Part::kMixed) {
      // n2 of the n1 + n2 positions of a step are Linear-2, as evenly as they go; the first
      // position is Linear-1 (n1 >= 1) and the last is Linear-2. The product stays below 2^32: n <=
      // 32767.
      const auto n2 = static_cast<std::uint32_t>(tiling_.n2);
      const std::uint32_t before = by_both_.quotient(offset_ * n2);
      const std::uint32_t after = by_both_.quotient((offset_ + 1) * n2);
      if (after != before) {
        linear_ = Linear::kSecond;
        column_ = before;
      } else {
        row_ += schedule_.lead;
        column_ = offset_ - before;
      }
    }
    if (linear_ == Linear::kFirst)
      seek(first_, row_);
    else
      seek(second_, row_);
    if (linear_ == Linear::kFirst)
      deal_together(first_, by_n1_.divisor());
    else
      deal_together(second_, by_n2_.divisor());
  }

  /// No more than the lead, or Linear-2 of a row would come before Linear-1 of the last ones.
  XSTAGE_HD constexpr std::int64_t rows_together() const {
    return schedule_.kind == MoeScheduleKind::kInterleaved && schedule_.lead < kRowsTogether
               ? schedule_.lead
               : kRowsTogether;
  }

  /// Deals the tiles of some rows of an expert anew: column by column instead of row by row. `row_`
  /// and `column_` (of `columns`) name the place among them.
  XSTAGE_HD constexpr void deal_together(const RowCursor& expert, std::uint32_t columns) {
    const auto together = static_cast<std::uint32_t>(rows_together());
    const std::int64_t first = row_ - static_cast<std::uint32_t>(row_ - expert.begin) % together;
    const std::int64_t left = expert.end - first;
    const std::uint32_t rows = left < together ? static_cast<std::uint32_t>(left) : together;
    const std::uint32_t place = static_cast<std::uint32_t>(row_ - first) * columns + column_;
    column_ = place / rows;
    row_ = first + place % rows;
  }

  const std::uint32_t* tokens_ = nullptr;
  std::int32_t experts_ = 0;
  MoeTiling tiling_;
  MoeSchedule schedule_;
  FastDivisor by_n1_, by_n2_, by_both_;
  FastDivisor by_;  // of this part
  std::int64_t rows_ = 0;

  std::uint64_t position_ = 0;
  Part part_ = Part::kEnd;
  std::int32_t group_ = 0;    // wave: first expert of the group after this one
  std::int64_t base_ = 0;     // row of step 0 of this part
  std::int64_t steps_ = 0;    // steps of this part
  std::int64_t step_ = 0;     // where the cursor stands: step of the part,
  std::uint32_t offset_ = 0;  // and position within the step
  RowCursor first_, second_;  // experts of the Linear-1 and the Linear-2 row
  Linear linear_ = Linear::kFirst;
  std::int64_t row_ = 0;
  std::uint32_t column_ = 0;
};

}  // namespace xstage::schedule
