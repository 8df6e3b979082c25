// Dispatch at the receiver: tokens of this rank's experts from where their owners stored them into
// the rows of the experts, in the order of the rows.
//
// A unit is eight neighbouring places of a row. Its warp looks up whose tokens these are, writes
// origins and scales side by side, and moves the tokens through its piece of shared memory, each
// fetched and all of them stored by bulk copies: one look-up a place, no chain. A token is fetched
// once for each of its places; the second time it comes from L2.
//
// All blocks fill the rows that the first tiles need. Then most of them begin with tiles, and a few
// (`kFillers`) fill the other rows ahead of the tiles: a block that only moves tokens moves many
// times what one warp moves beside the products.
#pragma once

#include <cstddef>

#include "cuda/moe/block.cuh"
#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/bulk_load.cuh"

namespace xstage::moe {

/// Blocks that go on filling rows while the others have begun with tiles. 8 fall behind the tiles
/// of small layers, 24 are missed there.
inline constexpr std::int64_t kFillers = 16;
/// Places that a warp fills at a time.
inline constexpr int kFillPlaces = 8;
/// Tokens on their way, a warp: at least one.
inline constexpr int kFillBytes = 16384;
static_assert(kFillBytes >= 2 * kMaxHidden);

class Dispatcher {
 public:
  /// `buffer`, `full`: of this warp, the latter initialised.
  __device__ Dispatcher(const FusedParams& p, const RouteTables& tables,
                        const sync::WaitContext& context, std::uint8_t* buffer, std::uint64_t* full)
      : p_(p),
        t_(tables),
        context_(context),
        signals_(policy_, p.layout, p.symmetric, p.workspace, context),
        buffer_(buffer),
        full_(full),
        lane_(static_cast<int>(threadIdx.x % 32)),
        local_(static_cast<std::int32_t>(p.layout.experts_local)),
        bytes_(static_cast<std::int32_t>(p.layout.config.hidden * p.layout.value_bytes)) {}

  /// Units of the rows [first, last), dealt to the warps of the first `blocks` blocks. Whole warp;
  /// false: an entry cannot be, every rank is told.
  __device__ bool fill(std::int64_t first, std::int64_t last, std::int64_t blocks) {
    constexpr std::int64_t kOfRow = kBlockM / kFillPlaces;
    if (blockIdx.x >= blocks) return true;
    const std::int64_t warps = std::int64_t{kThreads / 32} * blocks;
    bool good = true;
    for (std::int64_t unit = first * kOfRow + blockIdx.x + std::int64_t{threadIdx.x / 32} * blocks;
         good && unit < last * kOfRow; unit += warps)
      good = fill_places(unit * kFillPlaces);
    signal();
    return good;
  }

 private:
  /// Whole warp; four lanes a place.
  __device__ bool fill_places(std::int64_t first) {
    const int expert =
        last_at_most(t_.first_row, local_, static_cast<std::uint32_t>(first / kBlockM));
    const auto within =
        static_cast<std::int32_t>(first - std::int64_t{t_.first_row[expert]} * kBlockM);
    const std::int32_t left = static_cast<std::int32_t>(t_.tokens[expert]) - within;
    if (left <= 0) return true;
    const int count = left < kFillPlaces ? left : kFillPlaces;
    const int mine = lane_ % kFillPlaces;
    bool good = true;
    std::int64_t landing = 0;
    if (mine < count) good = describe(first + mine, expert, within + mine, landing);
    // These were ordinary stores; loaders read scales in bulk.
    ptx::fence_proxy_async_global();
    if (!__all_sync(~0u, good)) return false;
    const int together = kFillBytes / bytes_ < kFillPlaces ? kFillBytes / bytes_ : kFillPlaces;
    for (int done = 0; done < count; done += together) {
      const int now = count - done < together ? count - done : together;
      if (lane_ == 0) {
        ptx::bulk_wait_source();
        ptx::mbarrier_arrive_expect(full_, static_cast<std::uint32_t>(now * bytes_));
      }
      __syncwarp();
      if (lane_ >= done && lane_ < done + now)
        ptx::bulk_load(buffer_ + (lane_ - done) * bytes_,
                       p_.layout.token(p_.symmetric[p_.rank], 0, 0) + landing * bytes_,
                       static_cast<std::uint32_t>(bytes_), full_);
      // While these are on their way: what the unit before has stored.
      if (done == 0) signal();
      wait(full_, parity_);
      parity_ ^= 1;
      if (lane_ == 0) {
        ptx::bulk_store(p_.layout.pool_token(p_.workspace, first + done), buffer_,
                        static_cast<std::uint32_t>(now * bytes_));
        ptx::bulk_commit();
      }
    }
    stored_row_ = first / kBlockM;
    stored_ = count;
    return true;
  }

  /// The unit stored last is in place. Whole warp.
  __device__ void signal() {
    if (lane_ == 0 && stored_ > 0) {
      ptx::bulk_wait_done();
      signals_.dispatched(stored_row_, stored_);
    }
    stored_ = 0;
    __syncwarp();
  }

  /// Origin and scales of a place; `landing`: its token among those of all sources.
  __device__ bool describe(std::int64_t place, int expert, std::int32_t within,
                           std::int64_t& landing) {
    const std::int32_t source = source_of(expert, static_cast<std::uint32_t>(within));
    const auto at = static_cast<std::int32_t>(t_.offset[source * (local_ + 1) + expert] +
                                              static_cast<std::uint32_t>(within) -
                                              t_.begin[source * local_ + expert]);
    const uint4 raw = __ldcg(reinterpret_cast<const uint4*>(
        p_.layout.entries_of(p_.symmetric[p_.rank], signals_.slot(), source) + at));
    const std::uint32_t pair = raw.x;
    if (pair >= static_cast<std::uint64_t>(p_.layout.pairs)) return refuse(source, pair);
    landing = p_.layout.landing(source, pair / static_cast<std::uint32_t>(p_.layout.config.topk));
    const int part = lane_ / kFillPlaces;
    if (part == 0)
      *reinterpret_cast<uint4*>(p_.layout.origin(p_.workspace, place)) = {
          static_cast<std::uint32_t>(source), pair, raw.y, 0};
    const auto groups = static_cast<std::int32_t>(p_.layout.hidden_groups);
    const float* const from =
        p_.layout.scales_of_token(p_.symmetric[p_.rank], 0, 0) + landing * groups;
    float* const to = p_.layout.pool_scales_of(p_.workspace, place / kBlockM, 0) + place % kBlockM;
    constexpr int kParts = 32 / kFillPlaces;
    if (groups % 4 != 0) {
#pragma unroll 4
      for (std::int32_t group = part; group < groups; group += kParts)
        to[group * kBlockM] = __ldcg(from + group);
      return true;
    }
#pragma unroll 4
    for (std::int32_t group = 4 * part; group < groups; group += 4 * kParts) {
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
  __device__ bool refuse(std::int32_t source, std::uint32_t pair) {
    sync::stop_all(policy_, context_,
                   {sync::WaitEnd::kCorrupt, sync::Site::kRoutes, p_.rank, context_.worker, source,
                    static_cast<std::uint64_t>(p_.layout.pairs), pair, context_.epoch, 0});
    return false;
  }

  const FusedParams& p_;
  const RouteTables& t_;
  const sync::WaitContext& context_;
  RankPolicy policy_;
  RankSignals signals_;
  std::uint8_t* buffer_;  ///< [kFillBytes]
  std::uint64_t* full_;
  std::uint32_t parity_ = 0;
  std::int64_t stored_row_ = 0;  ///< of the unit that is stored and not yet signalled
  int stored_ = 0;               ///< its places
  int lane_;
  std::int32_t local_;
  std::int32_t bytes_;  ///< of a token's values
};

/// All warps of the block; uses the memory where steps will be. False: an entry cannot be.
__device__ inline bool dispatch(const FusedParams& p, const RouteTables& tables, BlockShared& s,
                                const sync::WaitContext& context) {
  constexpr int kWarps = kThreads / 32;
  static_assert(offsetof(TileShared, staged_scales) >=
                kWarps * (kFillBytes + sizeof(std::uint64_t)));
  auto* const memory = reinterpret_cast<std::uint8_t*>(&s.tiles);
  auto* const full = reinterpret_cast<std::uint64_t*>(memory + kWarps * kFillBytes);
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (threadIdx.x < kWarps) ptx::mbarrier_init(&full[threadIdx.x], 1);
  ptx::fence_mbarrier_init();
  // Tokens came by ordinary stores of peers.
  ptx::fence_proxy_async();
  __syncthreads();
  const std::int64_t rows = tables.first_row[p.layout.experts_local];
  const std::int64_t blocks = gridDim.x;
  // Rows of the first tiles of all blocks, and as many again for their next ones.
  std::int64_t at_once = 2 * ((blocks + p.layout.tiling.n1 - 1) / p.layout.tiling.n1);
  const std::int64_t fillers = blocks < 4 * kFillers ? (blocks + 3) / 4 : kFillers;
  // A few rows more are not worth it.
  if (rows <= 2 * at_once) at_once = rows;
  Dispatcher dispatcher(p, tables, context, memory + warp * kFillBytes, full + warp);
  bool good = dispatcher.fill(0, at_once, blocks);
  if (threadIdx.x == 0) mark(p, Mark::kDispatched);
  good = good && dispatcher.fill(at_once, rows, fillers);
  // Where steps come by bulk copies.
  ptx::fence_proxy_async_shared();
  return __syncthreads_and(good);
}

}  // namespace xstage::moe
