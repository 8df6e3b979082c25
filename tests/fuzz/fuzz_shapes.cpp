// The tables of layer shapes.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "shapes/shapes.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace xstage::shapes;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto layers = parse_moe_shapes(text);
  if (layers.ok()) {
    for (const MoeShape& layer : *layers)
      if (layer.hidden < 1 || layer.topk > layer.experts) std::abort();
  } else if (layers.error().message().empty()) {
    std::abort();
  }
  const auto models = parse_attention_shapes(text);
  if (models.ok())
    for (const AttentionShape& model : *models)
      if (model.head_dim < 1 || model.seq.empty()) std::abort();
  return 0;
}
