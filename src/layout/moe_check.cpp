#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "agreement.hpp"
#include "xstage/layout/check.hpp"
#include "xstage/limits.hpp"

namespace xstage::layout {
namespace {

const char* name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kW8A8: return "w8a8";
    case WeightFormat::kBf16: return "bf16";
    case WeightFormat::kW4A8: return "w4a8";
  }
  return "unknown";
}

std::string text(const schedule::MoeSchedule& schedule) {
  return schedule.kind == schedule::MoeScheduleKind::kWave
             ? fmt::format("wave with groups of {}", schedule.group)
             : fmt::format("interleaved with lead {}", schedule.lead);
}

NamedValues fields(const MoeConfig& c) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  return {{"ranks", number(c.ranks)},
          {"topk", number(c.topk)},
          {"experts", number(c.experts)},
          {"hidden", number(c.hidden)},
          {"intermediate", number(c.intermediate)},
          {"capacity", number(c.capacity)},
          {"weights", name(c.format)},
          {"activation.clamp", number(c.activation.clamp)},
          {"activation.alpha", number(c.activation.alpha)},
          {"activation.up_offset", number(c.activation.up_offset)},
          {"activation.bias", number(c.activation.bias)},
          {"block_m", number(c.block_m)},
          {"block_n", number(c.block_n)},
          {"workers", number(c.workers)},
          {"schedule", text(c.schedule)},
          {"dispatch", c.dispatch == MoeDispatch::kPerSlot ? "per slot" : "per rank"}};
}

std::optional<Error> in_range(const char* field, std::int64_t value, std::int64_t least,
                              std::int64_t most) {
  if (value >= least && value <= most) return {};
  return bad_input("a value of the MoE layer is out of range", field, fmt::format("{}", value),
                   fmt::format("{} to {}", least, most));
}

std::optional<Error> multiple(const char* field, std::int64_t value, std::int64_t step) {
  if (value % step == 0) return {};
  return bad_input("a size of the MoE layer does not fit the tiles", field,
                   fmt::format("{}", value), fmt::format("a multiple of {}", step));
}

std::optional<Error> check_activation(const MoeActivation& a) {
  constexpr const char* kPlain = "plain SwiGLU silu(gate)·up, with an optional clamp";
  if (a.alpha != 1.0f)
    return bad_input("this activation is not computed here", "activation.alpha",
                     fmt::format("{}", a.alpha), kPlain);
  if (a.up_offset != 0.0f)
    return bad_input("this activation is not computed here", "activation.up_offset",
                     fmt::format("{}", a.up_offset), kPlain);
  if (a.bias)
    return bad_input("this activation is not computed here", "activation.bias", "true", kPlain);
  if (!(a.clamp >= 0) || std::isinf(a.clamp))
    return bad_input("the clamp is not allowed", "activation.clamp", fmt::format("{}", a.clamp),
                     "0 (none) or a positive number");
  return {};
}

}  // namespace

Result<MoeLayout> checked(const MoeConfig& c) {
  constexpr std::int64_t kMaxSize = std::int64_t{1} << 20;
  for (const auto& error :
       {in_range("ranks", c.ranks, 1, kMaxRanks), in_range("experts", c.experts, 1, kMaxSize),
        in_range("topk", c.topk, 1, c.experts), in_range("hidden", c.hidden, 1, kMaxSize),
        in_range("intermediate", c.intermediate, 1, kMaxSize),
        in_range("capacity", c.capacity, 0, std::int64_t{1} << 40),
        in_range("block_m", c.block_m, 1, 1024), in_range("workers", c.workers, 1, 4096)})
    if (error) return *error;
  if (c.block_n != 128 && c.block_n != 256)
    return bad_input("a value of the MoE layer is out of range", "block_n",
                     fmt::format("{}", c.block_n), "128 or 256");
  if (c.format == WeightFormat::kW4A8)
    return bad_input("this weight format is not computed yet", "weights", "w4a8", "w8a8, bf16");
  for (const auto& error :
       {multiple("experts", c.experts, c.ranks), multiple("hidden", c.hidden, c.block_n),
        multiple("intermediate", c.intermediate, kScaleGroup), check_activation(c.activation)})
    if (error) return *error;
  if (!c.schedule.valid())
    return bad_input("the schedule is not valid", "schedule", text(c.schedule),
                     "groups and leads from 1");
  if (!c.tiling().valid())
    return bad_input("too many tiles a row", "intermediate", fmt::format("{}", c.intermediate),
                     "at most 32767 tiles of block_n");
  // A row names its token and slot in 32 bits.
  if (c.capacity > std::numeric_limits<std::uint32_t>::max() / c.topk)
    return bad_input("the capacity is too large", "capacity", fmt::format("{}", c.capacity),
                     fmt::format("at most {} with top-{}",
                                 std::numeric_limits<std::uint32_t>::max() / c.topk, c.topk));
  const MoeLayout layout = MoeLayout::make(c);
  if (!layout.valid)
    return bad_input("the buffers of this layer pass 2^62 bytes", "capacity",
                     fmt::format("{}", c.capacity), "a smaller capacity");
  return layout;
}

Result<MoeConfig> agreed(const std::vector<MoeConfig>& of_rank) {
  return agreed_by_fields(of_rank, fields);
}

}  // namespace xstage::layout
