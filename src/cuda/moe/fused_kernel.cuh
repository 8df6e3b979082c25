// The fused MoE layer of one rank: one persistent kernel, a block an SM.
//
//   all warps     quantise own tokens, publish and read routes          prologue.cuh
//   all warps     fetch the tokens of this rank's experts               dispatch.cuh
//   warp 8        loader: walks the schedule, waits, fetches steps      loader.cuh
//   warps 0 … 7   two math warpgroups: products, SwiGLU, staging        product.cuh, swiglu.cuh
//   warps 9, 10   store: staging to the workspace, or to token owners   staging.cuh
//   all warps     slot sums of own tokens                               combine.cuh
//
// Only the prologue, the loader and the last step wait for other blocks or ranks; such a wait ends
// at its limit or when another rank stops, the loader then ends the tasks, and every role leaves.
//
// Each format is compiled in a file of its own.
#pragma once

#include "cuda/moe/combine.cuh"
#include "cuda/moe/dispatch.cuh"
#include "cuda/moe/format.cuh"
#include "cuda/moe/fused_launch.hpp"
#include "cuda/moe/loader.cuh"
#include "cuda/moe/mechanism.cuh"
#include "cuda/moe/product_bf16.cuh"
#include "cuda/moe/prologue.cuh"
#include "cuda/moe/push_bf16.cuh"
#include "cuda/moe/swiglu.cuh"
#include "cuda/moe/swiglu_bf16.cuh"
#include "cuda/probe/check.cuh"
#include "xstage/schedule/moe.hpp"

namespace xstage::moe {

/// Rounds of this rank's tokens to wherever they are needed.
template <class Format>
__device__ __forceinline__ void push(const FusedParams& p, std::int64_t first, std::int64_t last) {
  if constexpr (Format::kScaled)
    push_tokens(p, first, last);
  else
    push_values(p, first, last);
}

/// From the launch's epoch to the tables of what comes here. False: a wait ended early.
template <class Format>
__device__ bool run_prologue(const FusedParams& p, BlockShared& s, RouteTables& tables) {
  cuda::DevicePolicy policy;
  const auto worker = static_cast<std::int32_t>(blockIdx.x);
  if (threadIdx.x == 0) {
    mark(p, Mark::kBegin);
    FencedPolicy before_barrier;
    sync::MoeSignals<FencedPolicy> signals(before_barrier, p.layout, p.symmetric, p.workspace,
                                           wait_context(p, 0));
    signals.begin();
    s.epoch = signals.epoch();
  }
  __syncthreads();
  const sync::WaitContext context = wait_context(p, s.epoch);
  Signals signals(policy, p.layout, p.symmetric, p.workspace, context);

  const std::int64_t share = tokens_a_worker(p.tokens, static_cast<std::int32_t>(gridDim.x));
  TokenRange range{share * worker, share * (worker + 1)};
  if (range.begin > p.tokens) range.begin = p.tokens;
  if (range.end > p.tokens) range.end = p.tokens;
  RouteScratch scratch(s.tiles.a, p.layout.config.experts,
                       (range.end - range.begin) * p.layout.config.topk);
  if (!count_routes(p, range, scratch, context)) return false;
  __syncthreads();
  if (threadIdx.x == 0) signals.arrive_cleared();
  __syncwarp();
  // The link begins to work while workers learn what the others counted. With few tokens it would
  // be done before them, and the routes are what everybody waits for.
  const std::int64_t rounds = p.tokens / (std::int64_t{kPushThreads / 32} * gridDim.x);
  const std::int64_t early = rounds > 2 ? 1 : 0;
  if (threadIdx.x < kPushThreads) push<Format>(p, 0, early);
  bool good = threadIdx.x != 0 || signals.wait_cleared();
  if (!__syncthreads_and(good)) return false;
  if (threadIdx.x == 0) mark(p, Mark::kCounted);
  write_routes(p, range, scratch, tables, signals.slot());
  __syncthreads();
  if (threadIdx.x == 0) mark(p, Mark::kWritten);
  // A signal waits until the stores before it are there: one warp gives those of the routes, which
  // travel ahead of the tokens, another those of the tokens; nobody else waits for either. The
  // others read routes while the link has tokens to carry.
  const std::int32_t ranks = p.layout.config.ranks, workers = p.layout.config.workers;
  if (threadIdx.x >= kPushThreads) {
    if (threadIdx.x == kPushThreads) {
      sync::Barrier written(p.layout.word(p.workspace, layout::MoeWord::kBarrier), worker, workers);
      written.arrive(policy);
      if (worker < ranks) good = written.wait(policy, context, 1);
      for (std::int32_t to = worker; good && to < ranks; to += workers) signals.publish(to, [] {});
    }
  } else {
    push<Format>(p, early, rounds + 1);
    ptx::named_barrier_sync(kPushBarrier, kPushThreads);
    if (threadIdx.x >= kReaders) {
      if (threadIdx.x == kReaders) {
        signals.arrive_pushed();
        mark(p, Mark::kPushed);
        // Not who published, so that it does not come late to this.
        const std::int32_t first = workers - 1 - worker;
        if (first < ranks) good = signals.wait_pushed();
        for (std::int32_t to = first; good && to < ranks; to += workers) signals.announce(to);
      }
    } else {
      if (static_cast<std::int32_t>(threadIdx.x) < ranks)
        good = signals.wait_routes(static_cast<std::int32_t>(threadIdx.x));
      good = ptx::named_barrier_all(kReadBarrier, kReaders, good) &&
             read_counts(p, tables, signals.slot(), context);
    }
  }
  if (!__syncthreads_and(good)) return false;
  if (threadIdx.x == 0) {
    mark(p, Mark::kRouted);
    FencedPolicy relaxed;  // for the next launch
    sync::MoeSignals<FencedPolicy>(relaxed, p.layout, p.symmetric, p.workspace, context)
        .record_rows(tables.first_row[p.layout.experts_local]);
  }
  if (static_cast<std::int32_t>(threadIdx.x) < ranks)
    good = signals.wait_landed(static_cast<std::int32_t>(threadIdx.x));
  // The routes' scratch lies where bulk copies write next.
  ptx::fence_proxy_async_shared();
  if (!__syncthreads_and(good)) return false;
  if (threadIdx.x == 0) mark(p, Mark::kLanded);
  return true;
}

/// Walks this block's tiles: waits for what a tile needs, then fetches its steps. One thread.
__device__ inline void run_loader(const FusedParams& p, const FusedMaps& maps, BlockShared& s,
                                  const RouteTables& tables) {
  cuda::DevicePolicy policy;
  Signals signals(policy, p.layout, p.symmetric, p.workspace, wait_context(p, s.epoch));
  Ring<kTasks> tasks;
  Ring<kStages> stages;
  const auto hidden = static_cast<std::int32_t>(p.layout.config.hidden);
  const auto intermediate = static_cast<std::int32_t>(p.layout.config.intermediate);
  const auto value_bytes = static_cast<std::int32_t>(p.layout.value_bytes);
  const bool scaled = p.layout.hidden_groups > 0;
  const schedule::MoeOrder order(p.layout.tiling, p.layout.config.schedule, tables.tokens,
                                 static_cast<std::int32_t>(p.layout.experts_local));
  // Tiles are claimed, not dealt out: dealt out, blocks drift apart by whole tiles, and the rows of
  // an expert fetch its weights from memory once each instead of once together.
  FencedPolicy unordered;
  sync::MoeSignals<FencedPolicy> claims(unordered, p.layout, p.symmetric, p.workspace,
                                        wait_context(p, s.epoch));
  const auto claim = [&] { return claims.claim(); };
  schedule::ClaimedTiles<schedule::MoeOrder, decltype(claim)> tiles(order, claim);
  std::uint64_t position = claim();
  std::uint64_t waited[2] = {0, 0};
  for (schedule::MoeTile tile; tiles.take(position, tile);) {
    const bool first = tile.linear == schedule::Linear::kFirst;
    const std::uint64_t before = p.marks != nullptr ? ptx::globaltimer() : 0;
    if (!(first ? signals.wait_dispatched(tile.row, tile.tokens) : signals.wait_linear1(tile.row)))
      break;
    if (p.marks != nullptr) (first ? waited[0] : waited[1]) += ptx::globaltimer() - before;
    // What the wait acquired was partly written by ordinary stores; it is read by bulk copies.
    ptx::fence_proxy_async_global();
    put_task(s.tiles, tasks,
             {tile.row, tile.expert, tile.column, tile.tokens,
              first ? TaskKind::kLinear1 : TaskKind::kLinear2});
    TileSource source;
    source.row_a = static_cast<std::int32_t>(tile.row) * kBlockM;
    source.tokens = tile.tokens;
    const bool half = tile.tokens <= kGroupRows;
    if (first) {
      source.a = half ? &maps.pool_half : &maps.pool;
      source.b = &maps.w1;
      source.row_b[0] = tile.expert * 2 * intermediate + tile.column * kHalfN;
      source.row_b[1] = source.row_b[0] + intermediate;
      source.a_scales = scaled ? p.layout.pool_scales_of(p.workspace, tile.row, 0) : nullptr;
      source.steps = hidden * value_bytes / kBlockK;
    } else {
      source.a = half ? &maps.intermediate_half : &maps.intermediate;
      source.b = &maps.w2;
      source.row_b[0] = tile.expert * hidden + tile.column * kBlockN;
      source.row_b[1] = source.row_b[0] + kHalfN;
      source.a_scales =
          scaled ? p.layout.intermediate_scales_of(p.workspace, tile.row, 0) : nullptr;
      source.steps = intermediate * value_bytes / kBlockK;
    }
    load_tile(s.tiles, stages, source, [&] { position = claim(); });
    if (given_up(s.tiles)) break;
  }
  put_task(s.tiles, tasks, {});
  if (p.marks == nullptr) return;
  std::uint64_t* const marks = p.marks + blockIdx.x * static_cast<int>(Mark::kCount);
  marks[static_cast<int>(Mark::kWaitedDispatch)] = waited[0];
  marks[static_cast<int>(Mark::kWaitedLinear1)] = waited[1];
  mark(p, Mark::kIssued);
}

/// Products, and what follows them in registers. A math warpgroup.
template <class Format>
__device__ void run_math(const FusedParams& p, BlockShared& s) {
  const int group = static_cast<int>(threadIdx.x / 128);
  constexpr int kStepValues = kBlockK / Format::kValueBytes;
  const auto hidden_steps = static_cast<int>(p.layout.config.hidden / kStepValues);
  const auto intermediate_steps = static_cast<int>(p.layout.config.intermediate / kStepValues);
  Ring<kTasks> tasks;
  Ring<kStages> stages;
  std::uint32_t staging_parity = 0;
  Stopwatch staging;
  TileTask task;
  WeightScales scales;
  float weight0 = 0, weight1 = 0;
  // Blocks of 128 weight rows: W1 has 2I/128, first gate then up; W2 has H/128.
  const auto take = [&] {
    task = take_task(s.tiles, tasks);
    scales.steps = 0;
    if (task.kind == TaskKind::kLinear1) {
      scales.steps = hidden_steps;
      const std::int64_t first = std::int64_t{task.expert} * 2 * intermediate_steps + task.column;
      scales.of_half[0] = p.w1_scales + first * hidden_steps;
      scales.of_half[1] = scales.of_half[0] + intermediate_steps * hidden_steps;
    } else if (task.kind == TaskKind::kLinear2) {
      scales.steps = intermediate_steps;
      const std::int64_t first = std::int64_t{task.expert} * hidden_steps + 2 * task.column;
      scales.of_half[0] = p.w2_scales + first * intermediate_steps;
      scales.of_half[1] = scales.of_half[0] + intermediate_steps;
    }
    if constexpr (Format::kScaled) scales.load(0);
  };
  take();
  while (task.kind != TaskKind::kEnd) {
    if (task.tokens <= group * kGroupRows) {
      skip_tile(s.tiles, stages, scales.steps);
      take();
      continue;
    }
    const bool first = task.kind == TaskKind::kLinear1;
    if (first) {
      const std::int64_t place = task.row * kBlockM + group * kGroupRows + first_row();
      weight0 = __ldcg(&p.layout.origin(p.workspace, place)->weight);
      weight1 = __ldcg(&p.layout.origin(p.workspace, place + 8)->weight);
    }
    Sums sums;
    if constexpr (Format::kScaled)
      multiply_tile(s.tiles, stages, scales, sums);
    else
      multiply_tile_bf16(s.tiles, stages, scales.steps, sums);
    // The next task, if it is there; it may wait for what is staged now.
    const bool next = task_is_there(s.tiles, tasks);
    if (next) take();
    staging.begin();
    wait_staging_free(s.tiles, group, staging_parity);
    staging.end();
    staging_parity ^= 1;
    std::uint8_t* const to = s.tiles.staging[group];
    const float clamp = p.layout.config.activation.clamp;
    if (!first) {
      stage_bf16(to, sums);
    } else if constexpr (Format::kScaled) {
      const float2 of_codes = stage_swiglu(to, sums, weight0, weight1, clamp);
      if (threadIdx.x % 4 == 0) {
        s.tiles.staged_scales[group][first_row()] = of_codes.x;
        s.tiles.staged_scales[group][first_row() + 8] = of_codes.y;
      }
    } else {
      stage_swiglu_bf16(to, sums, weight0, weight1, clamp);
    }
    hand_staged(s.tiles, group);
    if (!next) take();
  }
  if (threadIdx.x == 0) staging.write(p, Mark::kWaitedStaging);
}

/// Linear-1: its result to the workspace. Whole warp; the first store warp counts the tile once the
/// second one has stored its half.
template <class Format>
__device__ void store_intermediate(const FusedParams& p, BlockShared& s, StoreState& state,
                                   const FusedMaps& maps, const TileTask& task, int slot,
                                   RankSignals& signals) {
  TileShared& t = s.tiles;
  if (!wait_staged(t, state) || threadIdx.x % 32 != 0) return;
  const int first = state.group * kGroupRows;
#pragma unroll
  for (int box = 0; box < Format::kValueBytes; ++box)
    ptx::tensor_store(&maps.intermediate_half, t.staging[state.group] + box * kBoxBytes,
                      {(task.column * Format::kValueBytes + box) * kBlockK,
                       static_cast<std::int32_t>(task.row) * kBlockM + first, 0, 0, 0});
  if constexpr (Format::kScaled)
    ptx::bulk_store(p.layout.intermediate_scales_of(p.workspace, task.row, task.column) + first,
                    t.staged_scales[state.group], sizeof(t.staged_scales[0]));
  ptx::bulk_commit();
  ptx::bulk_wait_source();
  ptx::mbarrier_arrive(&t.staging_free[state.group]);
  ptx::bulk_wait_done();
  if (state.group != 0) {
    ptx::mbarrier_arrive(&t.other_stored[slot]);
    return;
  }
  if (task.tokens > kGroupRows) {
    if (!wait(t, &t.other_stored[slot], state.other_parity >> slot & 1, Awaited::kOtherHalf))
      return;
    state.other_parity ^= 1u << slot;
  }
  signals.linear1_done(task.row);
}

/// Row pieces that a store warp has stored and not yet counted at their owners: lane r has those of
/// rank r. They are counted a tile later, when the stores have long arrived: waiting for them at
/// once would take as long as a short tile's products.
struct Uncounted {
  int pieces = 0;

  /// Whole warp, once its stores are complete.
  __device__ void count(Signals& signals) {
    __syncwarp();
    if (pieces > 0) signals.combined(static_cast<std::int32_t>(threadIdx.x % 32), pieces);
    pieces = 0;
  }
};

/// Linear-2: row pieces to the owners of their tokens. Whole warp.
__device__ inline void store_combine(const FusedParams& p, BlockShared& s, StoreState& state,
                                     const TileTask& task, Uncounted& uncounted, Signals& signals,
                                     Stopwatch& issue, Stopwatch& read) {
  std::uint32_t sources = 0;  // of this lane's two rows, a byte each; rank + 1, or 0 for no row
  const bool stored = store_rows(
      s.tiles, state, task.tokens,
      [&](int row) {
        const uint4 raw = __ldcg(
            reinterpret_cast<const uint4*>(p.layout.origin(p.workspace, task.row * kBlockM + row)));
        sources |= (raw.x + 1) << (row % kGroupRows / 32 * 8);
        return reinterpret_cast<char*>(p.layout.combine_row(p.symmetric[raw.x], raw.y) +
                                       std::int64_t{task.column} * kBlockN);
      },
      issue, read);
  if (!stored) return;
  ptx::bulk_wait_done_before_last();
  uncounted.count(signals);
  for (std::int32_t rank = 0; rank < p.layout.config.ranks; ++rank) {
    int pieces = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      pieces += __popc(
          __ballot_sync(~0u, (sources >> (8 * i) & 0xff) == static_cast<std::uint32_t>(rank + 1)));
    if (static_cast<std::int32_t>(threadIdx.x % 32) == rank) uncounted.pieces = pieces;
  }
}

template <class Format>
__device__ void run_store(const FusedParams& p, const FusedMaps& maps, BlockShared& s, int group) {
  cuda::DevicePolicy policy;
  Signals signals(policy, p.layout, p.symmetric, p.workspace, wait_context(p, s.epoch));
  RankPolicy rank_policy;
  RankSignals rank_signals(rank_policy, p.layout, p.symmetric, p.workspace,
                           wait_context(p, s.epoch));
  Ring<kTasks> tasks;
  StoreState state{group};
  Uncounted uncounted;
  Stopwatch issue, read;
  for (int slot = 0;; slot = (slot + 1) % kOtherStored) {
    const TileTask task = take_task(s.tiles, tasks);
    if (task.kind == TaskKind::kEnd) break;
    if (task.tokens <= group * kGroupRows) continue;
    if (task.kind == TaskKind::kLinear1)
      store_intermediate<Format>(p, s, state, maps, task, slot, rank_signals);
    else
      store_combine(p, s, state, task, uncounted, signals, issue, read);
    __syncwarp();
  }
  ptx::bulk_wait_done();
  uncounted.count(signals);
  if (group == 0 && threadIdx.x % 32 == 0) {
    issue.write(p, Mark::kStoreIssue, Mark::kStoreTiles);
    read.write(p, Mark::kStoreRead);
  }
}

/// All warps of a warpgroup, between two changes of its registers: a warp that comes to the second
/// one while another has yet to execute the first is undefined behaviour. The idle front warp, and
/// all warps of a block without tiles, would come to it at once; some launches then never ended.
__device__ inline void meet_warpgroup() {
  constexpr int kFirstBarrier = 3;  // those before are the prologue's
  static_assert(kPushBarrier < kFirstBarrier && kReadBarrier < kFirstBarrier);
  ptx::named_barrier_sync(kFirstBarrier + static_cast<int>(threadIdx.x / 128), 128);
}

/// A wait inside this block gave up: every rank is told. One thread, once all roles have left.
__device__ inline void stop_after_block(const FusedParams& p, const BlockShared& s) {
  cuda::DevicePolicy policy;
  const sync::WaitContext context = wait_context(p, s.epoch);
  sync::stop_all(policy, context,
                 {sync::WaitEnd::kLimit, sync::Site::kInsideBlock, p.rank, context.worker,
                  s.tiles.given_up >> 8, 0, s.tiles.given_up & 0xff, s.epoch, p.block_limit_ns});
}

template <class Format>
__global__ void __launch_bounds__(kThreads, 1)
    fused_moe(const __grid_constant__ FusedParams p, const __grid_constant__ FusedMaps maps) {
  extern __shared__ __align__(1024) std::uint8_t raw[];
  BlockShared& s = *reinterpret_cast<BlockShared*>(raw);
  RouteTables tables = RouteTables::at(raw + sizeof(BlockShared), p.layout.config.ranks,
                                       static_cast<std::int32_t>(p.layout.experts_local));
  if (threadIdx.x == 0) {
    init_barriers(s.tiles, p.block_limit_ns);
  }
  if (!run_prologue<Format>(p, s, tables)) return;
  if (!dispatch(p, tables, s, wait_context(p, s.epoch))) return;

  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp < kMathWarps) {
    ptx::set_registers_up<kMathRegisters>();
    run_math<Format>(p, s);
    meet_warpgroup();
    ptx::set_registers_down<kLaunchRegisters>();
  } else {
    ptx::set_registers_down<kFrontRegisters>();
    if (warp == kMathWarps && threadIdx.x % 32 == 0) run_loader(p, maps, s, tables);
    const int store = warp - kMathWarps - 1;
    if (store >= 0 && store < kMathGroups) run_store<Format>(p, maps, s, store);
    __syncwarp();
    meet_warpgroup();
    ptx::set_registers_up<kLaunchRegisters>();
  }
  __syncthreads();
  if constexpr (kWaitLimits)
    if (given_up(s.tiles)) {
      if (threadIdx.x == 0) stop_after_block(p, s);
      return;
    }
  if (threadIdx.x == 0) mark(p, Mark::kTilesDone);

  bool good = true;
  if (static_cast<std::int32_t>(threadIdx.x) < p.layout.config.ranks) {
    cuda::DevicePolicy policy;
    Signals signals(policy, p.layout, p.symmetric, p.workspace, wait_context(p, s.epoch));
    good = signals.wait_combined(static_cast<std::int32_t>(threadIdx.x), tables.sent[threadIdx.x]);
  }
  if (!__syncthreads_and(good)) return;
  if (threadIdx.x == 0) mark(p, Mark::kCombined);
  sum_slots(p, s);
  if (p.marks == nullptr) return;
  __syncthreads();
  if (threadIdx.x == 0) mark(p, Mark::kEnd);
}

template <class Format>
Result<bool> launch_fused(const FusedParams& params, const FusedMaps& maps, cudaStream_t stream) {
  const auto bytes = static_cast<std::size_t>(
      block_shared_bytes(params.layout.config.ranks, params.layout.experts_local));
  XSTAGE_CUDA_TRY(cudaFuncSetAttribute(
      fused_moe<Format>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;  // all blocks resident, or an error
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(params.layout.config.workers));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  XSTAGE_CUDA_TRY(cudaLaunchKernelEx(&config, fused_moe<Format>, params, maps));
  return true;
}

}  // namespace xstage::moe
