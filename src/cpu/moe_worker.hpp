// One worker (thread block) of one rank in one launch of the MoE layer.
//
// Publishes routes, stores its tokens where their experts are, puts what came into rows, runs tiles
// in the order of the schedule, and adds up what came back. Everything that others read or write
// goes through `Memory`: HostMemory for threads, the explorer's memory for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cpu/gemm.hpp"
#include "cpu/moe_data.hpp"
#include "cpu/numbers.hpp"
#include "cpu/scratch.hpp"
#include "xstage/layout/moe.hpp"
#include "xstage/schedule/moe.hpp"
#include "xstage/sync/moe.hpp"

namespace xstage::cpu {

/// A rank that stops answering, for drills: all its workers leave before this step.
enum class MoeStep { kBegin, kPublish, kDispatch, kTiles, kCombine, kNever };

/// What the workers of one rank share in one launch.
struct MoeLaunch {
  const layout::MoeLayout* layout = nullptr;
  void* const* symmetric = nullptr;  ///< [ranks]
  void* workspace = nullptr;
  const MoeWeights* weights = nullptr;
  const MoeInput* input = nullptr;
  std::uint16_t* output = nullptr;  ///< [tokens][H] bf16
  float* linear1 = nullptr;         ///< [pool tokens][I] before quantisation; null: not kept
  MoeStep stop_before = MoeStep::kNever;
};

template <class Memory>
class MoeWorker {
 public:
  MoeWorker(Memory& memory, const MoeLaunch& launch, const sync::WaitContext& context)
      : memory_(memory),
        launch_(launch),
        layout_(*launch.layout),
        config_(launch.layout->config),
        rank_(context.rank),
        worker_(context.worker),
        signals_(memory, *launch.layout, launch.symmetric, launch.workspace, context) {}

  /// False when a wait ended early; its record says which.
  bool run() {
    if (launch_.stop_before == MoeStep::kBegin) return false;
    signals_.begin();
    if (!signals_.cleared() || launch_.stop_before == MoeStep::kPublish) return false;
    for (std::int32_t to = worker_; to < config_.ranks; to += config_.workers) publish_routes(to);
    if (launch_.stop_before == MoeStep::kDispatch) return false;
    push_tokens();
    if (!signals_.pushed()) return false;
    for (std::int32_t to = worker_; to < config_.ranks; to += config_.workers)
      signals_.announce(to);
    if (!read_routes() || !dispatch()) return false;
    if (launch_.stop_before == MoeStep::kTiles || !run_tiles()) return false;
    return launch_.stop_before != MoeStep::kCombine && combine();
  }

 private:
  using MoeConfig = layout::MoeConfig;
  static constexpr std::int64_t kChunk = 8;  // tokens that a worker takes at a time

  template <class T>
  void store(T* to, const T* from, std::int64_t count) {
    memory_.store(to, from, static_cast<std::size_t>(count) * sizeof(T));
  }
  template <class T>
  void load(T* to, const T* from, std::int64_t count) {
    memory_.load(to, from, static_cast<std::size_t>(count) * sizeof(T));
  }

  bool mine(std::int64_t index) const { return index / kChunk % config_.workers == worker_; }
  void* own() const { return launch_.symmetric[rank_]; }
  bool scaled() const { return config_.format != WeightFormat::kBf16; }

  // --- input ---------------------------------------------------------------------------------

  /// Every token once to each rank that has some of its experts, or once for each of them.
  void push_tokens() {
    const std::int64_t hidden = config_.hidden;
    Scratch<float> values(hidden), scales(layout_.hidden_groups + 1);
    Scratch<std::uint8_t> codes(hidden);
    std::vector<std::int32_t> copies(static_cast<std::size_t>(config_.ranks));
    for (std::int64_t t = 0; t < launch_.input->tokens; ++t) {
      if (!mine(t)) continue;
      const std::uint16_t* const x = launch_.input->x.data() + t * hidden;
      const void* token = x;
      if (scaled()) {
        for (std::int64_t i = 0; i < hidden; ++i) values[i] = bf16_to_float(x[i]);
        quantise(values.data(), hidden, kScaleGroup, codes.data(), scales.data());
        token = codes.data();
      }
      std::fill(copies.begin(), copies.end(), 0);
      for (std::int64_t slot = 0; slot < config_.topk; ++slot) {
        const std::int32_t expert =
            launch_.input->experts[static_cast<std::size_t>(t * config_.topk + slot)];
        if (expert >= 0) ++copies[static_cast<std::size_t>(owner(expert))];
      }
      for (std::int32_t to = 0; to < config_.ranks; ++to) {
        std::int32_t left = copies[static_cast<std::size_t>(to)];
        if (config_.dispatch == layout::MoeDispatch::kPerRank) left = std::min(left, 1);
        for (; left > 0; --left) push(launch_.symmetric[to], t, token, scales.data());
      }
    }
  }

  void push(void* base, std::int64_t t, const void* token, const float* scales) {
    store(layout_.token(base, rank_, t), static_cast<const char*>(token),
          config_.hidden * layout_.value_bytes);
    if (scaled()) store(layout_.scales_of_token(base, rank_, t), scales, layout_.hidden_groups);
  }

  static void quantise(const float* values, std::int64_t count, std::int64_t group,
                       std::uint8_t* codes, float* scales) {
    for (std::int64_t begin = 0, g = 0; begin < count; begin += group, ++g) {
      const std::int64_t end = std::min(count, begin + group);
      float largest = 0;
      for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
      scales[g] = scale_of_group(largest);
      for (std::int64_t i = begin; i < end; ++i) codes[i] = float_to_e4m3(values[i] / scales[g]);
    }
  }

  // --- routes --------------------------------------------------------------------------------

  /// The rows that go from this rank to `to`, by local expert, then token, then slot.
  void publish_routes(std::int32_t to) {
    const auto experts = static_cast<std::size_t>(layout_.experts_local);
    const std::int32_t first_expert = to * static_cast<std::int32_t>(layout_.experts_local);
    const MoeInput& input = *launch_.input;
    std::vector<std::uint32_t> counts(experts, 0), next(experts + 1, 0);
    for (const std::int32_t expert : input.experts)
      if (owner(expert) == to) ++counts[static_cast<std::size_t>(expert - first_expert)];
    for (std::size_t e = 0; e < experts; ++e) next[e + 1] = next[e] + counts[e];
    std::vector<layout::RouteEntry> entries(next[experts]);
    std::vector<std::uint32_t> of_token;
    for (std::int64_t t = 0; t < input.tokens; ++t) {
      of_token.clear();
      for (std::int64_t slot = 0; slot < config_.topk; ++slot) {
        const auto pair = static_cast<std::size_t>(t * config_.topk + slot);
        if (owner(input.experts[pair]) != to) continue;
        const std::uint32_t at =
            next[static_cast<std::size_t>(input.experts[pair] - first_expert)]++;
        entries[at] = {static_cast<std::uint32_t>(pair), input.weights[pair], -1, 0};
        of_token.push_back(at);
      }
      if (of_token.empty()) continue;
      std::sort(of_token.begin(), of_token.end());
      entries[of_token[0]].first = 1;
      for (std::size_t i = 1; i < of_token.size(); ++i)
        entries[of_token[i - 1]].next = static_cast<std::int32_t>(of_token[i]);
    }
    void* const base = launch_.symmetric[to];
    signals_.publish(to, [&] {
      store(layout_.counts_of(base, signals_.slot(), rank_), counts.data(), layout_.experts_local);
      store(layout_.entries_of(base, signals_.slot(), rank_), entries.data(),
            static_cast<std::int64_t>(entries.size()));
    });
  }

  std::int32_t owner(std::int32_t expert) const {
    return expert < 0 ? -1 : static_cast<std::int32_t>(expert / layout_.experts_local);
  }

  /// Counts and entries of all sources: tokens of each expert, and what stands at each place of its
  /// rows, by source and then in the source's order.
  bool read_routes() {
    const auto experts = static_cast<std::size_t>(layout_.experts_local);
    const auto ranks = static_cast<std::size_t>(config_.ranks);
    std::vector<std::vector<std::uint32_t>> counts_of(ranks, std::vector<std::uint32_t>(experts));
    tokens_of_expert_.assign(experts, 0);
    first_row_.assign(experts + 1, 0);
    for (std::int32_t source = 0; source < config_.ranks; ++source) {
      if (!signals_.wait_routes(source)) return false;
      auto& counts = counts_of[static_cast<std::size_t>(source)];
      load(counts.data(), layout_.counts_of(own(), signals_.slot(), source), layout_.experts_local);
      std::int64_t sum = 0;
      for (const std::uint32_t count : counts) sum += count;
      if (sum > layout_.pairs)
        return corrupt(source, static_cast<std::uint64_t>(sum), layout_.pairs);
      for (std::size_t e = 0; e < experts; ++e) tokens_of_expert_[e] += counts[e];
    }
    for (std::size_t e = 0; e < experts; ++e)
      first_row_[e + 1] = first_row_[e] + schedule::rows_of(tokens_of_expert_[e], config_.block_m);
    signals_.record_rows(first_row_[experts]);
    origins_.assign(static_cast<std::size_t>(first_row_[experts] * config_.block_m), {-1, 0, 0, 0});
    std::vector<std::int64_t> next(experts);
    for (std::size_t e = 0; e < experts; ++e) next[e] = first_row_[e] * config_.block_m;
    std::vector<layout::RouteEntry> entries;
    for (std::int32_t source = 0; source < config_.ranks; ++source) {
      const auto& counts = counts_of[static_cast<std::size_t>(source)];
      entries.resize(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
      load(entries.data(), layout_.entries_of(own(), signals_.slot(), source),
           static_cast<std::int64_t>(entries.size()));
      std::size_t at = 0;
      for (std::size_t e = 0; e < experts; ++e)
        for (std::uint32_t i = 0; i < counts[e]; ++i, ++at) {
          if (entries[at].pair >= static_cast<std::uint64_t>(layout_.pairs))
            return corrupt(source, entries[at].pair, layout_.pairs);
          origins_[static_cast<std::size_t>(next[e]++)] = {source, entries[at].pair,
                                                           entries[at].weight, 0};
        }
    }
    return true;
  }

  /// Ends the launch on every rank: what `source` sent cannot be.
  bool corrupt(std::int32_t source, std::uint64_t seen, std::int64_t allowed) {
    sync::stop_all(memory_, signals_.context(),
                   {sync::WaitEnd::kCorrupt, sync::Site::kRoutes, rank_, worker_, source,
                    static_cast<std::uint64_t>(allowed), seen, signals_.epoch(), 0});
    return false;
  }

  /// Copies this worker's share of the places from where tokens landed into the rows.
  bool dispatch() {
    for (std::int32_t source = 0; source < config_.ranks; ++source)
      if (!signals_.wait_landed(source)) return false;
    const std::int64_t bytes = config_.hidden * layout_.value_bytes;
    std::vector<char> token(static_cast<std::size_t>(bytes));
    std::vector<float> scales(static_cast<std::size_t>(layout_.hidden_groups));
    const auto places = static_cast<std::int64_t>(origins_.size());
    for (std::int64_t place = 0; place < places; ++place) {
      const layout::RowOrigin& origin = origins_[static_cast<std::size_t>(place)];
      if (!mine(place) || origin.source < 0) continue;
      const std::int64_t from = origin.pair / static_cast<std::uint32_t>(config_.topk);
      const std::int64_t row = place / config_.block_m, lane = place % config_.block_m;
      load(token.data(), layout_.token(own(), origin.source, from), bytes);
      store(layout_.pool_token(launch_.workspace, place), token.data(), bytes);
      if (scaled())
        load(scales.data(), layout_.scales_of_token(own(), origin.source, from),
             layout_.hidden_groups);
      for (std::int64_t g = 0; g < layout_.hidden_groups; ++g)
        store(layout_.pool_scales_of(launch_.workspace, row, g) + lane,
              &scales[static_cast<std::size_t>(g)], 1);
      store(layout_.origin(launch_.workspace, place), &origin, 1);
      signals_.dispatched(row, 1);
    }
    return true;
  }

  // --- tiles ---------------------------------------------------------------------------------

  bool run_tiles() {
    const std::int64_t depth = std::max(config_.hidden, config_.intermediate);
    left_ = Scratch<float>(config_.block_m * depth);
    right_ = Scratch<float>(config_.block_n * depth);
    product_ = Scratch<float>(std::int64_t{config_.block_m} * config_.block_n);
    const schedule::MoeOrder order(layout_.tiling, config_.schedule, tokens_of_expert_.data(),
                                   static_cast<std::int32_t>(layout_.experts_local));
    schedule::StaticTiles tiles(order, static_cast<std::uint32_t>(worker_),
                                static_cast<std::uint32_t>(config_.workers));
    for (schedule::MoeTile tile; tiles.next(tile);)
      if (!(tile.linear == schedule::Linear::kFirst ? linear1(tile) : linear2(tile))) return false;
    return true;
  }

  /// Tokens of a row as floats, scales applied. `group` values share a scale; 0: bf16.
  template <class Token, class Scales>
  void load_left(const schedule::MoeTile& tile, std::int64_t depth, std::int64_t group,
                 Token&& token, Scales&& scales) {
    std::vector<char> raw(static_cast<std::size_t>(depth * layout_.value_bytes));
    for (std::int64_t i = 0; i < tile.tokens; ++i) {
      load(raw.data(), token(tile.row * config_.block_m + i),
           static_cast<std::int64_t>(raw.size()));
      float* const out = left_.data() + i * depth;
      if (group == 0) {
        const auto* values = reinterpret_cast<const std::uint16_t*>(raw.data());
        for (std::int64_t j = 0; j < depth; ++j) out[j] = bf16_to_float(values[j]);
        continue;
      }
      for (std::int64_t begin = 0, g = 0; begin < depth; begin += group, ++g) {
        float scale = 0;
        load(&scale, scales(tile.row * config_.block_m + i, g), 1);
        for (std::int64_t j = begin; j < std::min(depth, begin + group); ++j)
          out[j] =
              scale * e4m3_to_float(static_cast<std::uint8_t>(raw[static_cast<std::size_t>(j)]));
      }
    }
  }

  void load_right(std::int64_t at, std::int64_t depth, const std::uint8_t* codes,
                  const float* scales, const std::uint16_t* values) {
    float* const out = right_.data() + at * depth;
    if (!scaled()) {
      for (std::int64_t j = 0; j < depth; ++j) out[j] = bf16_to_float(values[j]);
      return;
    }
    for (std::int64_t j = 0; j < depth; ++j)
      out[j] = scales[j / kScaleGroup] * e4m3_to_float(codes[j]);
  }

  /// One tile of Linear-1: block_n/2 gate columns and the up columns that belong to them.
  bool linear1(const schedule::MoeTile& tile) {
    if (!signals_.wait_dispatched(tile.row, tile.tokens)) return false;
    const std::int64_t depth = config_.hidden, half = config_.block_n / 2;
    const std::int64_t first = tile.column * half;
    const std::int64_t columns = std::min(half, config_.intermediate - first);
    const std::int64_t expert = global_expert(tile.expert);
    const MoeWeights& w = *launch_.weights;
    load_left(
        tile, depth, scaled() ? kScaleGroup : 0,
        [&](std::int64_t at) { return layout_.pool_token(launch_.workspace, at); },
        [&](std::int64_t at, std::int64_t g) {
          return layout_.pool_scales_of(launch_.workspace, at / config_.block_m, g) +
                 at % config_.block_m;
        });
    for (std::int64_t c = 0; c < 2 * columns; ++c) {
      const std::int64_t row = c < columns ? first + c : config_.intermediate + first + c - columns;
      load_right(c, depth, scaled() ? w.w1_codes(expert, row) : nullptr,
                 scaled() ? w.w1_scales_of(expert, row) : nullptr,
                 scaled() ? nullptr : w.w1_values(expert, row));
    }
    multiply_transposed(left_.data(), right_.data(), product_.data(), tile.tokens, 2 * columns,
                        depth);
    for (std::int64_t i = 0; i < tile.tokens; ++i) finish_linear1(tile, i, first, columns);
    signals_.linear1_done(tile.row);
    return true;
  }

  /// SwiGLU, the token's weight, and the rounding of one token's piece of the intermediate.
  void finish_linear1(const schedule::MoeTile& tile, std::int64_t i, std::int64_t first,
                      std::int64_t columns) {
    const std::int64_t place = tile.row * config_.block_m + i;
    layout::RowOrigin origin;
    load(&origin, layout_.origin(launch_.workspace, place), 1);
    const float* const gate = product_.data() + i * 2 * columns;
    const float* const up = gate + columns;
    float values[128];
    for (std::int64_t c = 0; c < columns; ++c)
      values[c] = origin.weight * swiglu(gate[c], up[c], config_.activation.clamp);
    if (launch_.linear1)
      std::copy(values, values + columns, launch_.linear1 + place * config_.intermediate + first);
    char* const to = layout_.intermediate_token(launch_.workspace, place);
    if (!scaled()) {
      std::uint16_t rounded[128];
      for (std::int64_t c = 0; c < columns; ++c) rounded[c] = float_to_bf16(values[c]);
      store(to + first * 2, reinterpret_cast<const char*>(rounded), columns * 2);
      return;
    }
    std::uint8_t codes[128];
    float scale = 0;
    quantise(values, columns, layout_.intermediate_group, codes, &scale);
    store(to + first, reinterpret_cast<const char*>(codes), columns);
    store(layout_.intermediate_scales_of(launch_.workspace, tile.row, tile.column) + i, &scale, 1);
  }

  static float swiglu(float gate, float up, float clamp) {
    if (clamp > 0) {
      gate = std::min(gate, clamp);
      up = std::clamp(up, -clamp, clamp);
    }
    return gate / (1.0f + std::exp(-gate)) * up;
  }

  /// One tile of Linear-2: its rows go straight to the owners of their tokens.
  bool linear2(const schedule::MoeTile& tile) {
    if (!signals_.wait_linear1(tile.row)) return false;
    const std::int64_t depth = config_.intermediate, columns = config_.block_n;
    const std::int64_t first = tile.column * columns;
    const std::int64_t expert = global_expert(tile.expert);
    const MoeWeights& w = *launch_.weights;
    load_left(
        tile, depth, scaled() ? layout_.intermediate_group : 0,
        [&](std::int64_t at) { return layout_.intermediate_token(launch_.workspace, at); },
        [&](std::int64_t at, std::int64_t g) {
          return layout_.intermediate_scales_of(launch_.workspace, at / config_.block_m, g) +
                 at % config_.block_m;
        });
    for (std::int64_t c = 0; c < columns; ++c)
      load_right(c, depth, scaled() ? w.w2_codes(expert, first + c) : nullptr,
                 scaled() ? w.w2_scales_of(expert, first + c) : nullptr,
                 scaled() ? nullptr : w.w2_values(expert, first + c));
    multiply_transposed(left_.data(), right_.data(), product_.data(), tile.tokens, columns, depth);
    std::vector<std::int64_t> pieces(static_cast<std::size_t>(config_.ranks), 0);
    std::uint16_t rounded[256];
    for (std::int64_t i = 0; i < tile.tokens; ++i) {
      layout::RowOrigin to;
      load(&to, layout_.origin(launch_.workspace, tile.row * config_.block_m + i), 1);
      for (std::int64_t c = 0; c < columns; ++c)
        rounded[c] = float_to_bf16(product_[i * columns + c]);
      store(layout_.combine_row(launch_.symmetric[to.source], to.pair) + first, rounded, columns);
      ++pieces[static_cast<std::size_t>(to.source)];
    }
    for (std::int32_t to = 0; to < config_.ranks; ++to)
      if (pieces[static_cast<std::size_t>(to)] > 0)
        signals_.combined(to, pieces[static_cast<std::size_t>(to)]);
    return true;
  }

  std::int64_t global_expert(std::int32_t local) const {
    return rank_ * layout_.experts_local + local;
  }

  // --- combine -------------------------------------------------------------------------------

  /// Adds the slots of this worker's tokens in slot order, in fp32, and rounds once.
  bool combine() {
    const MoeInput& input = *launch_.input;
    std::vector<std::int64_t> sent(static_cast<std::size_t>(config_.ranks), 0);
    for (const std::int32_t expert : input.experts)
      if (expert >= 0) ++sent[static_cast<std::size_t>(owner(expert))];
    for (std::int32_t source = 0; source < config_.ranks; ++source)
      if (!signals_.wait_combined(source, sent[static_cast<std::size_t>(source)])) return false;
    const std::int64_t hidden = config_.hidden;
    std::vector<float> sum(static_cast<std::size_t>(hidden));
    std::vector<std::uint16_t> slot_values(static_cast<std::size_t>(hidden));
    for (std::int64_t t = 0; t < input.tokens; ++t) {
      if (!mine(t)) continue;
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (std::int64_t slot = 0; slot < config_.topk; ++slot) {
        const std::int64_t pair = t * config_.topk + slot;
        if (input.experts[static_cast<std::size_t>(pair)] < 0) continue;
        load(slot_values.data(), layout_.combine_row(own(), static_cast<std::uint32_t>(pair)),
             hidden);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += bf16_to_float(slot_values[i]);
      }
      std::uint16_t* const out = launch_.output + t * hidden;
      const std::uint16_t* const addend =
          input.addend.empty() ? nullptr : input.addend.data() + t * hidden;
      for (std::size_t i = 0; i < sum.size(); ++i)
        out[i] = float_to_bf16(addend ? sum[i] + bf16_to_float(addend[i]) : sum[i]);
    }
    return true;
  }

  Memory& memory_;
  const MoeLaunch& launch_;
  const layout::MoeLayout& layout_;
  const MoeConfig& config_;
  const std::int32_t rank_;
  const std::int32_t worker_;
  sync::MoeSignals<Memory> signals_;

  std::vector<std::uint32_t> tokens_of_expert_;
  std::vector<std::int64_t> first_row_;
  std::vector<layout::RowOrigin> origins_;  // of every place; source -1: none
  Scratch<float> left_, right_, product_;
};

}  // namespace xstage::cpu
