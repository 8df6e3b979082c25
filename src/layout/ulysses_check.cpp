#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "agreement.hpp"
#include "xstage/layout/check.hpp"
#include "xstage/limits.hpp"

namespace xstage::layout {
namespace {

std::string text(const RowSegment* segments, std::int32_t count) {
  std::string out;
  for (std::int32_t i = 0; i < count; ++i) {
    const RowSegment& s = segments[i];
    const std::string rank = s.rank == kAllRanks ? "all" : fmt::format("{}", s.rank);
    out += fmt::format("{}[{}, {}) to {} row {}", i ? ", " : "", s.begin, s.end, rank, s.row);
  }
  return out;
}

NamedValues fields(const UlyssesConfig& c) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  return {{"ranks", number(c.ranks)},
          {"ring", number(c.ring)},
          {"batch", number(c.batch)},
          {"heads", number(c.heads)},
          {"kv_heads", number(c.kv_heads)},
          {"head_dim", number(c.head_dim)},
          {"rows", number(c.rows)},
          {"key_rows", number(c.key_rows)},
          {"keys_replicated", number(c.keys_replicated)},
          {"replicate_kv_heads", number(c.replicate_kv_heads)},
          {"output_order", number(static_cast<int>(c.output_order))},
          {"block_m", number(c.block_m)},
          {"block_n", number(c.block_n)},
          {"workers", number(c.workers)},
          {"order", number(static_cast<int>(c.order))},
          {"scale", number(c.scale)},
          {"segments", text(c.segments, c.segment_count)},
          {"key_segments", text(c.key_segments, c.key_segment_count)}};
}

std::optional<Error> in_range(const char* field, std::int64_t value, std::int64_t least,
                              std::int64_t most) {
  if (value >= least && value <= most) return {};
  return bad_input("a value of the attention layer is out of range", field,
                   fmt::format("{}", value), fmt::format("{} to {}", least, most));
}

const char* name(ScalarType type) {
  switch (type) {
    case ScalarType::kFloat32: return "float32";
    case ScalarType::kBf16: return "bfloat16";
    case ScalarType::kFp16: return "float16";
    case ScalarType::kE4m3: return "float8_e4m3";
    case ScalarType::kInt32: return "int32";
  }
  return "unknown";
}

std::string name(DeviceKind kind, std::int32_t index) {
  return kind == DeviceKind::kCpu ? "cpu" : fmt::format("cuda:{}", index);
}

std::string shape_text(const TensorView& view) {
  std::string out = "[";
  for (int i = 0; i < std::clamp(view.dimensions, 0, 4); ++i)
    out += fmt::format("{}{}", i ? ", " : "", view.shape[i]);
  return out + (view.dimensions > 4 ? ", …]" : "]");
}

std::vector<RowSegment> listed(const RowSegment* segments, std::int32_t count) {
  return {segments, segments + std::clamp(count, 0, UlyssesConfig::kMaxSegments)};
}

std::optional<Error> check_heads(const UlyssesConfig& c) {
  if (c.heads % c.kv_heads != 0)
    return bad_input("the query heads do not divide by the key heads", "kv_heads",
                     fmt::format("{}", c.kv_heads), fmt::format("a divisor of {}", c.heads));
  if (c.kv_heads < c.ranks && !c.replicate_kv_heads)
    return bad_input("there are fewer key heads than ranks", "kv_heads",
                     fmt::format("{}", c.kv_heads),
                     fmt::format("at least {} (the ranks), or replicate_kv_heads, which gives "
                                 "each rank the key heads that its query heads read",
                                 c.ranks));
  return {};
}

}  // namespace

Result<std::vector<std::int64_t>> check_segments(const std::vector<RowSegment>& segments,
                                                 std::int64_t rows, std::int32_t ranks) {
  std::int64_t at = 0;
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> ranges(
      static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const RowSegment& s = segments[i];
    const std::string field = fmt::format("segments[{}]", i);
    if (s.begin != at || s.end <= s.begin || s.end > rows)
      return bad_input("the row segments must follow each other without gaps", field,
                       fmt::format("[{}, {})", s.begin, s.end),
                       fmt::format("[{}, …) with an end up to {}", at, rows));
    if (s.rank < kAllRanks || s.rank >= ranks)
      return bad_input("a row segment goes to a rank that does not exist", field,
                       fmt::format("rank {}", s.rank), fmt::format("0 to {}, or all", ranks - 1));
    if (s.row < 0 || s.row > rows)
      return bad_input("a row segment goes to a row that does not exist", field,
                       fmt::format("row {}", s.row), fmt::format("0 to {}", rows));
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      if (s.rank == rank || s.rank == kAllRanks)
        ranges[static_cast<std::size_t>(rank)].push_back({s.row, s.row + s.end - s.begin});
    at = s.end;
  }
  if (at != rows)
    return bad_input("the row segments do not cover the sequence", "segments",
                     fmt::format("end at {}", at), fmt::format("end at {}", rows));
  std::vector<std::int64_t> received;
  for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
    std::sort(ranges[rank].begin(), ranges[rank].end());
    std::int64_t next = 0;
    for (const auto& [begin, end] : ranges[rank]) {
      if (begin != next)
        return bad_input("the rows that a rank receives overlap or have a gap",
                         fmt::format("segments of rank {}", rank),
                         fmt::format("row {} after {} rows", begin, next),
                         "every row from 0 on exactly once");
      next = end;
    }
    received.push_back(next);
  }
  return received;
}

Result<TensorView> check_view(const char* tensor, const TensorView& view,
                              const TensorView& wanted) {
  const auto field = [&](const char* what) { return std::string(tensor) + "." + what; };
  if (view.device != wanted.device ||
      (view.device == DeviceKind::kCuda && view.device_index != wanted.device_index))
    return bad_input("a tensor is on the wrong device", field("device"),
                     name(view.device, view.device_index),
                     name(wanted.device, wanted.device_index));
  if (view.type != wanted.type)
    return bad_input("a tensor has the wrong type", field("dtype"), name(view.type),
                     name(wanted.type));
  if (view.requires_grad)
    return bad_input("there is no backward pass here", field("requires_grad"), "true",
                     "false (call under no_grad, or detach)");
  if (view.dimensions != wanted.dimensions)
    return bad_input("a tensor has the wrong number of dimensions", field("dim"),
                     fmt::format("{}", view.dimensions), fmt::format("{}", wanted.dimensions));
  if (!std::equal(view.shape, view.shape + wanted.dimensions, wanted.shape))
    return bad_input("a tensor has the wrong shape", field("shape"), shape_text(view),
                     shape_text(wanted));
  const bool empty = std::any_of(view.shape, view.shape + 4, [](auto n) { return n == 0; });
  if (empty) return view;
  if (view.data == nullptr)
    return bad_input("a tensor has no memory", field("data"), "null", "an address");
  if (view.stride[3] != 1)
    return bad_input("the values of a head must be next to each other", field("stride(3)"),
                     fmt::format("{}", view.stride[3]), "1");
  const std::int64_t step = 16 / bytes_of(view.type);
  for (int i = 0; i < 3; ++i)
    if (view.shape[i] > 1 && (view.stride[i] < 0 || view.stride[i] % step != 0))
      return bad_input("tensor memory access cannot take this stride",
                       field(fmt::format("stride({})", i).c_str()),
                       fmt::format("{}", view.stride[i]),
                       fmt::format("multiples of {} elements (16 bytes), not negative", step));
  if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0)
    return bad_input("tensor memory access cannot take this address", field("data"),
                     fmt::format("{} mod 16", reinterpret_cast<std::uintptr_t>(view.data) % 16),
                     "an address that is a multiple of 16");
  return view;
}

Result<UlyssesLayout> checked(const UlyssesConfig& c) {
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;
  for (const auto& error :
       {in_range("ranks", c.ranks, 1, kMaxRanks), in_range("batch", c.batch, 1, 1 << 20),
        in_range("heads", c.heads, 1, 1 << 20), in_range("kv_heads", c.kv_heads, 1, c.heads),
        in_range("head_dim", c.head_dim, 8, 256), in_range("rows", c.rows, 1, kMaxRows),
        in_range("key_rows", c.key_rows, 1, kMaxRows), in_range("block_m", c.block_m, 1, 1024),
        in_range("block_n", c.block_n, 1, 1024), in_range("workers", c.workers, 1, 4096),
        in_range("segments", c.segment_count, 1, UlyssesConfig::kMaxSegments),
        in_range("key_segments", c.key_segment_count, c.keys_replicated ? 0 : 1,
                 UlyssesConfig::kMaxSegments)})
    if (error) return *error;
  if (c.head_dim % 8 != 0)
    return bad_input("the head size does not fit 16-byte stores", "head_dim",
                     fmt::format("{}", c.head_dim), "a multiple of 8");
  if (c.ring != 1)
    return bad_input(
        "a tile's result is final only with ring degree 1; a fused output would send "
        "partial sums",
        "ring", fmt::format("{}", c.ring),
        "1, or the local output with its log-sum-exp, merged by the ring");
  if (!(c.scale >= 0) || std::isinf(c.scale))
    return bad_input("the scale is not allowed", "scale", fmt::format("{}", c.scale),
                     "0 (1/sqrt(head_dim)) or a positive number");
  if (auto error = check_heads(c)) return *error;
  const auto rows = check_segments(listed(c.segments, c.segment_count), c.rows, c.ranks);
  if (!rows) return rows.error();
  if (!c.keys_replicated) {
    const auto key_rows =
        check_segments(listed(c.key_segments, c.key_segment_count), c.key_rows, c.ranks);
    if (!key_rows) return key_rows.error();
  }
  const UlyssesLayout layout = UlyssesLayout::make(c);
  if (!layout.valid)
    return bad_input("the buffers of this layer pass 2^62 bytes", "rows", fmt::format("{}", c.rows),
                     "a shorter sequence");
  return layout;
}

Result<UlyssesConfig> agreed(const std::vector<UlyssesConfig>& of_rank) {
  return agreed_by_fields(of_rank, fields);
}

}  // namespace xstage::layout
