// Dispatch: warps that fetch the tokens of this rank's experts, in the order of the pool's rows.
#pragma once

#include "cuda/moe/block.cuh"
#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/bulk_load.cuh"

namespace xstage::moe {

class Dispatcher {
 public:
  __device__ Dispatcher(const FusedParams& p, const RouteTables& tables, BlockShared& s,
                        const sync::WaitContext& context, int warp)
      : p_(p),
        t_(tables),
        piece_(s.piece[warp]),
        full_(&s.piece_full[warp]),
        context_(context),
        signals_(policy_, p.layout, p.symmetric, p.workspace, context),
        warp_(warp) {}

  /// Whole warp. False: an entry cannot be; every rank is told.
  __device__ bool run() {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const auto local = static_cast<std::int32_t>(p_.layout.experts_local);
    const bool per_slot = p_.layout.config.dispatch == layout::MoeDispatch::kPerSlot;
    // Peers' tokens were written by ordinary stores; they are read by bulk copies.
    ptx::fence_proxy_async();
    const std::int64_t places = std::int64_t{t_.first_row[local]} * kBlockM;
    const std::int64_t step = std::int64_t{32} * kDispatchWarps * gridDim.x;
    for (std::int64_t first = 32 * (blockIdx.x + std::int64_t{warp_} * gridDim.x); first < places;
         first += step) {
      // Each lane looks at one place: whose token is it, and is this where the token is fetched?
      const std::int64_t place = first + lane;
      const int expert =
          last_at_most(t_.first_row, local, static_cast<std::uint32_t>(place / kBlockM));
      const auto within =
          static_cast<std::uint32_t>(place - std::int64_t{t_.first_row[expert]} * kBlockM);
      std::int32_t source = 0, chain[kMaxTopk];
      std::uint32_t pair = 0;
      std::int32_t at = -1;
      if (within < t_.tokens[expert]) {
        for (std::int32_t s = 1; s < p_.layout.config.ranks; ++s)
          if (t_.begin[s * local + expert] <= within) source = s;
        at = static_cast<std::int32_t>(t_.offset[source * (local + 1) + expert] + within -
                                       t_.begin[source * local + expert]);
      }
      bool good = true;
#pragma unroll
      for (int d = 0; d < kMaxTopk; ++d) {
        chain[d] = at;
        if (at < 0) continue;
        const layout::RouteEntry entry = entry_of(source, at);
        if (d == 0) {
          pair = entry.pair;
          if (!per_slot && entry.first == 0) chain[0] = -1;
        }
        good = good && entry.pair < static_cast<std::uint64_t>(p_.layout.pairs) &&
               entry.next < static_cast<std::int32_t>(t_.offset[source * (local + 1) + local]);
        at = per_slot || chain[0] < 0 || !good ? -1 : entry.next;
      }
      if (!__all_sync(~0u, good)) {
        if (!good)
          sync::stop_all(
              policy_, context_,
              {sync::WaitEnd::kCorrupt, sync::Site::kRoutes, p_.rank, context_.worker, source,
               static_cast<std::uint64_t>(p_.layout.pairs), pair, context_.epoch, 0});
        return false;
      }
      for (std::uint32_t left = __ballot_sync(~0u, chain[0] >= 0); left != 0; left &= left - 1) {
        const int from = __ffs(static_cast<int>(left)) - 1;
        std::int32_t mine = -1;
#pragma unroll
        for (int d = 0; d < kMaxTopk; ++d) {
          const std::int32_t entry = __shfl_sync(~0u, chain[d], from);
          if (lane == d) mine = entry;
        }
        copy_token(__shfl_sync(~0u, source, from),
                   __shfl_sync(~0u, pair, from) / static_cast<std::uint32_t>(p_.layout.config.topk),
                   mine);
      }
    }
    return true;
  }

 private:
  __device__ layout::RouteEntry entry_of(std::int32_t source, std::int32_t at) const {
    const uint4 raw = __ldcg(reinterpret_cast<const uint4*>(
        p_.layout.entries_of(p_.symmetric[p_.rank], signals_.slot(), source) + at));
    return {raw.x, __uint_as_float(raw.y), static_cast<std::int32_t>(raw.z),
            static_cast<std::int32_t>(raw.w)};
  }

  /// One token of `source` to the places of the entries that the lanes hold (-1: none).
  __device__ void copy_token(std::int32_t source, std::int64_t token, std::int32_t entry_at) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const auto local = static_cast<std::int32_t>(p_.layout.experts_local);
    void* const base = p_.symmetric[source];
    const auto bytes = static_cast<std::int32_t>(p_.layout.config.hidden);
    const char* const from = p_.layout.token(base, token);
    load_piece(from, bytes);
    std::int64_t place = -1;
    if (entry_at >= 0) {
      const std::uint32_t* const offset = t_.offset + source * (local + 1);
      const int expert = last_at_most(offset, local, static_cast<std::uint32_t>(entry_at));
      place = std::int64_t{t_.first_row[expert]} * kBlockM + t_.begin[source * local + expert] +
              static_cast<std::uint32_t>(entry_at) - offset[expert];
      const layout::RouteEntry entry = entry_of(source, entry_at);
      *reinterpret_cast<uint4*>(p_.layout.origin(p_.workspace, place)) = {
          static_cast<std::uint32_t>(source), entry.pair, __float_as_uint(entry.weight), 0};
    }
    const std::uint32_t places = __ballot_sync(~0u, place >= 0);
    const auto groups = static_cast<std::int32_t>(p_.layout.hidden_groups);
    for (std::int32_t first = 0; first < groups; first += 32) {
      const std::int32_t group = first + lane;
      const float scale =
          group < groups ? __ldcg(p_.layout.scales_of_token(base, token) + group) : 0.0f;
      for (std::uint32_t left = places; left != 0; left &= left - 1) {
        const std::int64_t to = __shfl_sync(~0u, place, __ffs(static_cast<int>(left)) - 1);
        if (group < groups)
          p_.layout.pool_scales_of(p_.workspace, to / kBlockM, group)[to % kBlockM] = scale;
      }
    }
    for (std::int32_t done = 0; done < bytes; done += kPieceBytes) {
      if (done > 0) load_piece(from + done, bytes - done);
      wait(full_, parity_);
      parity_ ^= 1;
      if (place >= 0)
        ptx::bulk_store(p_.layout.pool_token(p_.workspace, place) + done, piece_,
                        piece_bytes(bytes - done));
      ptx::bulk_commit();
      ptx::bulk_wait_source();
      __syncwarp();
    }
    ptx::bulk_wait_done();
    // Scales and origins were ordinary stores; the loader of another block reads them in bulk.
    ptx::fence_proxy_async();
    __syncwarp();
    if (place >= 0) signals_.dispatched(place / kBlockM, 1);
  }

  __device__ static std::uint32_t piece_bytes(std::int32_t left) {
    return static_cast<std::uint32_t>(left < kPieceBytes ? left : kPieceBytes);
  }
  __device__ void load_piece(const char* from, std::int32_t left) {
    if (threadIdx.x % 32 != 0) return;
    ptx::mbarrier_arrive_expect(full_, piece_bytes(left));
    ptx::bulk_load(piece_, from, piece_bytes(left), full_);
  }

  const FusedParams& p_;
  const RouteTables& t_;
  std::uint8_t* piece_;
  std::uint64_t* full_;
  const sync::WaitContext& context_;
  cuda::DevicePolicy policy_;
  Signals signals_;
  int warp_;
  std::uint32_t parity_ = 0;
};

}  // namespace xstage::moe
