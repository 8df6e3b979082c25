// Pushing tokens in bf16: as they are.
#pragma once

#include "cuda/moe/prologue.cuh"

namespace xstage::moe {

/// Rounds [first, last) of this rank's tokens, one token a pushing warp and round, stored at every
/// rank that has some of the token's experts.
__device__ inline void push_values(const FusedParams& p, std::int64_t first, std::int64_t last) {
  constexpr int kTogether = 8;  // pieces in flight
  constexpr int kPiece = 256;   // values, eight a lane
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t hidden = p.layout.config.hidden;
  const std::int64_t warps = std::int64_t{kPushThreads / 32} * gridDim.x;
  const std::int64_t own = blockIdx.x + std::int64_t{threadIdx.x / 32} * gridDim.x;
  for (std::int64_t t = own + first * warps; t < p.tokens && t < last * warps; t += warps) {
    const std::uint32_t copies = copies_of(p, t);
    for (std::int64_t begin = 0; begin < hidden; begin += kTogether * kPiece) {
      uint4 raw[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const std::int64_t at = begin + i * kPiece + lane * 8;
        if (at < hidden) raw[i] = *reinterpret_cast<const uint4*>(p.x + t * hidden + at);
      }
      for (std::int32_t rank = 0; rank < p.layout.config.ranks; ++rank) {
        char* const to = p.layout.token(p.symmetric[rank], p.rank, t);
        for (std::uint32_t left = copies >> (4 * rank) & 15; left > 0; --left)
#pragma unroll
          for (int i = 0; i < kTogether; ++i) {
            const std::int64_t at = begin + i * kPiece + lane * 8;
            if (at < hidden) *reinterpret_cast<uint4*>(to + 2 * at) = raw[i];
          }
      }
    }
  }
}

}  // namespace xstage::moe
