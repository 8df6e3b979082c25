// What one rank of the fused MoE kernel is given. Host and device; no CUDA in the host's view but
// the tensor maps.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "xstage/layout/moe.hpp"
#include "xstage/sync/wait.hpp"

namespace xstage::moe {

inline constexpr int kMaxRanks = 8;
inline constexpr int kMaxTopk = 16;
inline constexpr std::int64_t kMaxHidden = 8192;

/// One launch of one rank. All pointers are device memory of that rank but `symmetric`, which has
/// every rank's buffer.
struct FusedParams {
  layout::MoeLayout layout;
  void* symmetric[kMaxRanks];
  std::uint64_t* stop_words[kMaxRanks];
  void* workspace;
  std::uint32_t* histogram;     ///< [workers][experts]: pairs of each worker's tokens, by expert
  sync::WaitRecord* records;    ///< [workers], cleared before the launch
  const float* w1_scales;       ///< [E_l][2I/128][H/128]
  const float* w2_scales;       ///< [E_l][H/128][I/128]
  const std::uint16_t* x;       ///< [tokens][H] bf16
  const std::int32_t* experts;  ///< [tokens][k], -1 for none
  const float* weights;         ///< [tokens][k]
  const std::uint16_t* addend;  ///< [tokens][H] bf16, or null
  std::uint16_t* out;           ///< [tokens][H] bf16
  std::uint64_t* marks;         ///< [workers][Mark::kCount], or null: times are not kept
  std::int64_t tokens;
  std::uint64_t limit_ns;        ///< of a wait for another block or rank
  std::uint64_t block_limit_ns;  ///< of a wait inside a block
  std::int32_t rank;
};

/// Boxes of kBlockM tokens, or of kGroupRows where a tile has no more (and as Linear-1 writes); of
/// kHalfN weight rows.
struct FusedMaps {
  CUtensorMap pool, pool_half, w1, intermediate, intermediate_half, w2;
};

}  // namespace xstage::moe
