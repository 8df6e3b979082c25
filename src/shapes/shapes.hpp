// Layer shapes of public models. The tables of data/shapes/ are embedded in the library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "xstage/layout/formats.hpp"
#include "xstage/result.hpp"

namespace xstage::shapes {

using xstage::WeightFormat;

const char* name(WeightFormat format);
Result<WeightFormat> parse_weight_format(std::string_view text);

/// One expert-parallel MoE layer. Sizes in elements.
struct MoeShape {
  std::string name;
  std::string kind;
  std::int64_t hidden = 0;        ///< H
  std::int64_t intermediate = 0;  ///< I
  std::int64_t experts = 0;       ///< E, over all ranks
  std::int64_t topk = 0;          ///< k
  std::int64_t shared_experts = 0;
  std::string certainty;
  std::string source;
};

/// Self-attention of one model: `heads` in total, or `heads_local` a rank where the model is given
/// by its local heads (the other one is 0).
struct AttentionShape {
  std::string name;
  std::int64_t heads = 0;
  std::int64_t heads_local = 0;
  std::int64_t kv_heads = 0;  ///< 0: as many as heads
  std::int64_t head_dim = 0;
  std::vector<std::int64_t> seq;  ///< sequence lengths that the model uses, shortest first
  std::string note;
};

/// Largest value any size of a shape may have; keeps every product of three sizes inside 64 bits.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 20;
/// Largest sequence length and largest number of tokens on a rank.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 28;

/// Readers of the two tables; errors name the layer and the field.
Result<std::vector<MoeShape>> parse_moe_shapes(std::string_view json);
Result<std::vector<AttentionShape>> parse_attention_shapes(std::string_view json);

/// The embedded tables.
const std::vector<MoeShape>& moe_shapes();
const std::vector<AttentionShape>& attention_shapes();

/// Looks a shape up by name, whose capitals do not count; the error lists the names there are, and
/// says which one a near miss meant.
Result<MoeShape> find_moe_shape(std::string_view name);
Result<AttentionShape> find_attention_shape(std::string_view name);

/// Checks that sizes are positive and in range and that k ≤ E.
Result<MoeShape> checked(MoeShape shape);

}  // namespace xstage::shapes
