// Dispatch at the receiver: all warps put the tokens of this rank's experts into rows, before they
// take their roles, from where the tokens' owners stored them and through the shared memory where
// steps will be.
//
// First, and with all that memory: one warp beside the tiles, with 8 KiB, shares the copy engine
// with their steps and moves a KiB in a microsecond, half of what lingbot-video's tiles need.
//
// Neighbouring places of the pool belong to different warps of the GPU, so that the first rows are
// complete first. A warp looks at 32 places at a time, one a lane: whose token, and where else on
// this rank it goes. Then it streams the tokens, piece by piece: all but one piece of its ring are
// on their way while that one is stored to all its places.
#pragma once

#include <cstddef>

#include "cuda/moe/block.cuh"
#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/bulk_load.cuh"

namespace xstage::moe {

inline constexpr int kWarps = kThreads / 32;
/// Tokens travel in pieces through a ring of slots, one ring a warp.
inline constexpr int kPieceBytes = 1024;
inline constexpr int kPieces =
    static_cast<int>((sizeof(TileShared::a) + sizeof(TileShared::b)) / kWarps / kPieceBytes);

class Dispatcher {
 public:
  /// `pieces`, `full`: of this warp, the latter initialised.
  __device__ Dispatcher(const FusedParams& p, const RouteTables& tables, std::uint8_t* pieces,
                        std::uint64_t* full, const sync::WaitContext& context)
      : p_(p),
        t_(tables),
        pieces_(pieces),
        full_(full),
        context_(context),
        signals_(policy_, p.layout, p.symmetric, p.workspace, context),
        lane_(static_cast<int>(threadIdx.x % 32)),
        local_(static_cast<std::int32_t>(p.layout.experts_local)) {}

  /// Whole warp. False: an entry cannot be; every rank is told.
  __device__ bool run() {
    // Tokens were written by ordinary stores; they are read by bulk copies.
    ptx::fence_proxy_async_global();
    const std::int64_t places = std::int64_t{t_.first_row[local_]} * kBlockM;
    const std::int64_t warps = std::int64_t{kWarps} * gridDim.x;
    const std::int64_t own = blockIdx.x + std::int64_t{threadIdx.x / 32} * gridDim.x;
    for (std::int64_t first = 0; first < places; first += 32 * warps) {
      Batch batch;
      const bool good = look(first + lane_ * warps + own, places, batch);
      if (!__all_sync(~0u, good)) {
        if (!good)
          sync::stop_all(
              policy_, context_,
              {sync::WaitEnd::kCorrupt, sync::Site::kRoutes, p_.rank, context_.worker, batch.source,
               static_cast<std::uint64_t>(p_.layout.pairs), batch.token, context_.epoch, 0});
        return false;
      }
      stream(batch);
    }
    return true;
  }

 private:
  /// One token a lane, and where it goes: its places on this rank, -1 behind the last.
  struct Batch {
    std::int32_t source = 0;
    std::uint32_t token = 0;
    std::int32_t place[kMaxTopk];
  };
  static constexpr int kAhead = kPieces - 1;

  /// Whether the routes of `place` make sense. A token is fetched where it is first needed, and
  /// only there, unless every slot fetches its own.
  __device__ bool look(std::int64_t place, std::int64_t places, Batch& batch) {
    const bool per_slot = p_.layout.config.dispatch == layout::MoeDispatch::kPerSlot;
    std::int32_t at = -1;
    if (place < places) {
      const int expert =
          last_at_most(t_.first_row, local_, static_cast<std::uint32_t>(place / kBlockM));
      const auto within =
          static_cast<std::uint32_t>(place - std::int64_t{t_.first_row[expert]} * kBlockM);
      if (within < t_.tokens[expert]) {
        for (std::int32_t s = 1; s < p_.layout.config.ranks; ++s)
          if (t_.begin[s * local_ + expert] <= within) batch.source = s;
        at = static_cast<std::int32_t>(t_.offset[batch.source * (local_ + 1) + expert] + within -
                                       t_.begin[batch.source * local_ + expert]);
      }
    }
    const std::uint32_t* const offset = t_.offset + batch.source * (local_ + 1);
    const auto entries = static_cast<std::int32_t>(offset[local_]);
    bool good = true;
#pragma unroll
    for (int d = 0; d < kMaxTopk; ++d) {
      batch.place[d] = -1;
      if (at < 0) continue;
      const layout::RouteEntry entry = entry_of(batch.source, at);
      if (entry.pair >= static_cast<std::uint64_t>(p_.layout.pairs) || entry.next >= entries)
        good = false;
      if (d == 0) batch.token = entry.pair / static_cast<std::uint32_t>(p_.layout.config.topk);
      if (!good || (d == 0 && !per_slot && entry.first == 0)) {
        at = -1;
        continue;
      }
      const int expert = last_at_most(offset, local_, static_cast<std::uint32_t>(at));
      const std::uint32_t to = t_.first_row[expert] * kBlockM +
                               t_.begin[batch.source * local_ + expert] +
                               static_cast<std::uint32_t>(at) - offset[expert];
      batch.place[d] = static_cast<std::int32_t>(to);
      *reinterpret_cast<uint4*>(p_.layout.origin(p_.workspace, to)) = {
          static_cast<std::uint32_t>(batch.source), entry.pair, __float_as_uint(entry.weight), 0};
      at = per_slot ? -1 : entry.next;
    }
    return good;
  }

  __device__ layout::RouteEntry entry_of(std::int32_t source, std::int32_t at) const {
    const uint4 raw = __ldcg(reinterpret_cast<const uint4*>(
        p_.layout.entries_of(p_.symmetric[p_.rank], signals_.slot(), source) + at));
    return {raw.x, __uint_as_float(raw.y), static_cast<std::int32_t>(raw.z),
            static_cast<std::int32_t>(raw.w)};
  }

  /// Copies the tokens of a batch.
  __device__ void stream(const Batch& batch) {
    const std::uint32_t tokens = __ballot_sync(~0u, batch.place[0] >= 0);
    if (tokens == 0) return;
    std::uint32_t left = tokens, to_issue = tokens;
    std::int32_t issue_at = 0;
    const auto bytes = static_cast<std::int32_t>(p_.layout.config.hidden * p_.layout.value_bytes);
    for (int i = 0; i < kAhead; ++i) issue(batch, to_issue, issue_at);
    float scales[2];
    load_scales(batch, left, scales);
    while (left != 0) {
      const int from = __ffs(static_cast<int>(left)) - 1;
      left &= left - 1;
      std::int32_t place = -1;
#pragma unroll
      for (int d = 0; d < kMaxTopk; ++d) {
        const std::int32_t there = __shfl_sync(~0u, batch.place[d], from);
        if (lane_ == d) place = there;
      }
      store_scales(place, scales);
      if (left != 0) load_scales(batch, left, scales);
      for (std::int32_t at = 0; at < bytes; at += kPieceBytes) {
        ptx::bulk_wait_source();  // of the piece before, whose slot is issued now
        __syncwarp();
        issue(batch, to_issue, issue_at);
        const int slot = static_cast<int>(done_ % kPieces);
        wait(&full_[slot], done_ / kPieces & 1);
        if (place >= 0)
          ptx::bulk_store(p_.layout.pool_token(p_.workspace, place) + at,
                          pieces_ + slot * kPieceBytes, piece_bytes(bytes - at));
        ptx::bulk_commit();
        ++done_;
      }
    }
    signal(batch);
  }

  /// Starts the next piece of the first token in `tokens`.
  __device__ void issue(const Batch& batch, std::uint32_t& tokens, std::int32_t& at) {
    if (tokens == 0) return;
    const int from = __ffs(static_cast<int>(tokens)) - 1;
    const std::int32_t source = __shfl_sync(~0u, batch.source, from);
    const std::uint32_t token = __shfl_sync(~0u, batch.token, from);
    const auto bytes = static_cast<std::int32_t>(p_.layout.config.hidden * p_.layout.value_bytes);
    const std::uint32_t size = piece_bytes(bytes - at);
    if (lane_ == 0) {
      const int slot = static_cast<int>(issued_ % kPieces);
      ptx::mbarrier_arrive_expect(&full_[slot], size);
      ptx::bulk_load(pieces_ + slot * kPieceBytes,
                     p_.layout.token(p_.symmetric[p_.rank], source, token) + at, size,
                     &full_[slot]);
    }
    ++issued_;
    at += kPieceBytes;
    if (at < bytes) return;
    at = 0;
    tokens &= tokens - 1;
  }

  /// Scales of the first token in `tokens`: groups lane and lane + 32.
  __device__ void load_scales(const Batch& batch, std::uint32_t tokens, float (&scales)[2]) const {
    const int from = __ffs(static_cast<int>(tokens)) - 1;
    const std::int32_t source = __shfl_sync(~0u, batch.source, from);
    const float* const of_token = p_.layout.scales_of_token(p_.symmetric[p_.rank], source,
                                                            __shfl_sync(~0u, batch.token, from));
    const auto groups = static_cast<std::int32_t>(p_.layout.hidden_groups);
    for (int i = 0; i < 2; ++i)
      if (lane_ + 32 * i < groups) scales[i] = __ldcg(of_token + lane_ + 32 * i);
  }

  /// `place`: one of the token's places in each lane, or -1.
  __device__ void store_scales(std::int32_t place, const float (&scales)[2]) const {
    const auto groups = static_cast<std::int32_t>(p_.layout.hidden_groups);
    for (std::uint32_t lanes = __ballot_sync(~0u, place >= 0); lanes != 0; lanes &= lanes - 1) {
      const std::int32_t to = __shfl_sync(~0u, place, __ffs(static_cast<int>(lanes)) - 1);
      for (int i = 0; i < 2; ++i)
        if (lane_ + 32 * i < groups)
          p_.layout.pool_scales_of(p_.workspace, to / kBlockM, lane_ + 32 * i)[to % kBlockM] =
              scales[i];
    }
  }

  /// The tokens of a batch are in all their places.
  __device__ void signal(const Batch& batch) {
    ptx::bulk_wait_done();
    // Scales and origins were ordinary stores; loaders read scales in bulk.
    ptx::fence_proxy_async_global();
    __syncwarp();
    ptx::fence_gpu();
#pragma unroll
    for (int d = 0; d < kMaxTopk; ++d)
      if (batch.place[d] >= 0) signals_.dispatched(batch.place[d] / kBlockM, 1);
  }

  __device__ static std::uint32_t piece_bytes(std::int32_t left) {
    return static_cast<std::uint32_t>(left < kPieceBytes ? left : kPieceBytes);
  }

  const FusedParams& p_;
  const RouteTables& t_;
  std::uint8_t* pieces_;  ///< [kPieces][kPieceBytes]
  std::uint64_t* full_;   ///< [kPieces]
  const sync::WaitContext& context_;
  FencedPolicy policy_;
  sync::MoeSignals<FencedPolicy> signals_;
  int lane_;
  std::int32_t local_;
  std::uint32_t issued_ = 0, done_ = 0;  ///< pieces, of all tokens so far
};

/// All warps of the block. Where steps and staging will be lie pieces and their barriers. False: an
/// entry cannot be.
__device__ inline bool dispatch(const FusedParams& p, const RouteTables& tables, BlockShared& s,
                                const sync::WaitContext& context) {
  constexpr int kBarriers = kWarps * kPieces;
  static_assert(offsetof(TileShared, b) == sizeof(TileShared::a) && kBarriers <= kThreads &&
                sizeof(TileShared::staging) >= kBarriers * sizeof(std::uint64_t));
  auto* const full = reinterpret_cast<std::uint64_t*>(s.tiles.staging);
  if (threadIdx.x < kBarriers) ptx::mbarrier_init(&full[threadIdx.x], 1);
  ptx::fence_mbarrier_init();
  __syncthreads();
  const int ring = static_cast<int>(threadIdx.x / 32) * kPieces;
  const bool good =
      Dispatcher(p, tables, s.tiles.a[0] + ring * kPieceBytes, full + ring, context).run();
  const bool all = __syncthreads_and(good);
  if (threadIdx.x < kBarriers) ptx::mbarrier_invalidate(&full[threadIdx.x]);
  ptx::fence_proxy_async_shared();
  __syncthreads();
  return all;
}

}  // namespace xstage::moe
