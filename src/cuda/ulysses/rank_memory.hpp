// The memory of one rank of a Ulysses layer, and of its peers as this GPU addresses them.
#pragma once

#include <cstdint>

#include "xstage/layout/tensor_view.hpp"
#include "xstage/layout/ulysses.hpp"
#include "xstage/sync/wait.hpp"

namespace xstage::ulysses {

/// Own allocations or pointers from outside (torch symmetric memory, for example): nothing here is
/// owned. Symmetric buffers and the workspace are zero before the first launch.
struct RankMemory {
  layout::UlyssesLayout layout;
  std::int32_t rank = 0;
  layout::ScalarType type = layout::ScalarType::kBf16;  ///< or kFp16: of every tensor
  void* const* symmetric = nullptr;                     ///< [ranks], layout.symmetric_bytes each
  void* workspace = nullptr;                            ///< of this rank, layout.workspace_bytes
  sync::WaitRecord* records = nullptr;                  ///< [SMs], device or pinned memory
  std::uint64_t limit_ns = 2'000'000'000;
  /// SMs that this rank's launches may take, where ranks share a GPU: the part of each, so that all
  /// of them are resident. Launches then begin one after the other, as an early one would take SMs
  /// from a rank that this one waits for. 0: the GPU is this rank's alone.
  int sms = 0;
  /// What a fused launch's remote stores stay below, all SMs together: 0.8 of the drain rate of two
  /// H200 (370 GB/s both ways, results/h200x2). 0: no limit.
  double pace_gb_per_s = 300;
  /// Where fused launches record their tile stores (xstage::SpanBuffer), with another kernel; null:
  /// nowhere.
  std::uint64_t* span_words = nullptr;
  std::uint32_t span_capacity = 0;  ///< bursts a block; a burst is the 64 rows of a warpgroup
};

/// Output slot 0 of `rank`: its rows of all heads, in the configured order.
inline layout::TensorView output_view(const RankMemory& memory, std::int32_t rank) {
  const layout::UlyssesConfig& c = memory.layout.config;
  const std::int64_t rows = layout::rows_received(c.segments, c.segment_count, rank);
  layout::TensorView view = layout::TensorView::contiguous(
      memory.layout.output_row(memory.symmetric[rank], 0, rows, 0, 0, 0), memory.type, c.batch,
      rows, c.heads, c.head_dim);
  if (c.output_order == layout::OutputOrder::kHeadsRows) {
    view.stride[1] = c.head_dim;
    view.stride[2] = rows * c.head_dim;
  }
  return view;
}

}  // namespace xstage::ulysses
