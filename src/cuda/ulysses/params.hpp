// What one launch of the attention kernel reads: by value, so that a captured graph holds it whole.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "xstage/layout/segments.hpp"
#include "xstage/schedule/ulysses.hpp"
#include "xstage/span.cuh"
#include "xstage/sync/wait.hpp"

namespace xstage::ulysses {

inline constexpr int kMaxRanks = 8;
inline constexpr int kSlots = 2;
inline constexpr int kMaxSegments = 80;

/// The output tensor of one destination, one slot.
struct Target {
  std::uint16_t* data = nullptr;
  std::int64_t batch_stride = 0;  ///< in elements
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
};

/// Signals of a launch that stores to other ranks; see sync/arrivals.hpp.
struct Signals {
  std::int32_t ranks = 1;
  std::int32_t rank = 0;
  std::uint64_t* arrived[kMaxRanks] = {};     ///< [slot][source] words, in each rank's buffer
  std::uint64_t* stop_words[kMaxRanks] = {};  ///< in each rank's buffer
  std::uint64_t* epoch = nullptr;             ///< this rank's workspace, like the next
  std::uint64_t* barrier = nullptr;
  sync::WaitRecord* records = nullptr;    ///< one a block
  std::int64_t expected[kMaxRanks] = {};  ///< pieces that each source sends here
  std::uint64_t limit_ns = 0;
};

/// Q, K and V of one slot.
struct InputMaps {
  CUtensorMap query, key, value;
};

struct Params {
  InputMaps inputs[kSlots];
  const std::uint64_t* input_epoch = nullptr;  ///< its parity is the slot of the inputs; null: 0
  CUtensorMap output[kSlots][kMaxRanks];
  Target target[kSlots][kMaxRanks];
  std::int32_t target_rows[kMaxRanks] = {};
  layout::RowSegment segments[kMaxSegments] = {};
  Signals signals;
  schedule::UlyssesOrder order;
  const std::int32_t* key_lengths = nullptr;  ///< [batch]; null: all keys
  float* lse = nullptr;                       ///< [batch][heads][rows], natural logarithm; or null
  SpanBuffer spans;                           ///< of a kernel that records them
  std::int64_t rows = 0;
  std::int32_t key_rows = 0;
  std::int32_t heads = 0;        ///< of this rank
  std::int32_t group = 1;        ///< query heads a key head
  std::int32_t group_begin = 0;  ///< of the first key head: those on ranks before
  std::int32_t first_head = 0;   ///< of this rank among all heads of the output
  std::int32_t segment_count = 0;
  /// Nanoseconds between two pieces of a block to other ranks, so that all blocks together stay
  /// below the link's rate and none has its loads stuck behind stores; 0: as fast as they go.
  std::int32_t pace_ns = 0;
  bool fused = false;
  std::uint32_t tiles = 0;
  /// Those of them, at the front of the order, after which nothing goes to other ranks. All, where
  /// the order does not put them there; none in a local launch.
  std::uint32_t remote_tiles = 0;
  bool straddling = false;  ///< some pieces are not whole boxes: consumers store those
  float scale_log2 = 0;     ///< logits scale · log2 e
};

}  // namespace xstage::ulysses
