// Dispatch at the receiver: all warps put the tokens of this rank's experts into rows, before they
// take their roles, from where the tokens' owners stored them.
//
// First origins and scales, in the order of the rows. Then the tokens: neighbouring places of the
// pool belong to different blocks, so that the first rows are complete first. A block looks at its
// places, a thread each: whose token, and where else on this rank it goes. What is first needed
// there becomes a list in shared memory, from which the block's warps take one token after another
// (dealt out to warps, some would have twice as many as others). A token passes through registers:
// read once, stored to all its places, while the next piece is on its way.
#pragma once

#include <cstddef>

#include "cuda/moe/block.cuh"
#include "cuda/ptx/bulk.cuh"

namespace xstage::moe {

class Dispatcher {
 public:
  __device__ Dispatcher(const FusedParams& p, const RouteTables& tables, BlockShared& s,
                        const sync::WaitContext& context)
      : p_(p),
        t_(tables),
        list_(*reinterpret_cast<List*>(s.tiles.a)),
        context_(context),
        signals_(policy_, p.layout, p.symmetric, p.workspace, context),
        lane_(static_cast<int>(threadIdx.x % 32)),
        local_(static_cast<std::int32_t>(p.layout.experts_local)),
        bytes_(static_cast<std::int32_t>(p.layout.config.hidden * p.layout.value_bytes)) {
    static_assert(sizeof(List) <= sizeof(TileShared::a) + sizeof(TileShared::b) &&
                  offsetof(TileShared, b) == sizeof(TileShared::a));
  }

  /// All threads. False: an entry cannot be; every rank is told.
  __device__ bool run() {
    if (!__syncthreads_and(describe_places())) return false;
    const std::int64_t places = std::int64_t{t_.first_row[local_]} * kBlockM;
    for (std::int64_t first = 0; first < places; first += std::int64_t{kLooks} * gridDim.x) {
      if (threadIdx.x == 0) list_.count = list_.taken = 0;
      __syncthreads();
      bool good = true;
      for (int look = static_cast<int>(threadIdx.x); good && look < kLooks; look += kThreads) {
        const std::int64_t place = first + std::int64_t{look} * gridDim.x + blockIdx.x;
        if (place >= places) break;
        good = find(place);
      }
      if (!__syncthreads_and(good)) return false;
      copy_tokens();
      // These were ordinary stores; loaders read in bulk.
      ptx::fence_proxy_async_global();
      __syncthreads();
      signal();
      __syncthreads();
    }
    return true;
  }

 private:
  /// Places that a block looks at in one go.
  static constexpr int kLooks = 5 * kThreads;
  /// A token, and where it goes: its places on this rank, -1 behind the last.
  struct Token {
    std::uint32_t landing;
    std::int32_t place[kMaxTopk];
  };
  struct List {
    int count, taken;
    Token tokens[kLooks];
  };
  /// 16 bytes of each of 512 a lane: what a warp has of a token at a time.
  static constexpr int kParts = 4;
  static constexpr int kPieceBytes = 512 * kParts;
  struct Piece {
    uint4 part[kParts];
  };

  /// Origins and scales, 32 neighbouring places of a row a warp, a place a lane: what lies next to
  /// each other is written together. (With its token each scale would be a store of 4 bytes by
  /// itself; these took as long as the tokens.) Whole warp. False: an entry cannot be.
  __device__ bool describe_places() {
    const std::int64_t units = std::int64_t{t_.first_row[local_]} * (kBlockM / 32);
    const std::int64_t own = blockIdx.x + std::int64_t{threadIdx.x / 32} * gridDim.x;
    const std::int64_t warps = std::int64_t{kThreads / 32} * gridDim.x;
    bool good = true;
    for (std::int64_t unit = own; unit < units; unit += warps)
      good = describe(unit * 32 + lane_) && good;
    if (!__all_sync(~0u, good)) return false;
    // These were ordinary stores; loaders read scales in bulk.
    ptx::fence_proxy_async_global();
    __syncwarp();
    if (lane_ != 0) return true;
    ptx::fence_gpu();
    for (std::int64_t unit = own; unit < units; unit += warps)
      if (const std::int64_t left = tokens_from(unit * 32); left > 0)
        signals_.dispatched(unit / (kBlockM / 32), left < 32 ? left : 32);
    return true;
  }

  /// Tokens of the row's expert at `place` and behind it.
  __device__ std::int64_t tokens_from(std::int64_t place) const {
    const int expert =
        last_at_most(t_.first_row, local_, static_cast<std::uint32_t>(place / kBlockM));
    return std::int64_t{t_.tokens[expert]} + std::int64_t{t_.first_row[expert]} * kBlockM - place;
  }

  __device__ bool describe(std::int64_t place) {
    const int expert =
        last_at_most(t_.first_row, local_, static_cast<std::uint32_t>(place / kBlockM));
    const auto within =
        static_cast<std::uint32_t>(place - std::int64_t{t_.first_row[expert]} * kBlockM);
    if (within >= t_.tokens[expert]) return true;
    const std::int32_t source = source_of(expert, within);
    const layout::RouteEntry entry =
        entry_of(source, static_cast<std::int32_t>(t_.offset[source * (local_ + 1) + expert] +
                                                   within - t_.begin[source * local_ + expert]));
    if (entry.pair >= static_cast<std::uint64_t>(p_.layout.pairs)) return refuse(source, entry);
    *reinterpret_cast<uint4*>(p_.layout.origin(p_.workspace, place)) = {
        static_cast<std::uint32_t>(source), entry.pair, __float_as_uint(entry.weight), 0};
    const auto groups = static_cast<std::int32_t>(p_.layout.hidden_groups);
    const float* const from =
        p_.layout.scales_of_token(p_.symmetric[p_.rank], source,
                                  entry.pair / static_cast<std::uint32_t>(p_.layout.config.topk));
    float* const to = p_.layout.pool_scales_of(p_.workspace, place / kBlockM, 0) + place % kBlockM;
    if (groups % 4 != 0) {
#pragma unroll 4
      for (std::int32_t group = 0; group < groups; ++group)
        to[group * kBlockM] = __ldcg(from + group);
      return true;
    }
#pragma unroll 4
    for (std::int32_t group = 0; group < groups; group += 4) {
      const float4 four = __ldcg(reinterpret_cast<const float4*>(from + group));
      to[group * kBlockM] = four.x;
      to[(group + 1) * kBlockM] = four.y;
      to[(group + 2) * kBlockM] = four.z;
      to[(group + 3) * kBlockM] = four.w;
    }
    return true;
  }

  /// Who sent an expert's `within`-th token.
  __device__ std::int32_t source_of(int expert, std::uint32_t within) const {
    std::int32_t source = 0;
    for (std::int32_t s = 1; s < p_.layout.config.ranks; ++s)
      if (t_.begin[s * local_ + expert] <= within) source = s;
    return source;
  }

  /// Ends the launch on every rank.
  __device__ bool refuse(std::int32_t source, const layout::RouteEntry& entry) {
    sync::stop_all(policy_, context_,
                   {sync::WaitEnd::kCorrupt, sync::Site::kRoutes, p_.rank, context_.worker, source,
                    static_cast<std::uint64_t>(p_.layout.pairs), entry.pair, context_.epoch, 0});
    return false;
  }

  /// The token of `place`, if it is first needed there (every slot fetches its own where tokens
  /// come once a slot), and all its places. False: an entry cannot be.
  __device__ bool find(std::int64_t place) {
    const int of_row =
        last_at_most(t_.first_row, local_, static_cast<std::uint32_t>(place / kBlockM));
    const auto within =
        static_cast<std::uint32_t>(place - std::int64_t{t_.first_row[of_row]} * kBlockM);
    if (within >= t_.tokens[of_row]) return true;
    const std::int32_t source = source_of(of_row, within);
    const std::uint32_t* const begin = t_.begin + source * local_;
    const std::uint32_t* const offset = t_.offset + source * (local_ + 1);
    const auto entries = static_cast<std::int32_t>(offset[local_]);
    const bool per_slot = p_.layout.config.dispatch == layout::MoeDispatch::kPerSlot;
    auto at = static_cast<std::int32_t>(offset[of_row] + within - begin[of_row]);
    Token* token = nullptr;
    for (int d = 0; d < kMaxTopk && at >= 0; ++d) {
      const layout::RouteEntry entry = entry_of(source, at);
      if (entry.pair >= static_cast<std::uint64_t>(p_.layout.pairs) || entry.next >= entries)
        return refuse(source, entry);
      if (d == 0) {
        if (!per_slot && entry.first == 0) return true;
        token = &list_.tokens[atomicAdd(&list_.count, 1)];
        token->landing = static_cast<std::uint32_t>(p_.layout.landing(
            source, entry.pair / static_cast<std::uint32_t>(p_.layout.config.topk)));
      }
      const int expert = last_at_most(offset, local_, static_cast<std::uint32_t>(at));
      const std::uint32_t to = t_.first_row[expert] * kBlockM + begin[expert] +
                               static_cast<std::uint32_t>(at) - offset[expert];
      token->place[d] = static_cast<std::int32_t>(to);
      if (d + 1 < kMaxTopk) token->place[d + 1] = -1;
      at = per_slot ? -1 : entry.next;
    }
    return true;
  }

  __device__ layout::RouteEntry entry_of(std::int32_t source, std::int32_t at) const {
    const uint4 raw = __ldcg(reinterpret_cast<const uint4*>(
        p_.layout.entries_of(p_.symmetric[p_.rank], signals_.slot(), source) + at));
    return {raw.x, __uint_as_float(raw.y), static_cast<std::int32_t>(raw.z),
            static_cast<std::int32_t>(raw.w)};
  }

  /// Takes tokens from the list until none is left. Whole warp.
  __device__ void copy_tokens() {
    int token = take();
    std::int32_t at = 0;
    Piece now, next;
    if (token >= 0) load(token, at, now);
    while (token >= 0) {
      const int this_token = token;
      const std::int32_t this_at = at;
      at += kPieceBytes;
      if (at >= bytes_) {
        at = 0;
        token = take();
      }
      if (token >= 0) load(token, at, next);
      store(this_token, this_at, now);
      now = next;
    }
  }

  /// The next token of the list, or -1. Whole warp.
  __device__ int take() {
    int token = 0;
    if (lane_ == 0) token = atomicAdd(&list_.taken, 1);
    token = __shfl_sync(~0u, token, 0);
    return token < list_.count ? token : -1;
  }

  __device__ __forceinline__ void load(int token, std::int32_t at, Piece& piece) const {
    const char* const from = p_.layout.token(p_.symmetric[p_.rank], 0, 0) +
                             std::int64_t{list_.tokens[token].landing} * bytes_ + at + 16 * lane_;
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (at + 16 * lane_ + 512 * i < bytes_)
        piece.part[i] = __ldcg(reinterpret_cast<const uint4*>(from + 512 * i));
  }

  /// To all places of the token.
  __device__ __forceinline__ void store(int token, std::int32_t at, const Piece& piece) const {
    const Token& of = list_.tokens[token];
    for (int d = 0; d < kMaxTopk; ++d) {
      const std::int32_t place = of.place[d];
      if (place < 0) break;
      char* const to = p_.layout.pool_token(p_.workspace, place) + at + 16 * lane_;
#pragma unroll
      for (int i = 0; i < kParts; ++i)
        if (at + 16 * lane_ + 512 * i < bytes_)
          *reinterpret_cast<uint4*>(to + 512 * i) = piece.part[i];
    }
  }

  /// The tokens of the list are in all their places.
  __device__ void signal() {
    ptx::fence_gpu();
    for (int token = static_cast<int>(threadIdx.x); token < list_.count; token += kThreads)
      for (int d = 0; d < kMaxTopk && list_.tokens[token].place[d] >= 0; ++d)
        signals_.dispatched(list_.tokens[token].place[d] / kBlockM, 1);
  }

  const FusedParams& p_;
  const RouteTables& t_;
  List& list_;
  const sync::WaitContext& context_;
  FencedPolicy policy_;
  sync::MoeSignals<FencedPolicy> signals_;
  int lane_;
  std::int32_t local_;
  std::int32_t bytes_;  ///< of a token's values
};

/// All warps of the block; uses the memory where steps will be. False: an entry cannot be.
__device__ inline bool dispatch(const FusedParams& p, const RouteTables& tables, BlockShared& s,
                                const sync::WaitContext& context) {
  const bool good = Dispatcher(p, tables, s, context).run();
  // The list lay where bulk copies write next.
  ptx::fence_proxy_async_shared();
  __syncthreads();
  return good;
}

}  // namespace xstage::moe
