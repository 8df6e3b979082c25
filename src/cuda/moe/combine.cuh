// Combine's last step, at the token's owner: the slots of each token, added in slot order.
#pragma once

#include "cuda/moe/block.cuh"
#include "cuda/moe/numbers.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace xstage::moe {

/// fp32 sums in slot order, rounded once; a token a warp, all warps of the block.
__device__ inline void sum_slots(const FusedParams& p) {
  constexpr int kTogether = 4;  // slots whose loads are in flight at once
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t hidden = p.layout.config.hidden;
  const std::int32_t topk = p.layout.config.topk;
  const std::int64_t warps = std::int64_t{kThreads / 32} * gridDim.x;
  void* const own = p.symmetric[p.rank];
  for (std::int64_t t = blockIdx.x + std::int64_t{threadIdx.x / 32} * gridDim.x; t < p.tokens;
       t += warps) {
    const std::int32_t expert = lane < topk ? p.experts[t * topk + lane] : -1;
    const std::uint32_t used = __ballot_sync(~0u, expert >= 0);
    for (std::int64_t at = lane * 8; at < hidden; at += 256) {
      float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
      for (std::uint32_t left = used; left != 0;) {
        uint4 raw[kTogether];
        bool there[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          there[i] = left != 0;
          if (!there[i]) continue;
          const int slot = __ffs(static_cast<int>(left)) - 1;
          left &= left - 1;
          raw[i] = __ldcg(reinterpret_cast<const uint4*>(
              p.layout.combine_row(own, static_cast<std::uint32_t>(t * topk + slot)) + at));
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (!there[i]) continue;
          float v[8];
          unpack_bf16(raw[i], v);
#pragma unroll
          for (int j = 0; j < 8; ++j) sum[j] += v[j];
        }
      }
      if (p.addend != nullptr) {
        float v[8];
        unpack_bf16(*reinterpret_cast<const uint4*>(p.addend + t * hidden + at), v);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[j] += v[j];
      }
      *reinterpret_cast<uint4*>(p.out + t * hidden + at) = {
          ptx::pack_bf16(sum[0], sum[1]), ptx::pack_bf16(sum[2], sum[3]),
          ptx::pack_bf16(sum[4], sum[5]), ptx::pack_bf16(sum[6], sum[7])};
    }
  }
}

}  // namespace xstage::moe
