#include "cuda/ulysses/attention.hpp"

#include <string>

#include "cuda/ulysses/launch.cuh"
#include "cuda/ulysses/signals.hpp"

namespace xstage::ulysses {
namespace {

using layout::TensorView;

std::string shape_text(const TensorView& v) {
  std::string out;
  for (const std::int64_t size : v.shape)
    out.append(out.empty() ? "[" : ", ").append(std::to_string(size));
  return out.append("]");
}

Result<bool> check(const AttentionInputs& in) {
  const struct {
    const TensorView& view;
    const char* name;
  } views[] = {{in.query, "query"}, {in.key, "key"}, {in.value, "value"}};
  for (const auto& [view, name] : views) {
    if (view.type != layout::ScalarType::kBf16 && view.type != layout::ScalarType::kFp16)
      return bad_input("attention takes 16-bit floats", name, "another type",
                       "bfloat16 or float16");
    if (view.type != in.query.type)
      return bad_input("the tensors are of two types", name, "another type", "the query's");
    for (int i = 0; i < 4; ++i)
      if (view.shape[i] < 1 || view.shape[i] > 1 << 30)
        return bad_input("a dimension is out of range", name, shape_text(view), "1 to 1073741824");
    if (view.shape[0] != in.query.shape[0] || view.shape[3] != in.query.shape[3])
      return bad_input("batch and head_dim must be the query's", name, shape_text(view),
                       shape_text(in.query));
  }
  const std::int64_t head_dim = in.query.shape[3];
  if (head_dim != 64 && head_dim != 128)
    return bad_input("this head_dim has no kernel", "head_dim", std::to_string(head_dim),
                     "64 or 128");
  if (in.key.shape[1] != in.value.shape[1] || in.key.shape[2] != in.value.shape[2])
    return bad_input("keys and values differ in shape", "value", shape_text(in.value),
                     shape_text(in.key));
  const std::int64_t last = in.group_begin + in.query.shape[2] - 1;
  if (in.group > 0
          ? in.group_begin < 0 || in.group_begin >= in.group || last / in.group >= in.key.shape[2]
          : in.query.shape[2] % in.key.shape[2] != 0)
    return bad_input("the query heads do not divide by the key heads", "key",
                     std::to_string(in.key.shape[2]),
                     in.group > 0 ? "as many as the groups of the query heads"
                                  : "a divisor of " + std::to_string(in.query.shape[2]));
  if (!(in.scale >= 0) || !std::isfinite(in.scale))
    return bad_input("the scale of the logits is out of range", "scale", std::to_string(in.scale),
                     "a positive number, or 0 for 1/sqrt(head_dim)");
  for (const auto& [view, name] : views)
    if (const std::optional<Error> bad = why_no_box(view, name)) return *bad;
  return true;
}

/// Which kernel: one for every head_dim and type, and those that record spans.
struct Kernel {
  std::int64_t head_dim = 0;
  bool half = false;
  bool spans = false;
};

/// Runs `make` for the tiling of this kernel.
template <class Make>
auto with_tiling(const Kernel& kernel, Make&& make) {
  const bool wide = kernel.head_dim == 128;
  if (kernel.spans) return wide ? make(Spanned128{}) : make(Spanned64{});
  if (kernel.half) return wide ? make(Tiling128<ptx::Fp16>{}) : make(Tiling64<ptx::Fp16>{});
  return wide ? make(Tiling128<>{}) : make(Tiling64<>{});
}

template <class T>
schedule::UlyssesOrder order_of(const Params& params, std::int64_t batch,
                                schedule::UlyssesOrderKind kind) {
  schedule::RowRange own[schedule::UlyssesOrder::kMaxRanges];
  std::int32_t ranges = 0;
  for (std::int32_t i = 0; i < params.segment_count; ++i)
    if (params.segments[i].rank == params.signals.rank &&
        ranges < schedule::UlyssesOrder::kMaxRanges)
      own[ranges++] = {params.segments[i].begin, params.segments[i].end};
  return {kind, batch * params.heads, params.rows, T::kBlockM, own, ranges};
}

template <class T>
Result<bool> fill_local(const AttentionInputs& in, const TensorView& output, Params& params) {
  const Result<bool> inputs = fill_inputs<T>(in, params);
  if (!inputs.ok()) return inputs;
  params.segment_count = 1;
  params.segments[0] = {0, params.rows, 0, 0};
  params.order = order_of<T>(params, in.query.shape[0], schedule::UlyssesOrderKind::kRowMajor);
  params.tiles = static_cast<std::uint32_t>(params.order.size());
  return fill_target<T>(output, 0, 0, params);
}

template <class T>
Result<bool> fill_fused(const AttentionInputs& in, const RankMemory& out, Params& params) {
  const Result<bool> inputs = fill_inputs<T>(in, params);
  if (!inputs.ok()) return inputs;
  const layout::UlyssesConfig& config = out.layout.config;
  const layout::HeadShare own =
      layout::heads_of(config.heads, config.kv_heads, config.ranks, out.rank);
  params.fused = true;
  params.first_head = static_cast<std::int32_t>(own.query.begin);
  params.segment_count = config.segment_count;
  std::copy_n(config.segments, config.segment_count, params.segments);
  params.signals = signals_of(out, kAttention);
  params.order = order_of<T>(params, config.batch, config.order);
  params.tiles = static_cast<std::uint32_t>(params.order.size());
  params.remote_tiles = config.order == schedule::UlyssesOrderKind::kRemoteFirst
                            ? static_cast<std::uint32_t>(params.order.remote_tiles())
                            : params.tiles;
  const std::int64_t received =
      layout::rows_received(config.segments, config.segment_count, out.rank);
  for (std::int32_t rank = 0; rank < config.ranks; ++rank) {
    const std::int64_t rows = layout::rows_received(config.segments, config.segment_count, rank);
    for (std::int32_t slot = 0; slot < kSlots && rows > 0; ++slot) {
      TensorView view = output_view(out, rank);
      view.data = static_cast<std::uint16_t*>(view.data) + slot * out.layout.output_slot;
      const Result<bool> target = fill_target<T>(view, slot, rank, params);
      if (!target.ok()) return target;
    }
    const layout::HeadShare theirs =
        layout::heads_of(config.heads, config.kv_heads, config.ranks, rank);
    params.signals.expected[rank] = config.batch * theirs.query.count * received;
  }
  return true;
}

}  // namespace

AttentionInputs exchanged_inputs(const RankMemory& memory, const TensorView& key,
                                 const TensorView& value) {
  const layout::UlyssesLayout& l = memory.layout;
  const layout::UlyssesConfig& c = l.config;
  const layout::HeadShare own = layout::heads_of(c.heads, c.kv_heads, c.ranks, memory.rank);
  void* const base = memory.symmetric[memory.rank];
  const auto view = [&](std::uint16_t* data, std::int64_t rows, std::int64_t heads) {
    return TensorView::contiguous(data, memory.type, c.batch, rows, heads, c.head_dim);
  };
  AttentionInputs in;
  in.sms = memory.sms;
  in.input_epoch = l.word(memory.workspace, kExchange, layout::UlyssesWord::kEpoch);
  in.query = view(l.query_row(base, 0, own.query.count, 0, 0, 0), c.rows, own.query.count);
  in.query_slot = l.query_slot;
  in.group = c.heads / c.kv_heads;
  in.group_begin = own.query.begin - own.key.begin * in.group;
  in.scale = c.scale;
  if (c.keys_replicated) {
    const auto part = [&](TensorView all) {
      all.data = static_cast<std::uint16_t*>(all.data) + all.index(0, 0, own.key.begin);
      all.shape[2] = own.key.count;
      return all;
    };
    in.key = part(key);
    in.value = part(value);
    return in;
  }
  in.key = view(l.key_row(l.key, base, 0, own.key.count, 0, 0, 0), c.key_rows, own.key.count);
  in.value = view(l.key_row(l.value, base, 0, own.key.count, 0, 0, 0), c.key_rows, own.key.count);
  in.key_slot = l.key_slot;
  return in;
}

Result<Attention> Attention::local(const AttentionInputs& in, const TensorView& output) {
  const Result<bool> good = check(in);
  if (!good.ok()) return good.error();
  for (int i = 0; i < 4; ++i)
    if (output.shape[i] != in.query.shape[i])
      return bad_input("the output must have the shape of the queries", "output",
                       shape_text(output), shape_text(in.query));
  if (output.type != in.query.type)
    return bad_input("the tensors are of two types", "output", "another type", "the query's");
  auto params = std::make_shared<Params>();
  Attention attention;
  attention.head_dim_ = in.query.shape[3];
  attention.half_ = in.query.type == layout::ScalarType::kFp16;
  return with_tiling({attention.head_dim_, attention.half_}, [&](auto tiling) -> Result<Attention> {
    using T = decltype(tiling);
    const Result<bool> filled = fill_local<T>(in, output, *params);
    if (!filled.ok()) return filled.error();
    const Result<bool> loaded = load_kernel<T>();
    if (!loaded.ok()) return loaded.error();
    const Result<int> grid = grid_of<T>(*params, in.sms);
    if (!grid.ok()) return grid.error();
    attention.grid_ = grid.value();
    attention.early_ = in.sms == 0;
    attention.params_ = std::move(params);
    return attention;
  });
}

Result<bool> Attention::check_fused(const AttentionInputs& in, const RankMemory& output) {
  if (const Result<bool> good = check(in); !good.ok()) return good;
  const layout::UlyssesConfig& config = output.layout.config;
  if (!output.layout.valid || config.ranks < 1 || config.ranks > kMaxRanks)
    return bad_input("this number of ranks has no fused output", "ranks",
                     std::to_string(config.ranks), "1 to 8, with a valid layout");
  if (config.ring != 1)
    return bad_input("a ring's partial results are not final, so they cannot be sent", "ring",
                     std::to_string(config.ring), "1, or a local output with its log-sum-exp");
  const layout::HeadShare own =
      layout::heads_of(config.heads, config.kv_heads, config.ranks, output.rank);
  const std::int64_t wanted[4] = {config.batch, config.rows, own.query.count, config.head_dim};
  for (int i = 0; i < 4; ++i)
    if (in.query.shape[i] != wanted[i])
      return bad_input("the queries do not fit the layout", "query", shape_text(in.query),
                       "[batch, rows, heads of this rank, head_dim] of the layout");
  if (output.type != in.query.type)
    return bad_input("the tensors are of two types", "output", "another type", "the query's");
  if (output.span_words != nullptr && output.type != layout::ScalarType::kBf16)
    return bad_input("tile stores are recorded by a kernel for bfloat16", "output", "float16",
                     "bfloat16, or no spans");
  return true;
}

Result<Attention> Attention::fused(const AttentionInputs& in, const RankMemory& output) {
  if (const Result<bool> good = check_fused(in, output); !good.ok()) return good.error();
  const layout::UlyssesConfig& config = output.layout.config;
  auto params = std::make_shared<Params>();
  Attention attention;
  attention.head_dim_ = config.head_dim;
  attention.half_ = output.type == layout::ScalarType::kFp16;
  params->spans = {output.span_words, output.span_capacity};
  const bool spans = output.span_words != nullptr;
  return with_tiling({attention.head_dim_, attention.half_, spans},
                     [&](auto tiling) -> Result<Attention> {
                       using T = decltype(tiling);
                       const Result<bool> filled = fill_fused<T>(in, output, *params);
                       if (!filled.ok()) return filled.error();
                       const Result<bool> loaded = load_kernel<T>();
                       if (!loaded.ok()) return loaded.error();
                       const Result<int> grid = grid_of<T>(*params, output.sms);
                       if (!grid.ok()) return grid.error();
                       attention.grid_ = grid.value();
                       attention.early_ = output.sms == 0;
                       params->straddling = has_straddling<T>(*params);
                       params->pace_ns = pace_of<T>(attention.grid_, output.pace_gb_per_s);
                       attention.params_ = std::move(params);
                       return attention;
                     });
}

Result<bool> Attention::launch(void* stream) const {
  return with_tiling({head_dim_, half_, params_->spans.words != nullptr}, [&](auto tiling) {
    return ulysses::launch<decltype(tiling)>(*params_, grid_, early_,
                                             static_cast<cudaStream_t>(stream));
  });
}

}  // namespace xstage::ulysses
