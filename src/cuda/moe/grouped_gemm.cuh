// The grouped GEMM of a format; each is compiled in a file of its own.
#pragma once

#include "cuda/moe/format.cuh"
#include "cuda/moe/grouped_gemm.hpp"
#include "cuda/moe/loader.cuh"
#include "cuda/moe/product.cuh"
#include "cuda/moe/product_bf16.cuh"
#include "cuda/moe/staging.cuh"
#include "cuda/moe/tensor_map.hpp"
#include "cuda/probe/check.cuh"
#include "cuda/ptx/sync.cuh"

namespace xstage::moe {

struct GemmSizes {
  std::int32_t n_tiles;
  std::int32_t steps;
  std::int64_t tiles;
};

__device__ inline void run_gemm_loader(TileShared& s, const CUtensorMap& a,
                                       const CUtensorMap& a_half, const CUtensorMap& b,
                                       const GroupedGemm& gemm, const GemmSizes& sizes) {
  Ring<kTasks> tasks;
  Ring<kStages> stages;
  // Claimed in order, so that the rows of an expert pass at the same time and share its weights.
  for (std::int64_t tile = blockIdx.x, next = 0; tile < sizes.tiles; tile = gridDim.x + next) {
    TileTask task;
    task.row = tile / sizes.n_tiles;
    task.column = static_cast<std::int32_t>(tile % sizes.n_tiles);
    task.expert = gemm.row_expert[task.row];
    task.tokens = gemm.row_tokens[task.row];
    task.kind = TaskKind::kLinear2;
    put_task(s, tasks, task);
    const auto row_b =
        static_cast<std::int32_t>(task.expert * gemm.n + std::int64_t{task.column} * kBlockN);
    load_tile(
        s, stages,
        {task.tokens > kGroupRows ? &a : &a_half,
         &b,
         static_cast<std::int32_t>(task.row * kBlockM),
         {row_b, row_b + kHalfN},
         gemm.a_scales == nullptr ? nullptr : gemm.a_scales + task.row * sizes.steps * kBlockM,
         sizes.steps,
         task.tokens},
        [&] { next = static_cast<std::int64_t>(ptx::atom_add_relaxed_gpu(gemm.claimed, 1)); });
  }
  put_task(s, tasks, {});
}

template <class Format>
__device__ void run_gemm_math(TileShared& s, const GroupedGemm& gemm, const GemmSizes& sizes) {
  const int group = static_cast<int>(threadIdx.x / 128);
  Ring<kTasks> tasks;
  Ring<kStages> stages;
  std::uint32_t staging_parity = 0;
  TileTask task;
  WeightScales scales;
  const auto take = [&] {
    task = take_task(s, tasks);
    if constexpr (!Format::kScaled) return;
    scales.of_half[0] =
        gemm.b_scales +
        (task.expert * (gemm.n / 128) + std::int64_t{2} * task.column) * sizes.steps;
    scales.of_half[1] = scales.of_half[0] + sizes.steps;
    scales.steps = task.kind == TaskKind::kEnd ? 0 : sizes.steps;
    scales.load(0);
  };
  take();
  while (task.kind != TaskKind::kEnd) {
    if (task.tokens <= group * kGroupRows) {
      skip_tile(s, stages, sizes.steps);
      take();
      continue;
    }
    Sums sums;
    if constexpr (Format::kScaled)
      multiply_tile(s, stages, scales, sums);
    else
      multiply_tile_bf16(s, stages, sizes.steps, sums);
    const bool next = task_is_there(s, tasks);
    if (next) take();
    wait_staging_free(s, group, staging_parity);
    staging_parity ^= 1;
    stage_bf16(s.staging[group], sums);
    hand_staged(s, group);
    if (!next) take();
  }
}

__device__ inline void run_gemm_store(TileShared& s, const GroupedGemm& gemm, int group) {
  Ring<kTasks> tasks;
  StoreState state{group};
  for (;;) {
    const TileTask task = take_task(s, tasks);
    if (task.kind == TaskKind::kEnd) break;
    if (task.tokens <= group * kGroupRows) continue;
    store_rows(s, state, task.tokens, [&](int row) {
      return reinterpret_cast<char*>(gemm.out + (task.row * kBlockM + row) * gemm.n +
                                     std::int64_t{task.column} * kBlockN);
    });
  }
  ptx::bulk_wait_done();
}

inline constexpr std::uint64_t kGemmWaitNs = 5000000000;

template <class Format>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_gemm(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap a_half,
                 const __grid_constant__ CUtensorMap b, const __grid_constant__ GroupedGemm gemm,
                 const __grid_constant__ GemmSizes sizes) {
  extern __shared__ __align__(1024) std::uint8_t raw[];
  TileShared& s = *reinterpret_cast<TileShared*>(raw);
  if (threadIdx.x == 0) init_barriers(s, kGemmWaitNs);
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp < kMathWarps) {
    ptx::set_registers_up<kMathRegisters>();
    run_gemm_math<Format>(s, gemm, sizes);
  } else {
    ptx::set_registers_down<kFrontRegisters>();
    if (warp == kMathWarps && threadIdx.x % 32 == 0) run_gemm_loader(s, a, a_half, b, gemm, sizes);
    const int store = warp - kMathWarps - 1;
    if (store >= 0 && store < kMathGroups) run_gemm_store(s, gemm, store);
  }
  if (given_up(s)) __trap();
}

template <class Format>
Result<bool> launch(const GroupedGemm& gemm, int blocks, cudaStream_t stream) {
  if (gemm.n % kBlockN != 0 || gemm.k % 128 != 0)
    return bad_input("a size of the grouped GEMM does not fit its tiles", "n, k",
                     std::to_string(gemm.n) + ", " + std::to_string(gemm.k),
                     "multiples of 256 and 128");
  if (gemm.claimed == nullptr)
    return bad_input("the grouped GEMM has no word to claim tiles with", "claimed", "null",
                     "device memory");
  if (gemm.rows == 0) return true;
  const std::int64_t depth = gemm.k * Format::kValueBytes;  // in bytes
  const auto a = byte_map(gemm.a, gemm.rows * kBlockM, depth, kBlockM, "a");
  if (!a) return a.error();
  const auto a_half = byte_map(gemm.a, gemm.rows * kBlockM, depth, kGroupRows, "a");
  if (!a_half) return a_half.error();
  const auto b = byte_map(gemm.b, gemm.experts * gemm.n, depth, kHalfN, "b");
  if (!b) return b.error();
  const GemmSizes sizes{static_cast<std::int32_t>(gemm.n / kBlockN),
                        static_cast<std::int32_t>(depth / kBlockK), gemm.rows * (gemm.n / kBlockN)};
  XSTAGE_CUDA_TRY(cudaMemsetAsync(gemm.claimed, 0, sizeof(std::uint64_t), stream));
  XSTAGE_CUDA_TRY(cudaFuncSetAttribute(
      grouped_gemm<Format>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(TileShared)));
  grouped_gemm<Format><<<static_cast<unsigned>(blocks), kThreads, sizeof(TileShared), stream>>>(
      *a, *a_half, *b, gemm, sizes);
  XSTAGE_CUDA_TRY(cudaGetLastError());
  return true;
}

}  // namespace xstage::moe
