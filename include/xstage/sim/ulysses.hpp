// Ulysses attention whose output tiles go straight to the rank that owns their rows, on a simulated
// node.
//
// Every SM takes its tiles from the order header, computes a tile, and stores it from a staging
// buffer while it computes the next (or by the math warps themselves, staging 0). The kernel is
// done for a rank when all ranks that send to it have drained and their flags have arrived.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xstage/schedule/ulysses.hpp"
#include "xstage/sim/egress.hpp"
#include "xstage/sim/timeline.hpp"

namespace xstage::sim {

/// Times in µs, sizes in bytes.
struct UlyssesKernel {
  int ranks = 2;
  std::int64_t batch = 1;
  std::int64_t seq = 0;    ///< over all ranks; rank r owns rows r·seq/ranks … (r + 1)·seq/ranks
  std::int64_t heads = 0;  ///< over all ranks; rank r has heads r·heads/ranks … (r + 1)·heads/ranks
  std::int32_t block_m = 128;  ///< query rows of a tile
  schedule::UlyssesOrderKind order = schedule::UlyssesOrderKind::kRemoteFirst;
  double tile_us = 0;            ///< attention of one tile, all rows filled or not
  double fixed_us = 0;           ///< a tile
  double row_bytes = 256;        ///< of one output row of one head
  std::vector<double> issue_us;  ///< T_iss0 of a tile with 0 … block_m rows
  double residual = 0;           ///< S; 0 for bulk stores
  int staging = 1;
  double flag_us = 0;
  bool local_only = false;  ///< attention alone: nothing crosses the link
};

struct UlyssesRankResult {
  std::int64_t tiles = 0;
  std::int64_t remote_bytes = 0;  ///< sent
  double issued_us = 0;           ///< the sender's view: its last tile is issued
  double drained_us = 0;
  double done_us = 0;     ///< the receiver's view: all flags are here
  double math_us = 0;     ///< mean over SMs
  double stall_us = 0;    ///< mean over SMs
  double issue_mean = 0;  ///< of a tile
  double most_backlog = 0;
};

struct UlyssesResult {
  double time_us = 0;  ///< the last rank's done_us
  std::vector<UlyssesRankResult> ranks;
  Timeline timeline;
};

/// `fabric`: one a rank, or one for all. With more than two ranks a rank receives no more than it
/// could send: senders that meet at one receiver slow down together, in proportion.
UlyssesResult simulate_ulysses(const std::vector<EgressParameters>& fabric,
                               const UlyssesKernel& kernel, std::uint64_t seed,
                               const TimelineOptions& timeline = {});

/// Time of one tile of 128 query rows over `keys` keys on H200: a fixed part plus the products at
/// the rate that cuDNN 9.19 reached there (bf16, non-causal, 128 × 4 to 20 heads, 4k to 32k keys).
struct AttentionRate {
  double tile_us = 0;
  bool assumed = false;  ///< the head size was not among those measured
};
AttentionRate attention_tile(std::int64_t keys, std::int64_t head_dim, std::int32_t block_m);

}  // namespace xstage::sim
