// Before the tiles: publish who goes where, quantise this rank's tokens and store them there, learn
// what comes here. All threads of the block take part in each step.
#pragma once

#include <cuda_bf16.h>

#include "cuda/moe/block.cuh"
#include "cuda/moe/numbers.cuh"
#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace xstage::moe {

/// 512 values of a token, sixteen a lane; eight lanes hold one group. Returns the group's scale and
/// makes the codes of `raw`. Whole warp.
__device__ __forceinline__ float quantise_piece(const uint4 (&raw)[2], uint4& codes) {
  float v[16];
  unpack_bf16(raw[0], *reinterpret_cast<float(*)[8]>(v));
  unpack_bf16(raw[1], *reinterpret_cast<float(*)[8]>(v + 8));
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) largest = fmaxf(largest, fabsf(v[i]));
#pragma unroll
  for (int step = 4; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  const float scale = scale_of_group(largest), inverse = 1.0f / scale;
#pragma unroll
  for (int i = 0; i < 16; ++i) v[i] = quotient(v[i], scale, inverse);
  codes = {pack_e4m3(v[0], v[1], v[2], v[3]), pack_e4m3(v[4], v[5], v[6], v[7]),
           pack_e4m3(v[8], v[9], v[10], v[11]), pack_e4m3(v[12], v[13], v[14], v[15])};
  return scale;
}

/// All warps but the last push tokens, all of these but the last read the counts: the two others
/// have signals to give. Numbers of named barriers.
inline constexpr int kPushThreads = kThreads - 32, kPushBarrier = 2;
inline constexpr int kReaders = kPushThreads - 32, kReadBarrier = 1;

/// How often a token goes to each rank, four bits a rank. Whole warp.
__device__ __forceinline__ std::uint32_t copies_of(const FusedParams& p, std::int64_t token) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int32_t topk = p.layout.config.topk;
  const std::int32_t expert = lane < topk ? p.experts[token * topk + lane] : -1;
  const std::int32_t owner =
      expert < 0 ? -1 : expert / static_cast<std::int32_t>(p.layout.experts_local);
  std::uint32_t copies = 0;
  for (std::int32_t rank = 0; rank < p.layout.config.ranks; ++rank) {
    const int slots = __popc(__ballot_sync(~0u, owner == rank));
    const int times = p.layout.config.dispatch == layout::MoeDispatch::kPerSlot ? slots : slots > 0;
    copies |= static_cast<std::uint32_t>(times < 15 ? times : 15) << (4 * rank);
  }
  return copies;
}

/// Rounds [first, last) of this rank's tokens, one token a pushing warp and round: bf16 to e4m3
/// codes with one scale for 128 values, stored at every rank that has some of the token's experts.
__device__ inline void push_tokens(const FusedParams& p, std::int64_t first, std::int64_t last) {
  constexpr int kTogether = 4;  // pieces in flight: a piece alone would wait for memory each time
  constexpr int kPiece = 512;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t hidden = p.layout.config.hidden;
  const std::int64_t warps = std::int64_t{kPushThreads / 32} * gridDim.x;
  const std::int64_t own = blockIdx.x + std::int64_t{threadIdx.x / 32} * gridDim.x;
  for (std::int64_t t = own + first * warps; t < p.tokens && t < last * warps; t += warps) {
    const std::uint32_t copies = copies_of(p, t);
    for (std::int64_t begin = 0; begin < hidden; begin += kTogether * kPiece) {
      uint4 raw[kTogether][2];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const std::int64_t at = begin + i * kPiece + lane * 16;
#pragma unroll
        for (int j = 0; j < 2; ++j)
          if (at < hidden)
            raw[i][j] = *reinterpret_cast<const uint4*>(p.x + t * hidden + at + 8 * j);
          else
            raw[i][j] = {0, 0, 0, 0};
      }
      uint4 codes[kTogether];
      float scale = 0;  // of group `lane` of these pieces, four a piece
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float of_piece = quantise_piece(raw[i], codes[i]);
        const float here = __shfl_sync(~0u, of_piece, lane % 4 * 8);
        if (lane / 4 == i) scale = here;
      }
      const std::int64_t group = begin / kScaleGroup + lane;
      const bool has_scale = lane < 4 * kTogether && group < p.layout.hidden_groups;
      for (std::int32_t rank = 0; rank < p.layout.config.ranks; ++rank) {
        void* const to = p.symmetric[rank];
        for (std::uint32_t left = copies >> (4 * rank) & 15; left > 0; --left) {
#pragma unroll
          for (int i = 0; i < kTogether; ++i) {
            const std::int64_t at = begin + i * kPiece + lane * 16;
            if (at < hidden)
              *reinterpret_cast<uint4*>(p.layout.token(to, p.rank, t) + at) = codes[i];
          }
          if (has_scale) p.layout.scales_of_token(to, p.rank, t)[group] = scale;
        }
      }
    }
  }
}

/// A worker's scratch while it routes.
struct RouteScratch {
  std::uint32_t* total;   ///< [E] pairs of this rank; before that: of this worker
  std::uint32_t* base;    ///< [E] of the workers before this one
  std::uint32_t* offset;  ///< [E] where the expert begins in its rank's list
  std::int32_t* expert;   ///< [pairs of this worker]
  std::uint32_t* place;   ///< [pairs of this worker]: in its expert's list, then in its rank's

  __device__ RouteScratch(void* memory, std::int64_t experts, std::int64_t pairs)
      : total(static_cast<std::uint32_t*>(memory)),
        base(total + experts),
        offset(base + experts),
        expert(reinterpret_cast<std::int32_t*>(offset + experts)),
        place(reinterpret_cast<std::uint32_t*>(expert + pairs)) {}
};

/// Numbers this worker's pairs within their experts, in the order of tokens and slots, and writes
/// how many there are. False: an expert id is out of range; every rank is told.
__device__ inline bool count_routes(const FusedParams& p, const TokenRange& range, RouteScratch& s,
                                    const sync::WaitContext& context) {
  const auto experts = static_cast<std::int32_t>(p.layout.config.experts);
  const std::int64_t topk = p.layout.config.topk;
  const auto pairs = static_cast<std::int32_t>((range.end - range.begin) * topk);
  for (std::int32_t e = threadIdx.x; e < experts; e += kThreads) s.total[e] = 0;
  bool good = true;
  for (std::int32_t i = threadIdx.x; i < pairs; i += kThreads) {
    const std::int32_t expert = p.experts[range.begin * topk + i];
    s.expert[i] = expert;
    if (expert < -1 || expert >= experts) {
      good = false;
      cuda::DevicePolicy policy;
      sync::stop_all(
          policy, context,
          {sync::WaitEnd::kCorrupt, sync::Site::kNone, p.rank, context.worker,
           range.begin * topk + i, static_cast<std::uint64_t>(experts),
           static_cast<std::uint64_t>(static_cast<std::int64_t>(expert)), context.epoch, 0});
    }
  }
  if (!__syncthreads_and(good)) return false;
  if (threadIdx.x < 32) {
    const std::uint32_t before = (1u << threadIdx.x) - 1;
    for (std::int32_t first = 0; first < pairs; first += 32) {
      const std::int32_t i = first + static_cast<std::int32_t>(threadIdx.x);
      const std::int32_t expert = i < pairs ? s.expert[i] : -1;
      const std::uint32_t same = __match_any_sync(~0u, expert);
      std::uint32_t count = 0;
      if (expert >= 0) {
        count = s.total[expert];
        s.place[i] = count + __popc(same & before);
      }
      __syncwarp();
      if (expert >= 0 && (same & before) == 0) s.total[expert] = count + __popc(same);
      __syncwarp();
    }
  }
  __syncthreads();
  for (std::int32_t e = threadIdx.x; e < experts; e += kThreads)
    p.histogram[std::int64_t{blockIdx.x} * experts + e] = s.total[e];
  return true;
}

/// Writes this worker's entries into the lists of their ranks, and (worker 0) the counts.
__device__ inline void write_routes(const FusedParams& p, const TokenRange& range, RouteScratch& s,
                                    RouteTables& tables, int slot) {
  const auto experts = static_cast<std::int32_t>(p.layout.config.experts);
  const auto local = static_cast<std::int32_t>(p.layout.experts_local);
  const std::int32_t topk = p.layout.config.topk;
  const auto pairs = static_cast<std::int32_t>((range.end - range.begin) * topk);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  // Three threads an expert, a third of the workers each: many loads in flight, one latency.
  constexpr unsigned kParts = 3;
  const unsigned each = (gridDim.x + kParts - 1) / kParts;
  for (std::int32_t e = threadIdx.x; e < experts; e += kThreads) s.total[e] = s.base[e] = 0;
  __syncthreads();
  for (std::int32_t i = threadIdx.x; i < experts * static_cast<int>(kParts); i += kThreads) {
    const std::int32_t e = i % experts;
    const unsigned first = static_cast<unsigned>(i / experts) * each;
    const unsigned last = first + each < gridDim.x ? first + each : gridDim.x;
    std::uint32_t base = 0, total = 0;
#pragma unroll 22
    for (unsigned w = first; w < last; ++w) {
      const std::uint32_t count = __ldcg(p.histogram + std::int64_t{w} * experts + e);
      total += count;
      if (w < blockIdx.x) base += count;
    }
    atomicAdd(&s.total[e], total);
    atomicAdd(&s.base[e], base);
  }
  __syncthreads();
  if (warp < p.layout.config.ranks) {
    std::uint32_t sum = 0;
    for (std::int32_t first = 0; first < local; first += 32) {
      const std::int32_t e = first + lane;
      const std::uint32_t count = e < local ? s.total[warp * local + e] : 0;
      std::uint32_t upto = count;
      for (int step = 1; step < 32; step *= 2) {
        const std::uint32_t other = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += other;
      }
      if (e < local) s.offset[warp * local + e] = sum + upto - count;
      sum += __shfl_sync(~0u, upto, 31);
    }
    if (lane == 0) tables.sent[warp] = sum;
  }
  __syncthreads();
  for (std::int32_t i = threadIdx.x; i < pairs; i += kThreads) {
    const std::int32_t e = s.expert[i];
    if (e >= 0) s.place[i] += s.offset[e] + s.base[e];
  }
  __syncthreads();
  for (std::int32_t i = threadIdx.x; i < pairs; i += kThreads) {
    const std::int32_t expert = s.expert[i];
    if (expert < 0) continue;
    const std::int32_t to = expert / local, first_of_token = i / topk * topk;
    const std::uint32_t place = s.place[i];
    std::uint32_t next = ~0u;
    bool first = true;
    for (std::int32_t j = first_of_token; j < first_of_token + topk; ++j) {
      if (s.expert[j] < 0 || s.expert[j] / local != to) continue;
      const std::uint32_t other = s.place[j];
      first = first && other >= place;
      if (other > place && other < next) next = other;
    }
    const std::int64_t pair = range.begin * topk + i;
    const uint4 entry{static_cast<std::uint32_t>(pair), __float_as_uint(p.weights[pair]), next,
                      first ? 1u : 0u};
    *reinterpret_cast<uint4*>(p.layout.entries_of(p.symmetric[to], slot, p.rank) + place) = entry;
  }
  if (blockIdx.x == 0)
    for (std::int32_t e = threadIdx.x; e < experts; e += kThreads)
      p.layout.counts_of(p.symmetric[e / local], slot, p.rank)[e % local] = s.total[e];
}

/// Tables of what comes here, from the counts of all sources; readers only. False: a source's
/// counts cannot be.
__device__ inline bool read_counts(const FusedParams& p, RouteTables& t, int slot,
                                   const sync::WaitContext& context) {
  constexpr int kBatch = 8;  // counts in flight a lane
  const auto local = static_cast<std::int32_t>(p.layout.experts_local);
  const std::int32_t ranks = p.layout.config.ranks;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  bool good = true;
  if (warp < ranks) {
    const std::uint32_t* const counts = p.layout.counts_of(p.symmetric[p.rank], slot, warp);
    std::uint32_t* const offset = t.offset + warp * (local + 1);
    std::uint64_t sum = 0;
    for (std::int32_t first = 0; first < local; first += 32 * kBatch) {
      std::uint32_t count[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const std::int32_t e = first + 32 * i + lane;
        count[i] = e < local ? __ldcg(counts + e) : 0;
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const std::int32_t e = first + 32 * i + lane;
        std::uint64_t upto = count[i];
        for (int step = 1; step < 32; step *= 2) {
          const std::uint64_t other = __shfl_up_sync(~0u, upto, step);
          if (lane >= step) upto += other;
        }
        if (e < local) offset[e] = static_cast<std::uint32_t>(sum + upto - count[i]);
        sum += __shfl_sync(~0u, upto, 31);
      }
    }
    if (lane == 0) offset[local] = static_cast<std::uint32_t>(sum);
    good = sum <= static_cast<std::uint64_t>(p.layout.pairs);
    if (!good && lane == 0) {
      cuda::DevicePolicy policy;
      sync::stop_all(policy, context,
                     {sync::WaitEnd::kCorrupt, sync::Site::kRoutes, p.rank, context.worker, warp,
                      static_cast<std::uint64_t>(p.layout.pairs), sum, context.epoch, 0});
    }
  }
  ptx::named_barrier_sync(kReadBarrier, kReaders);
  for (std::int32_t e = threadIdx.x; e < local; e += kReaders) {
    std::uint32_t sum = 0;
    for (std::int32_t source = 0; source < ranks; ++source) {
      const std::uint32_t* const offset = t.offset + source * (local + 1);
      t.begin[source * local + e] = sum;
      sum += offset[e + 1] - offset[e];
    }
    t.tokens[e] = sum;
  }
  ptx::named_barrier_sync(kReadBarrier, kReaders);
  if (warp == 0) {
    std::uint32_t sum = 0;
    for (std::int32_t first = 0; first < local; first += 32) {
      const std::int32_t e = first + lane;
      const std::uint32_t rows = e < local ? (t.tokens[e] + kBlockM - 1) / kBlockM : 0;
      std::uint32_t upto = rows;
      for (int step = 1; step < 32; step *= 2) {
        const std::uint32_t other = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += other;
      }
      if (e < local) t.first_row[e] = sum + upto - rows;
      sum += __shfl_sync(~0u, upto, 31);
    }
    if (lane == 0) t.first_row[local] = sum;
  }
  return good;
}

}  // namespace xstage::moe
