#include "cpu/ulysses_data.hpp"

#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "cpu/numbers.hpp"
#include "cpu/reference/attention_reference.hpp"
#include "shapes/random.hpp"

namespace xstage::cpu {
namespace {

std::vector<std::uint16_t> random_values(std::int64_t count, std::uint64_t seed,
                                         std::uint64_t stream, double size) {
  shapes::Random random(seed, stream << 32);
  std::vector<std::uint16_t> out(static_cast<std::size_t>(count));
  for (auto& value : out) value = float_to_bf16(static_cast<float>(random.normal() * size));
  return out;
}

/// Appends rank's rows of a [batch][rows][width] tensor, in the order in which it holds them.
void append_rows(std::vector<std::uint16_t>& out, const std::vector<std::uint16_t>& tensor,
                 std::int64_t batch, std::int64_t rows, std::int64_t width,
                 const layout::RowSegment* segments, std::int32_t count, std::int32_t rank) {
  const std::int64_t own = layout::rows_received(segments, count, rank);
  const std::size_t first = out.size();
  out.resize(first + static_cast<std::size_t>(batch * own * width));
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int32_t i = 0; i < count; ++i) {
      const layout::RowSegment& s = segments[i];
      if (s.rank != rank && s.rank != layout::kAllRanks) continue;
      std::copy_n(tensor.data() + (b * rows + s.begin) * width, (s.end - s.begin) * width,
                  out.data() + first + (b * own + s.row) * width);
    }
}

/// What one head of one batch entry contributes to the comparison.
struct Sums {
  double difference = 0, bf16_difference = 0, size = 0, largest = 0, log_sum_exp = 0;
  std::int64_t rows = 0;
  bool finite = true;
};

Sums compare_head(const UlyssesData& data, const UlyssesOutput& output, const layout::Share& heads,
                  std::int64_t batch, std::int64_t local_head, std::int64_t keys,
                  std::int64_t row_step) {
  const layout::UlyssesConfig& c = data.config;
  const std::int64_t head = heads.begin + local_head;
  const std::int64_t key_head = head / (c.heads / c.kv_heads);
  reference::AttentionHead reference_head;
  reference_head.head_dim = c.head_dim;
  reference_head.keys = keys;
  reference_head.scale =
      c.scale > 0 ? static_cast<double>(c.scale) : 1.0 / std::sqrt(static_cast<double>(c.head_dim));
  reference_head.key = [&](std::int64_t j) { return data.key_row(data.key, batch, j, key_head); };
  reference_head.value = [&](std::int64_t j) {
    return data.key_row(data.value, batch, j, key_head);
  };
  Sums sums;
  // A prime offset a head, so that sampled rows differ from head to head.
  for (std::int64_t row = (head * 7) % row_step; row < c.rows; row += row_step) {
    const auto expected = reference::attention(reference_head, data.query_row(batch, row, head));
    const std::uint16_t* const got =
        output.local.data() + ((batch * c.rows + row) * heads.count + local_head) * c.head_dim;
    for (std::size_t d = 0; d < expected.exact.size(); ++d) {
      const auto value = static_cast<double>(bf16_to_float(got[d]));
      sums.finite = sums.finite && std::isfinite(value);
      const double off = value - expected.exact[d], off16 = expected.bf16[d] - expected.exact[d];
      sums.difference += off * off;
      sums.bf16_difference += off16 * off16;
      sums.size += expected.exact[d] * expected.exact[d];
      sums.largest = std::max(sums.largest, std::fabs(off));
    }
    const auto lse = static_cast<double>(output.log_sum_exp[static_cast<std::size_t>(
        (batch * heads.count + local_head) * c.rows + row)]);
    if (std::isinf(expected.log_sum_exp))
      sums.finite = sums.finite && lse == expected.log_sum_exp;
    else
      sums.log_sum_exp = std::max(sums.log_sum_exp, std::fabs(lse - expected.log_sum_exp));
    ++sums.rows;
  }
  return sums;
}

/// Every row of every destination against the rank that computed it.
bool fused_equals_local(const layout::UlyssesConfig& c, const std::vector<UlyssesOutput>& outputs) {
  for (std::int32_t to = 0; to < c.ranks; ++to) {
    const std::int64_t rows = layout::rows_received(c.segments, c.segment_count, to);
    const auto& output = outputs[static_cast<std::size_t>(to)].output;
    for (std::int32_t from = 0; from < c.ranks; ++from) {
      const layout::Share heads = layout::heads_of(c.heads, c.kv_heads, c.ranks, from).query;
      const auto& local = outputs[static_cast<std::size_t>(from)].local;
      for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int32_t i = 0; i < c.segment_count; ++i) {
          const layout::RowSegment& s = c.segments[i];
          if (s.rank != to && s.rank != layout::kAllRanks) continue;
          for (std::int64_t row = s.begin; row < s.end; ++row)
            for (std::int64_t h = 0; h < heads.count; ++h) {
              const std::int64_t at = s.row + row - s.begin, head = heads.begin + h;
              const std::int64_t place = c.output_order == layout::OutputOrder::kRowsHeads
                                             ? (b * rows + at) * c.heads + head
                                             : (b * c.heads + head) * rows + at;
              if (!std::equal(output.begin() + place * c.head_dim,
                              output.begin() + (place + 1) * c.head_dim,
                              local.begin() + ((b * c.rows + row) * heads.count + h) * c.head_dim))
                return false;
            }
        }
    }
  }
  return true;
}

}  // namespace

UlyssesData UlyssesData::random(const layout::UlyssesConfig& config, std::uint64_t seed,
                                double size) {
  UlyssesData out;
  const layout::UlyssesConfig& c = out.config = config;
  const std::int64_t width = c.heads * c.head_dim, key_width = c.kv_heads * c.head_dim;
  out.query = random_values(c.batch * c.rows * width, seed, 31, size);
  out.key = random_values(c.batch * c.key_rows * key_width, seed, 32, size);
  out.value = random_values(c.batch * c.key_rows * key_width, seed, 33, 1);
  for (std::int32_t rank = 0; rank < c.ranks; ++rank) {
    const std::int64_t rows = layout::rows_received(c.segments, c.segment_count, rank);
    std::int64_t key_rows = layout::rows_received(c.key_segments, c.key_segment_count, rank);
    std::vector<std::uint16_t> shard;
    append_rows(shard, out.query, c.batch, c.rows, width, c.segments, c.segment_count, rank);
    const layout::RowSegment everything{0, c.key_rows, layout::kAllRanks, 0};
    const layout::RowSegment* const key_segments = c.keys_replicated ? &everything : c.key_segments;
    const std::int32_t key_count = c.keys_replicated ? 1 : c.key_segment_count;
    if (c.keys_replicated) key_rows = c.key_rows;
    const std::size_t key_at = shard.size();
    append_rows(shard, out.key, c.batch, c.key_rows, key_width, key_segments, key_count, rank);
    const std::size_t value_at = shard.size();
    append_rows(shard, out.value, c.batch, c.key_rows, key_width, key_segments, key_count, rank);
    const auto view = [&](std::size_t at, std::int64_t count, std::int64_t heads) {
      return layout::TensorView::contiguous(shard.data() + at, layout::ScalarType::kBf16, c.batch,
                                            count, heads, c.head_dim);
    };
    out.inputs.push_back({view(0, rows, c.heads), view(key_at, key_rows, c.kv_heads),
                          view(value_at, key_rows, c.kv_heads)});
    out.shards.push_back(std::move(shard));  // the views keep pointing at its memory
  }
  return out;
}

UlyssesErrors compare_with_reference(const UlyssesData& data,
                                     const std::vector<UlyssesOutput>& outputs,
                                     const std::vector<std::int64_t>& key_length,
                                     std::int64_t row_step) {
  const layout::UlyssesConfig& c = data.config;
  UlyssesErrors errors;
  Sums all;
  std::mutex mutex;
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t unit; (unit = next.fetch_add(1)) < c.batch * c.heads;) {
      const std::int64_t batch = unit / c.heads, head = unit % c.heads;
      for (std::int32_t rank = 0; rank < c.ranks; ++rank) {
        const layout::Share heads = layout::heads_of(c.heads, c.kv_heads, c.ranks, rank).query;
        if (head < heads.begin || head >= heads.begin + heads.count) continue;
        const std::int64_t keys =
            key_length.empty() ? c.key_rows : key_length[static_cast<std::size_t>(batch)];
        const Sums sums = compare_head(data, outputs[static_cast<std::size_t>(rank)], heads, batch,
                                       head - heads.begin, keys, row_step);
        const std::lock_guard lock(mutex);
        all.difference += sums.difference;
        all.bf16_difference += sums.bf16_difference;
        all.size += sums.size;
        all.rows += sums.rows;
        all.largest = std::max(all.largest, sums.largest);
        all.log_sum_exp = std::max(all.log_sum_exp, sums.log_sum_exp);
        all.finite = all.finite && sums.finite;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (unsigned i = 1; i < std::min(8u, std::thread::hardware_concurrency()); ++i)
      helpers.emplace_back(work);
    work();
  }
  const double size = all.size > 0 ? all.size : 1;
  errors.error = std::sqrt(all.difference / size);
  errors.bf16_error = std::sqrt(all.bf16_difference / size);
  errors.largest = all.largest;
  errors.log_sum_exp = all.log_sum_exp;
  errors.rows_checked = all.rows;
  errors.finite = all.finite;
  errors.fused_equals_local = fused_equals_local(c, outputs);
  return errors;
}

}  // namespace xstage::cpu
