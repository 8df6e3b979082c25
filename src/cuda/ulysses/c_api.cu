// Attention behind a plain C function, for callers in other languages (bench/ulysses_torch.py).
#include <cstdio>

#include "cuda/ulysses/attention.hpp"

namespace {

using xstage::layout::ScalarType;
using xstage::layout::TensorView;

TensorView view(std::int32_t half, void* data, const std::int64_t* shape,
                const std::int64_t* stride) {
  TensorView out;
  out.data = data;
  out.type = half != 0 ? ScalarType::kFp16 : ScalarType::kBf16;
  for (int i = 0; i < 4; ++i) {
    out.shape[i] = shape[i];
    out.stride[i] = stride[i];
  }
  return out;
}

}  // namespace

/// Tensors [batch, rows, heads, head_dim] in device memory, bf16 (`half` 0) or fp16 (1), strides in
/// elements. `lse`, `key_lengths` may be null, `scale` 0 (see AttentionInputs). Launches `launches`
/// times on `stream`. Returns 0, else the kind of error, with its message in `message` (`size`
/// bytes).
extern "C" int xstage_attention_forward(
    std::int32_t half, void* query, void* key, void* value, void* output,
    const std::int64_t* query_shape, const std::int64_t* key_shape,
    const std::int64_t* query_stride, const std::int64_t* key_stride,
    const std::int64_t* value_stride, const std::int64_t* output_stride,
    const std::int32_t* key_lengths, float* lse, float scale, int launches, void* stream,
    char* message, std::size_t size) {
  const auto refuse = [&](const xstage::Error& error) {
    std::snprintf(message, size, "%s", error.message().c_str());
    return static_cast<int>(error.kind);
  };
  xstage::ulysses::AttentionInputs in;
  in.query = view(half, query, query_shape, query_stride);
  in.key = view(half, key, key_shape, key_stride);
  in.value = view(half, value, key_shape, value_stride);
  in.key_lengths = key_lengths;
  in.lse = lse;
  in.scale = scale;
  const auto attention =
      xstage::ulysses::Attention::local(in, view(half, output, query_shape, output_stride));
  if (!attention.ok()) return refuse(attention.error());
  for (int i = 0; i < launches; ++i) {
    const auto launched = attention.value().launch(stream);
    if (!launched.ok()) return refuse(launched.error());
  }
  return 0;
}
