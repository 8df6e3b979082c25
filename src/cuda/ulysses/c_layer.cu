// A whole layer behind plain C functions, for processes that own the memory themselves (PyTorch's
// symmetric memory, cudaIpc): one process a rank, peers' buffers by pointer.
// bench/ulysses_processes.py is a caller.
#include <cuda_runtime.h>

#include <cstdio>
#include <optional>
#include <vector>

#include "cuda/ulysses/attention.hpp"
#include "cuda/ulysses/exchange.hpp"
#include "xstage/layout/check.hpp"

namespace {

using namespace xstage;
using layout::TensorView;
using layout::UlyssesConfig;

constexpr std::int64_t kRecords = 1024;  // more than any GPU has SMs

struct Message {
  char* text;
  std::size_t size;
  int operator()(const Error& error) const {
    std::snprintf(text, size, "%s", error.message().c_str());
    return static_cast<int>(error.kind);
  }
};

}  // namespace

extern "C" {

/// A layer, the same on every rank but for `rank`. Sizes as in UlyssesConfig.
struct xstage_ulysses_layer {
  std::int32_t ranks, rank;
  std::int64_t batch, heads, kv_heads, head_dim, rows, key_rows;
  std::int32_t heads_first;  ///< output [batch, heads, rows, head_dim] rather than rows first
  float scale;               ///< of the logits; 0 for 1/sqrt(head_dim)
  /// [segments][4]: first row, end, rank (−1: all), row there; null: equal shards. Of query rows
  /// and, where there are as many, of key rows; else those are sharded.
  const std::int64_t* table;
  std::int32_t segments;
  std::int32_t half;  ///< tensors are fp16 (1) rather than bf16 (0)
};

}  // extern "C"

namespace {

Result<layout::UlyssesLayout> layout_of(const xstage_ulysses_layer& l) {
  UlyssesConfig c;
  c.ranks = l.ranks;
  c.batch = l.batch;
  c.heads = l.heads;
  c.kv_heads = l.kv_heads;
  c.head_dim = l.head_dim;
  c.rows = l.rows;
  c.key_rows = l.key_rows;
  c.scale = l.scale;
  c.output_order =
      l.heads_first != 0 ? layout::OutputOrder::kHeadsRows : layout::OutputOrder::kRowsHeads;
  if (l.ranks < 1 || l.ranks > 8 || l.rank < 0 || l.rank >= l.ranks)
    return bad_input("no such rank", "rank",
                     std::to_string(l.rank) + " of " + std::to_string(l.ranks),
                     "1 to 8 ranks, counted from 0");
  std::vector<layout::RowSegment> rows = layout::sharded(l.rows, l.ranks);
  if (l.table != nullptr) {
    rows.clear();
    for (std::int32_t i = 0; i < l.segments; ++i) {
      const std::int64_t* const s = l.table + 4 * i;
      rows.push_back({s[0], s[1], static_cast<std::int32_t>(s[2]), s[3]});
    }
  }
  layout::set_segments(c, rows);
  layout::set_key_segments(c, l.rows == l.key_rows ? rows : layout::sharded(l.key_rows, l.ranks));
  return layout::checked(c);
}

/// What one rank launches.
struct Layer {
  layout::UlyssesLayout layout;
  std::vector<void*> symmetric;
  ulysses::RankMemory memory;
  std::optional<ulysses::Exchange> inputs;
  std::optional<ulysses::Attention> fused;
};

}  // namespace

extern "C" {

/// Bytes of a rank's symmetric buffer and of its own workspace.
int xstage_ulysses_bytes(const xstage_ulysses_layer* layer, std::int64_t* symmetric,
                         std::int64_t* workspace, char* message, std::size_t size) {
  const auto made = layout_of(*layer);
  if (!made.ok()) return Message{message, size}(made.error());
  *symmetric = made.value().symmetric_bytes;
  *workspace =
      made.value().workspace_bytes + kRecords * static_cast<std::int64_t>(sizeof(sync::WaitRecord));
  return 0;
}

/// `symmetric` [ranks]: every rank's buffer as the current device addresses it, zeroed on all ranks
/// before any of them launches, as the workspace is. `query`, `key`, `value`: this rank's own rows
/// of all heads, contiguous [batch, rows, heads, head_dim]; read at every launch.
/// `key_lengths` [batch] int32 in device memory, or null. Nothing is allocated on the device.
int xstage_ulysses_open(const xstage_ulysses_layer* layer, void* const* symmetric, void* workspace,
                        void* query, void* key, void* value, const std::int32_t* key_lengths,
                        std::uint64_t wait_limit_ns, void** handle, char* message,
                        std::size_t size) {
  const Message refuse{message, size};
  const auto made = layout_of(*layer);
  if (!made.ok()) return refuse(made.error());
  auto out = std::make_unique<Layer>();
  out->layout = made.value();
  out->symmetric.assign(symmetric, symmetric + layer->ranks);
  ulysses::RankMemory& memory = out->memory;
  memory.layout = out->layout;
  memory.rank = layer->rank;
  memory.type = layer->half != 0 ? layout::ScalarType::kFp16 : layout::ScalarType::kBf16;
  memory.symmetric = out->symmetric.data();
  memory.workspace = workspace;
  memory.records = reinterpret_cast<sync::WaitRecord*>(static_cast<char*>(workspace) +
                                                       out->layout.workspace_bytes);
  memory.limit_ns = wait_limit_ns;
  const UlyssesConfig& c = out->layout.config;
  const auto view = [&](void* data, const layout::RowSegment* table, std::int32_t count,
                        std::int64_t heads) {
    return TensorView::contiguous(data, memory.type, c.batch,
                                  layout::rows_received(table, count, layer->rank), heads,
                                  c.head_dim);
  };
  const auto inputs =
      ulysses::Exchange::inputs(memory, view(query, c.segments, c.segment_count, c.heads),
                                view(key, c.key_segments, c.key_segment_count, c.kv_heads),
                                view(value, c.key_segments, c.key_segment_count, c.kv_heads));
  if (!inputs.ok()) return refuse(inputs.error());
  ulysses::AttentionInputs in = ulysses::exchanged_inputs(memory);
  in.key_lengths = key_lengths;
  const auto fused = ulysses::Attention::fused(in, memory);
  if (!fused.ok()) return refuse(fused.error());
  out->inputs = inputs.value();
  out->fused = fused.value();
  *handle = out.release();
  return 0;
}

/// One of a layer's two launches: 0 the exchange of Q, K and V, 1 the attention, of what the last
/// exchange brought. On all ranks alike.
int xstage_ulysses_launch_part(void* handle, std::int32_t part, void* stream, char* message,
                               std::size_t size) {
  const auto& layer = *static_cast<Layer*>(handle);
  const Result<bool> launched =
      part == 0 ? layer.inputs->launch(stream) : layer.fused->launch(stream);
  return launched.ok() ? 0 : Message{message, size}(launched.error());
}

/// One layer on `stream` (a cudaStream_t; may be capturing): Q, K and V to the ranks that have
/// their heads, then attention with its output to the rows' owners. All ranks launch equally often.
int xstage_ulysses_launch(void* handle, void* stream, char* message, std::size_t size) {
  for (const std::int32_t part : {0, 1})
    if (const int code = xstage_ulysses_launch_part(handle, part, stream, message, size); code != 0)
      return code;
  return 0;
}

/// Where this rank's output of launch `number` (from 1, replays of a graph included) is: its own
/// rows of all heads. It stays until launch `number` + 2 of any rank.
void* xstage_ulysses_output(void* handle, std::int64_t number) {
  const auto& layer = *static_cast<Layer*>(handle);
  auto* const first =
      static_cast<std::uint16_t*>(output_view(layer.memory, layer.memory.rank).data);
  return first + (number & 1) * layer.layout.output_slot;
}

/// 0, or the error kind and, in `message`, who waited for whom. The stream must have ended.
int xstage_ulysses_check(void* handle, char* message, std::size_t size) {
  const auto& layer = *static_cast<Layer*>(handle);
  std::vector<sync::WaitRecord> records(kRecords);
  if (cudaMemcpy(records.data(), layer.memory.records, records.size() * sizeof(sync::WaitRecord),
                 cudaMemcpyDeviceToHost) != cudaSuccess)
    return Message{message,
                   size}({ErrorKind::kUnsupported, "the records cannot be read", {}, {}, {}});
  for (const sync::WaitRecord& r : records)
    if (r.end == sync::WaitEnd::kLimit)
      return Message{message, size}({ErrorKind::kTimeout,
                                     "rank " + std::to_string(r.rank) + " waited " +
                                         std::to_string(r.waited_ns / 1000) + " us for rank " +
                                         std::to_string(r.subject) + ": " + std::to_string(r.seen) +
                                         " of " + std::to_string(r.wanted),
                                     {},
                                     {},
                                     {}});
  return 0;
}

void xstage_ulysses_close(void* handle) { delete static_cast<Layer*>(handle); }

}  // extern "C"
