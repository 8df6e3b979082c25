// Where everything lies in the symmetric buffers of a Ulysses attention layer.
//
// One buffer a rank, with the same layout on every rank. Two things travel: Q, K and V rows to the
// rank that has their heads (the input exchange), and output rows to the rank that owns them. Both
// have two slots, used in turn by launches (epoch parity), so that a fast rank never overwrites
// what a slow one still reads: a rank that begins launch n+2 has seen every peer in launch n+1, so
// whatever they read in launch n is read.
//
//   stop word
//   exchanged[2][P], output_arrived[2][P]   pieces (rows of one head and batch entry) by source
//   query[2][B][S][h_l][D], key[2][B][S_kv][kv_l][D], value likewise   bf16
//   output[2][B][S_o][h][D] or [2][B][h][S_o][D]                       bf16
// with h_l, kv_l and S_o the largest of any rank.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"
#include "xstage/layout/moe.hpp"
#include "xstage/layout/segments.hpp"
#include "xstage/layout/size.hpp"
#include "xstage/layout/tensor_view.hpp"
#include "xstage/schedule/ulysses.hpp"

namespace xstage::layout {

/// Order of the output's dimensions.
enum class OutputOrder : std::int32_t { kRowsHeads, kHeadsRows };

/// Everything that must be the same on all ranks.
struct UlyssesConfig {
  /// Pieces of the sequence: enough for a shard a rank plus text before, after and inside.
  static constexpr std::int32_t kMaxSegments = 80;

  std::int32_t ranks = 1;  ///< P, the Ulysses degree
  std::int32_t ring = 1;   ///< ring degree; the fused output is right only for 1
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 128;
  std::int64_t rows = 1;            ///< S, query rows of the whole sequence
  std::int64_t key_rows = 1;        ///< S_kv
  bool keys_replicated = false;     ///< cross-attention: every rank has all keys, none travel
  bool replicate_kv_heads = false;  ///< allow fewer key and value heads than ranks
  OutputOrder output_order = OutputOrder::kRowsHeads;
  std::int32_t block_m = 128;
  std::int32_t block_n = 128;  ///< keys a step
  std::int32_t workers = 1;
  schedule::UlyssesOrderKind order = schedule::UlyssesOrderKind::kRemoteFirst;
  float scale = 0;  ///< of the logits; 0 means 1/sqrt(head_dim)
  std::int32_t segment_count = 0;
  RowSegment segments[kMaxSegments] = {};  ///< of query rows, and so of the output
  std::int32_t key_segment_count = 0;
  RowSegment key_segments[kMaxSegments] = {};  ///< of key rows; unused where keys are replicated
};

/// The words of the workspace's control region, kFlagBytes apart.
enum class UlyssesWord : std::int32_t { kEpoch, kBarrier, kClaims, kCount };

struct UlyssesLayout {
  UlyssesConfig config;
  std::int64_t query_heads = 0;  ///< the most of any rank
  std::int64_t key_heads = 0;
  std::int64_t output_rows = 0;

  Region stop, exchanged, output_arrived, query, key, value, output;
  std::int64_t query_slot = 0, key_slot = 0, output_slot = 0;  ///< elements of one slot
  std::int64_t symmetric_bytes = 0;
  Region control;
  std::int64_t workspace_bytes = 0;
  bool valid = false;

  XSTAGE_HD static constexpr UlyssesLayout make(const UlyssesConfig& config) {
    UlyssesLayout out;
    out.config = config;
    for (std::int32_t rank = 0; rank < config.ranks; ++rank) {
      const HeadShare share = heads_of(config.heads, config.kv_heads, config.ranks, rank);
      const std::int64_t rows = rows_received(config.segments, config.segment_count, rank);
      if (share.query.count > out.query_heads) out.query_heads = share.query.count;
      if (share.key.count > out.key_heads) out.key_heads = share.key.count;
      if (rows > out.output_rows) out.output_rows = rows;
    }
    const Size batch_dim = Size(config.batch) * config.head_dim;
    const Size query_slot = batch_dim * config.rows * out.query_heads;
    const Size key_slot = batch_dim * config.key_rows * out.key_heads;
    const Size output_slot = batch_dim * out.output_rows * config.heads;
    out.query_slot = query_slot.value();
    out.key_slot = key_slot.value();
    out.output_slot = output_slot.value();
    Regions symmetric;
    out.stop = symmetric.add(kFlagBytes);
    out.exchanged = symmetric.add(Size(2) * config.ranks * kFlagBytes);
    out.output_arrived = symmetric.add(Size(2) * config.ranks * kFlagBytes);
    out.query = symmetric.add(query_slot * 4);
    out.key = symmetric.add(key_slot * 4);
    out.value = symmetric.add(key_slot * 4);
    out.output = symmetric.add(output_slot * 4);
    out.symmetric_bytes = symmetric.bytes();
    Regions own;
    // The exchange and the attention are two launches, each with its own words.
    out.control = own.add(2 * static_cast<std::int64_t>(UlyssesWord::kCount) * kFlagBytes);
    out.workspace_bytes = own.bytes();
    out.valid = symmetric.valid() && own.valid() && query_slot.valid() && key_slot.valid() &&
                output_slot.valid();
    return out;
  }

  XSTAGE_HD std::uint64_t* stop_word(void* base) const {
    return element<std::uint64_t>(base, stop, 0);
  }
  XSTAGE_HD std::uint64_t* exchanged_word(void* base, std::int32_t slot,
                                          std::int32_t source) const {
    return element<std::uint64_t>(base, exchanged,
                                  (std::int64_t{slot} * config.ranks + source) * (kFlagBytes / 8));
  }
  XSTAGE_HD std::uint64_t* output_word(void* base, std::int32_t slot, std::int32_t source) const {
    return element<std::uint64_t>(base, output_arrived,
                                  (std::int64_t{slot} * config.ranks + source) * (kFlagBytes / 8));
  }
  /// `launch` 0 for the exchange, 1 for the attention.
  XSTAGE_HD std::uint64_t* word(void* base, std::int32_t launch, UlyssesWord which) const {
    return element<std::uint64_t>(base, control,
                                  (launch * static_cast<std::int64_t>(UlyssesWord::kCount) +
                                   static_cast<std::int64_t>(which)) *
                                      (kFlagBytes / 8));
  }

  /// Query row of local head `head` on a rank with `heads` of them: head_dim values.
  XSTAGE_HD std::uint16_t* query_row(void* base, std::int32_t slot, std::int64_t heads,
                                     std::int64_t batch, std::int64_t row,
                                     std::int64_t head) const {
    return element<std::uint16_t>(
        base, query,
        slot * query_slot + ((batch * config.rows + row) * heads + head) * config.head_dim);
  }
  XSTAGE_HD std::uint16_t* key_row(const Region& key_or_value, void* base, std::int32_t slot,
                                   std::int64_t heads, std::int64_t batch, std::int64_t row,
                                   std::int64_t head) const {
    return element<std::uint16_t>(
        base, key_or_value,
        slot * key_slot + ((batch * config.key_rows + row) * heads + head) * config.head_dim);
  }
  /// Output of `head` (of all heads) at `row` of a rank that receives `rows` of them.
  XSTAGE_HD std::uint16_t* output_row(void* base, std::int32_t slot, std::int64_t rows,
                                      std::int64_t batch, std::int64_t row,
                                      std::int64_t head) const {
    const std::int64_t place = config.output_order == OutputOrder::kRowsHeads
                                   ? (batch * rows + row) * config.heads + head
                                   : (batch * config.heads + head) * rows + row;
    return element<std::uint16_t>(base, output, slot * output_slot + place * config.head_dim);
  }
};

}  // namespace xstage::layout
