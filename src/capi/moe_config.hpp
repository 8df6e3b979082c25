// From the C structure of a MoE layer to the layer's own. Host only.
#pragma once

#include <string>

#include "xstage/layout/moe.hpp"
#include "xstage/result.hpp"
#include "xstage/xstage.h"

namespace xstage::capi {

/// The fused kernel's tile.
inline constexpr std::int32_t kMoeBlockM = 128, kMoeBlockN = 256;

/// Sizes are not checked here, but for what this divides by or multiplies.
inline Result<layout::MoeConfig> moe_config(const xstage_moe_config& c) {
  constexpr std::int64_t kMost = std::int64_t{1} << 28;
  const struct {
    const char* name;
    std::int64_t value, least, most;
  } sizes[] = {{"ranks", c.ranks, 1, 8},
               {"rank", c.rank, 0, c.ranks - 1},
               {"topk", c.topk, 1, 16},
               {"format", c.format, 0, 1},
               {"order", c.order, 0, 1},
               {"experts", c.experts, c.ranks, 1 << 20},
               {"hidden", c.hidden, 1, 1 << 20},
               {"intermediate", c.intermediate, 1, 1 << 20},
               {"capacity", c.capacity, 1, kMost},
               {"tokens", c.tokens, 1, c.capacity},
               {"workers", c.workers, 1, 1024},
               {"group_or_lead", c.group_or_lead, 0, kMost}};
  for (const auto& size : sizes)
    if (size.value < size.least || size.value > size.most)
      return bad_input("a value of the MoE layer is out of range", size.name,
                       std::to_string(size.value),
                       std::to_string(size.least) + " to " + std::to_string(size.most));
  layout::MoeConfig out;
  out.ranks = c.ranks;
  out.topk = c.topk;
  out.experts = c.experts;
  out.hidden = c.hidden;
  out.intermediate = c.intermediate;
  out.capacity = c.capacity;
  out.format = c.format == XSTAGE_MOE_BF16 ? WeightFormat::kBf16 : WeightFormat::kW8A8;
  out.activation.clamp = c.clamp;
  out.block_m = kMoeBlockM;
  out.block_n = kMoeBlockN;
  out.workers = c.workers;
  const schedule::MoeTiling tiling = out.tiling();
  if (c.order == XSTAGE_MOE_INTERLEAVED) {
    const std::int64_t cover = schedule::covering_lead(tiling, c.workers);
    out.schedule = schedule::MoeSchedule::interleaved(c.group_or_lead > 0 ? c.group_or_lead
                                                      : cover <= 32       ? 16
                                                                          : cover);
  } else {
    out.schedule = schedule::MoeSchedule::wave(
        c.group_or_lead > 0 ? static_cast<std::int32_t>(c.group_or_lead)
                            : schedule::wave_group(c.tokens * c.ranks * c.topk, c.experts,
                                                   static_cast<std::int32_t>(c.experts / c.ranks),
                                                   tiling, c.workers));
  }
  return out;
}

}  // namespace xstage::capi
