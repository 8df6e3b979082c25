// From tensors to a launch of one shape of the attention kernel.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "cuda/probe/check.cuh"
#include "cuda/ulysses/attention.hpp"
#include "cuda/ulysses/attention_kernel.cuh"
#include "cuda/ulysses/dependent_launch.hpp"
#include "cuda/ulysses/tensor_map.hpp"

namespace xstage::ulysses {

/// Fills what a local and a fused launch have in common.
template <class T>
Result<bool> fill_inputs(const AttentionInputs& in, Params& params) {
  const auto load = [&](CUtensorMap InputMaps::* map, layout::TensorView view, std::int32_t rows,
                        std::int64_t slot, const char* name) -> Result<bool> {
    for (InputMaps& slot_maps : params.inputs) {
      const Result<CUtensorMap> made = box_map(view, rows, T::kChunks, name);
      if (!made.ok()) return made.error();
      slot_maps.*map = made.value();
      view.data = static_cast<std::uint16_t*>(view.data) + slot;
    }
    return true;
  };
  for (const Result<bool>& made :
       {load(&InputMaps::query, in.query, T::kBlockM, in.query_slot, "query"),
        load(&InputMaps::key, in.key, T::kBlockN, in.key_slot, "key"),
        load(&InputMaps::value, in.value, T::kBlockN, in.key_slot, "value")})
    if (!made.ok()) return made.error();
  params.input_epoch = in.input_epoch;
  params.key_lengths = in.key_lengths;
  params.lse = in.lse;
  params.rows = in.query.shape[1];
  params.key_rows = static_cast<std::int32_t>(in.key.shape[1]);
  params.heads = static_cast<std::int32_t>(in.query.shape[2]);
  params.group =
      static_cast<std::int32_t>(in.group > 0 ? in.group : in.query.shape[2] / in.key.shape[2]);
  params.group_begin = static_cast<std::int32_t>(in.group_begin);
  constexpr double kLog2E = 1.4426950408889634;
  const double scale = in.scale != 0 ? in.scale : 1 / std::sqrt(static_cast<double>(T::kHeadDim));
  params.scale_log2 = static_cast<float>(scale * kLog2E);
  return true;
}

template <class T>
Result<bool> fill_target(const layout::TensorView& view, int slot, int rank, Params& params) {
  const Result<CUtensorMap> map = box_map(view, kPieceRows, T::kChunks, "output");
  if (!map.ok()) return map.error();
  params.output[slot][rank] = map.value();
  params.target[slot][rank] = {static_cast<std::uint16_t*>(view.data), view.stride[0],
                               view.stride[1], view.stride[2]};
  params.target_rows[rank] = static_cast<std::int32_t>(view.shape[1]);
  return true;
}

/// Whether some piece of a warpgroup's rows is not made of whole boxes (as by_boxes says).
template <class T>
bool has_straddling(const Params& params) {
  for (std::int32_t i = 0; i < params.segment_count; ++i) {
    const layout::RowSegment& s = params.segments[i];
    if (s.begin % kPieceRows != 0) return true;
    if (s.end % kPieceRows == 0 || s.begin == s.end) continue;
    for (std::int32_t rank = 0; rank < params.signals.ranks; ++rank)
      if ((s.rank == rank || s.rank == layout::kAllRanks) &&
          s.row + (s.end - s.begin) != params.target_rows[rank])
        return true;
  }
  return false;
}

/// Between two pieces of one block, so that `blocks` of them together store `gb_per_s`.
template <class T>
std::int32_t pace_of(int blocks, double gb_per_s) {
  constexpr double kPieceBytes = 2.0 * kPieceRows * T::kHeadDim;
  return gb_per_s > 0 ? static_cast<std::int32_t>(kPieceBytes * blocks / gb_per_s) : 0;
}

/// One block an SM (of the first `most`, unless that is 0), fewer where there are fewer tiles.
template <class T>
Result<int> grid_of(const Params& params, int most) {
  if (params.order.size() > INT32_MAX)
    return bad_input("the tiles are too many for one launch", "tiles",
                     std::to_string(params.order.size()), "below 2^31");
  int device = 0, sms = 0;
  XSTAGE_CUDA_TRY(cudaGetDevice(&device));
  XSTAGE_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  if (most > 0) sms = std::min(sms, most);
  return static_cast<int>(
      std::min<std::uint64_t>(params.order.size(), static_cast<std::uint64_t>(sms)));
}

/// Loads the kernel on the current device. Left to the first launch, it could wait for a kernel
/// that is running, and that one for a rank which the same thread has yet to launch.
template <class T>
Result<bool> load_kernel() {
  const auto kernel = attention_forward<T>;
  cudaFuncAttributes attributes{};
  XSTAGE_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel));
  XSTAGE_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(sizeof(Shared<T>))));
  return true;
}

template <class T>
Result<bool> launch(const Params& params, int grid, bool early, cudaStream_t stream) {
  return launch_dependent(attention_forward<T>, params, grid, T::kThreads, sizeof(Shared<T>), early,
                          stream);
}

}  // namespace xstage::ulysses
