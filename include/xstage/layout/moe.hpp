// Where everything lies in the buffers of a fused expert-parallel MoE layer.
//
// Two buffers a rank. The *symmetric* buffer has the same layout on every rank and is written or
// read by peers; the *workspace* is the rank's own. Every size is computed here and nowhere else,
// from values that are the same on all ranks.
//
//   symmetric   stop word            set by any rank that gives up waiting
//               ready[P]             epoch whose routes of that source have arrived
//               landed[P]            epoch whose tokens of that source have arrived
//               arrived[2][P]        Linear-2 row pieces that came from that source, by epoch
//               parity counts[2][P][E_l]    rows that the source sends to each local expert
//               entries[2][P][C·k]   one RouteEntry a row, by local expert
//               tokens[P][C][H]      quantised tokens of every source that some expert here needs;
//                                    all of this rank's own
//               token_scales[P][C][H/128]
//               combine[k][C][H]     bf16 results, one slot for each (token, slot)
//   workspace   control              epoch, barrier, claimed tiles, rows used
//               dispatched[2][rows]  tokens that are in place in each row, by epoch parity
//               linear1[2][rows]     finished Linear-1 tiles of each row
//               pool[rows·BLOCK_M][H], pool_scales[rows][H/128][BLOCK_M]
//               origins[rows·BLOCK_M]
//               intermediate[rows·BLOCK_M][I], intermediate_scales[rows][I/group][BLOCK_M]
//
// A token crosses the link once for each rank that needs it, stored by its owner to a place that
// only its index decides. From there the rank's own workers copy it into the rows of its experts.
//
// Why one copy of tokens and combine slots is enough while routes have two: a peer writes slots of
// launch n+1 only for tokens whose routes of launch n+1 it has, so their owner has finished launch
// n. An owner writes tokens of launch n+1 only after it has all results of launch n, so every row
// that read its tokens is done. A source with nothing to send, however, may be one launch ahead
// with its (empty) routes.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"
#include "xstage/layout/formats.hpp"
#include "xstage/layout/size.hpp"
#include "xstage/schedule/moe.hpp"

namespace xstage::layout {

/// How a token travels to the ranks of its experts.
enum class MoeDispatch : std::int32_t {
  kPerSlot,  ///< once for each of its experts, to the same place: more traffic, for comparison
  kPerRank   ///< once for each rank that has some of its experts
};

/// What Linear-1's result goes through. Only plain SwiGLU, with or without the clamp, is computed;
/// the other fields exist so that a layer that needs them is refused by name.
struct MoeActivation {
  float clamp = 0;      ///< gate clamped from above, up on both sides; 0: no clamp
  float alpha = 1;      ///< factor inside the sigmoid
  float up_offset = 0;  ///< added to up before the product
  bool bias = false;    ///< Linear-1 or Linear-2 has a bias
};

/// Everything that must be the same on all ranks.
struct MoeConfig {
  std::int32_t ranks = 1;           ///< P
  std::int32_t topk = 1;            ///< k
  std::int64_t experts = 1;         ///< E, a multiple of P
  std::int64_t hidden = 128;        ///< H, a multiple of block_n
  std::int64_t intermediate = 128;  ///< I, a multiple of block_n
  std::int64_t capacity = 1;        ///< C: the most tokens a rank can bring to a launch
  WeightFormat format = WeightFormat::kW8A8;
  MoeActivation activation;
  std::int32_t block_m = 64;
  std::int32_t block_n = 128;  ///< 128 or 256; half of it is the group of an intermediate scale
  std::int32_t workers = 1;    ///< thread blocks of a rank
  schedule::MoeSchedule schedule;
  MoeDispatch dispatch = MoeDispatch::kPerRank;

  XSTAGE_HD constexpr std::int64_t experts_local() const { return experts / ranks; }
  XSTAGE_HD constexpr schedule::MoeTiling tiling() const {
    return schedule::moe_tiling(hidden, intermediate, block_m, block_n);
  }
};

/// One row that a source sends, 16 bytes. `pair` is token·k + slot of the source. The entries of a
/// token on one rank are a chain: `first` marks its beginning, `next` is the index (in the source's
/// list) of the token's next entry or -1.
struct RouteEntry {
  std::uint32_t pair = 0;
  float weight = 0;
  std::int32_t next = -1;
  std::int32_t first = 0;
};

/// Where a row of the pool came from and what it is worth, 16 bytes.
struct RowOrigin {
  std::int32_t source = 0;
  std::uint32_t pair = 0;
  float weight = 0;
  std::int32_t unused = 0;
};

/// Flags lie this far apart, so that two of them never share a cache line.
inline constexpr std::int64_t kFlagBytes = 128;

/// The words of the workspace's control region, kFlagBytes apart.
enum class MoeWord : std::int32_t {
  kEpoch,     ///< launches begun
  kBarrier,   ///< barrier of this rank's workers
  kPushed,    ///< another, behind their tokens: workers may arrive here before the first is passed
  kClaimed0,  ///< tiles claimed in even epochs, for schedules that claim
  kClaimed1,  ///< the same in odd epochs
  kUsed0,     ///< rows of the last even epoch, whose counters are to be cleared
  kUsed1,
  kCount
};

struct MoeLayout {
  MoeConfig config;
  schedule::MoeTiling tiling;
  std::int64_t experts_local = 0;
  std::int64_t pairs = 0;          ///< C·k: the most entries one source can send to one rank
  std::int64_t max_rows = 0;       ///< rows of BLOCK_M tokens, when everybody sends everything here
  std::int64_t value_bytes = 1;    ///< bytes of an activation value
  std::int64_t hidden_groups = 0;  ///< scales of a token, 0 in bf16
  std::int64_t intermediate_group = 64;  ///< values that share an intermediate scale
  std::int64_t intermediate_groups = 0;  ///< scales of an intermediate row, 0 in bf16

  Region stop, ready, landed, arrived, counts, entries, tokens, token_scales, combine;
  std::int64_t symmetric_bytes = 0;

  Region control, dispatched, linear1, pool, pool_scales, origins, intermediate,
      intermediate_scales;
  std::int64_t workspace_bytes = 0;

  bool valid = false;  ///< false: some size does not fit into 62 bits

  /// The layout of a configuration that checked() accepts.
  XSTAGE_HD static constexpr MoeLayout make(const MoeConfig& config) {
    MoeLayout out;
    out.config = config;
    out.tiling = config.tiling();
    out.experts_local = config.experts_local();
    out.value_bytes = activation_bytes(config.format);
    const bool scaled = config.format != WeightFormat::kBf16;
    out.hidden_groups = scaled ? (config.hidden + kScaleGroup - 1) / kScaleGroup : 0;
    out.intermediate_group = config.block_n / 2;
    out.intermediate_groups =
        scaled ? (config.intermediate + out.intermediate_group - 1) / out.intermediate_group : 0;
    const Size pairs = Size(config.capacity) * config.topk;
    const Size all_pairs = pairs * config.ranks;
    out.pairs = pairs.value();
    out.max_rows = schedule::max_rows(all_pairs.value(), out.experts_local, config.block_m);
    const Size rows(out.max_rows);
    const Size tokens = rows * config.block_m;

    Regions symmetric;
    out.stop = symmetric.add(kFlagBytes);
    out.ready = symmetric.add(Size(config.ranks) * kFlagBytes);
    out.landed = symmetric.add(Size(config.ranks) * kFlagBytes);
    out.arrived = symmetric.add(Size(2) * config.ranks * kFlagBytes);
    out.counts = symmetric.add(Size(2) * config.ranks * out.experts_local * 4);
    out.entries = symmetric.add(Size(2) * all_pairs * std::int64_t{sizeof(RouteEntry)});
    const Size landing = Size(config.capacity) * config.ranks;
    out.tokens = symmetric.add(landing * config.hidden * out.value_bytes);
    out.token_scales = symmetric.add(landing * out.hidden_groups * 4);
    out.combine = symmetric.add(pairs * config.hidden * 2);
    out.symmetric_bytes = symmetric.bytes();

    Regions own;
    out.control = own.add(static_cast<std::int64_t>(MoeWord::kCount) * kFlagBytes);
    out.dispatched = own.add(Size(2) * rows * 8);
    out.linear1 = own.add(Size(2) * rows * 8);
    out.pool = own.add(tokens * config.hidden * out.value_bytes);
    out.pool_scales = own.add(tokens * out.hidden_groups * 4);
    out.origins = own.add(tokens * std::int64_t{sizeof(RowOrigin)});
    out.intermediate = own.add(tokens * config.intermediate * out.value_bytes);
    out.intermediate_scales = own.add(tokens * out.intermediate_groups * 4);
    out.workspace_bytes = own.bytes();
    out.valid = symmetric.valid() && own.valid() && all_pairs.valid();
    return out;
  }

  // Symmetric buffer; `base` is its beginning on the rank that is meant.
  XSTAGE_HD std::uint64_t* stop_word(void* base) const {
    return element<std::uint64_t>(base, stop, 0);
  }
  XSTAGE_HD std::uint64_t* ready_word(void* base, std::int32_t source) const {
    return element<std::uint64_t>(base, ready, source * (kFlagBytes / 8));
  }
  XSTAGE_HD std::uint64_t* landed_word(void* base, std::int32_t source) const {
    return element<std::uint64_t>(base, landed, source * (kFlagBytes / 8));
  }
  XSTAGE_HD std::uint64_t* arrived_word(void* base, std::int32_t slot, std::int32_t source) const {
    return element<std::uint64_t>(base, arrived,
                                  (std::int64_t{slot} * config.ranks + source) * (kFlagBytes / 8));
  }
  XSTAGE_HD std::uint32_t* counts_of(void* base, std::int32_t slot, std::int32_t source) const {
    return element<std::uint32_t>(base, counts,
                                  (std::int64_t{slot} * config.ranks + source) * experts_local);
  }
  XSTAGE_HD RouteEntry* entries_of(void* base, std::int32_t slot, std::int32_t source) const {
    return element<RouteEntry>(base, entries, (std::int64_t{slot} * config.ranks + source) * pairs);
  }
  /// Token `index` of a source, as it lies on the rank that `base` is of.
  XSTAGE_HD char* token(void* base, std::int32_t source, std::int64_t index) const {
    return element<char>(base, tokens, landing(source, index) * config.hidden * value_bytes);
  }
  XSTAGE_HD float* scales_of_token(void* base, std::int32_t source, std::int64_t index) const {
    return element<float>(base, token_scales, landing(source, index) * hidden_groups);
  }
  /// Where that token stands among those of all sources.
  XSTAGE_HD std::int64_t landing(std::int32_t source, std::int64_t index) const {
    return source * config.capacity + index;
  }
  /// Slot `pair` % k of token `pair` / k: H values of bf16.
  XSTAGE_HD std::uint16_t* combine_row(void* base, std::uint32_t pair) const {
    const std::int64_t token_index = pair / static_cast<std::uint32_t>(config.topk);
    const std::int64_t slot = pair % static_cast<std::uint32_t>(config.topk);
    return element<std::uint16_t>(base, combine,
                                  (slot * config.capacity + token_index) * config.hidden);
  }

  // Workspace.
  XSTAGE_HD std::uint64_t* word(void* base, MoeWord which) const {
    return element<std::uint64_t>(base, control,
                                  static_cast<std::int64_t>(which) * (kFlagBytes / 8));
  }
  XSTAGE_HD std::uint64_t* dispatched_word(void* base, std::int32_t slot, std::int64_t row) const {
    return element<std::uint64_t>(base, dispatched, slot * max_rows + row);
  }
  XSTAGE_HD std::uint64_t* linear1_word(void* base, std::int32_t slot, std::int64_t row) const {
    return element<std::uint64_t>(base, linear1, slot * max_rows + row);
  }
  /// Token `token_index` of the pool, counted over all rows (row·BLOCK_M + place in the row).
  XSTAGE_HD char* pool_token(void* base, std::int64_t token_index) const {
    return element<char>(base, pool, token_index * config.hidden * value_bytes);
  }
  /// BLOCK_M scales, one a token of the row, of one group of values.
  XSTAGE_HD float* pool_scales_of(void* base, std::int64_t row, std::int64_t group) const {
    return element<float>(base, pool_scales, (row * hidden_groups + group) * config.block_m);
  }
  XSTAGE_HD RowOrigin* origin(void* base, std::int64_t token_index) const {
    return element<RowOrigin>(base, origins, token_index);
  }
  XSTAGE_HD char* intermediate_token(void* base, std::int64_t token_index) const {
    return element<char>(base, intermediate, token_index * config.intermediate * value_bytes);
  }
  XSTAGE_HD float* intermediate_scales_of(void* base, std::int64_t row, std::int64_t group) const {
    return element<float>(base, intermediate_scales,
                          (row * intermediate_groups + group) * config.block_m);
  }
};

}  // namespace xstage::layout
