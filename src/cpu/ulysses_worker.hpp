// One worker (thread block) of one rank in one launch of a Ulysses attention layer.
//
// The input exchange pushes rows of Q, K and V to the ranks that have their heads; then attention
// runs tile by tile, and each finished tile's rows go to the ranks that own them. Everything that
// others read or write goes through `Memory`, as in moe_worker.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/gemm.hpp"
#include "cpu/numbers.hpp"
#include "cpu/scratch.hpp"
#include "xstage/layout/ulysses.hpp"
#include "xstage/schedule/ulysses.hpp"
#include "xstage/sync/arrivals.hpp"

namespace xstage::cpu {

/// Drills: the rank leaves before this step.
enum class UlyssesStep { kExchange, kAttention, kNever };

/// What the workers of one rank share in one launch.
struct UlyssesLaunch {
  const layout::UlyssesLayout* layout = nullptr;
  void* const* symmetric = nullptr;  ///< [ranks]
  void* workspace = nullptr;
  layout::TensorView query, key, value;      ///< this rank's rows, all heads
  const std::int64_t* key_length = nullptr;  ///< [batch]
  std::uint16_t* local = nullptr;  ///< [batch][S][local heads][D]: the output before it travels
  float* log_sum_exp = nullptr;    ///< [batch][local heads][S]
  UlyssesStep stop_before = UlyssesStep::kNever;
};

/// Addresses of the signals of the exchange (launch 0) or of the output (launch 1).
struct UlyssesWords {
  std::uint64_t* arrived(std::int32_t rank, std::int32_t slot, std::int32_t source) const {
    return launch == 0 ? layout->exchanged_word(symmetric[rank], slot, source)
                       : layout->output_word(symmetric[rank], slot, source);
  }
  std::uint64_t* epoch() const {
    return layout->word(workspace, launch, layout::UlyssesWord::kEpoch);
  }
  std::uint64_t* barrier() const {
    return layout->word(workspace, launch, layout::UlyssesWord::kBarrier);
  }

  const layout::UlyssesLayout* layout;
  void* const* symmetric;
  void* workspace;
  std::int32_t launch;
};

template <class Memory>
class UlyssesWorker {
 public:
  UlyssesWorker(Memory& memory, const UlyssesLaunch& launch, const sync::WaitContext& context)
      : memory_(memory),
        launch_(launch),
        layout_(*launch.layout),
        config_(launch.layout->config),
        rank_(context.rank),
        worker_(context.worker),
        heads_(heads(context.rank)),
        exchange_(memory, UlyssesWords{launch.layout, launch.symmetric, launch.workspace, 0},
                  context, config_.workers, sync::Site::kExchangePieces),
        output_(memory, UlyssesWords{launch.layout, launch.symmetric, launch.workspace, 1}, context,
                config_.workers, sync::Site::kOutputPieces) {}

  /// False when a wait ended early; its record says which.
  bool run() {
    if (launch_.stop_before == UlyssesStep::kExchange || !exchange()) return false;
    return launch_.stop_before != UlyssesStep::kAttention && attention();
  }

  /// Slot of the output of this launch.
  std::int32_t output_slot() const { return output_.slot(); }

 private:
  using Piece = layout::SegmentPiece;
  static constexpr std::int64_t kRowsAtATime = 16;

  layout::HeadShare heads(std::int32_t rank) const {
    return layout::heads_of(config_.heads, config_.kv_heads, config_.ranks, rank);
  }
  template <class T>
  void store(T* to, const T* from, std::int64_t count) {
    memory_.store(to, from, static_cast<std::size_t>(count) * sizeof(T));
  }
  template <class T>
  void load(T* to, const T* from, std::int64_t count) {
    memory_.load(to, from, static_cast<std::size_t>(count) * sizeof(T));
  }
  void* own() const { return launch_.symmetric[rank_]; }

  // --- input exchange ------------------------------------------------------------------------

  bool exchange() {
    exchange_.begin();
    if (!exchange_.open()) return false;
    std::int64_t unit = 0;
    // Each rank begins with its next neighbour, so that nobody is everybody's target.
    for (std::int32_t step = 1; step <= config_.ranks; ++step) {
      const std::int32_t to = (rank_ + step) % config_.ranks;
      push(to, launch_.query, config_.segments, config_.segment_count, heads(to).query, unit,
           [&](std::int64_t batch, std::int64_t row, std::int64_t head) {
             return layout_.query_row(launch_.symmetric[to], exchange_.slot(),
                                      heads(to).query.count, batch, row, head);
           });
      if (config_.keys_replicated) continue;
      for (const bool keys : {true, false})
        push(to, keys ? launch_.key : launch_.value, config_.key_segments,
             config_.key_segment_count, heads(to).key, unit,
             [&](std::int64_t batch, std::int64_t row, std::int64_t head) {
               return layout_.key_row(keys ? layout_.key : layout_.value, launch_.symmetric[to],
                                      exchange_.slot(), heads(to).key.count, batch, row, head);
             });
    }
    for (std::int32_t source = 0; source < config_.ranks; ++source)
      if (!exchange_.wait(source, exchanged_pieces(source))) return false;
    return true;
  }

  /// Pushes this rank's rows of one tensor, the heads of `to`, in units shared by the workers. Rows
  /// that every rank has do not travel: each takes its own.
  template <class Target>
  void push(std::int32_t to, const layout::TensorView& tensor, const layout::RowSegment* segments,
            std::int32_t count, const layout::Share& wanted, std::int64_t& unit, Target&& target) {
    const auto* const data = static_cast<const std::uint16_t*>(tensor.data);
    for (std::int32_t i = 0; i < count; ++i) {
      const layout::RowSegment& s = segments[i];
      const bool goes = s.rank == rank_ || (s.rank == layout::kAllRanks && to == rank_);
      if (!goes || wanted.count == 0) continue;
      for (std::int64_t batch = 0; batch < config_.batch; ++batch)
        for (std::int64_t begin = s.begin; begin < s.end; begin += kRowsAtATime) {
          if (unit++ % config_.workers != worker_) continue;
          const std::int64_t end = std::min(s.end, begin + kRowsAtATime);
          exchange_.deliver(to, (end - begin) * wanted.count, [&] {
            for (std::int64_t row = begin; row < end; ++row)
              for (std::int64_t head = 0; head < wanted.count; ++head)
                store(target(batch, row, head),
                      data + tensor.index(batch, s.row + row - s.begin, wanted.begin + head),
                      config_.head_dim);
          });
        }
    }
  }

  /// Pieces that `source` sends to this rank in an exchange.
  std::int64_t exchanged_pieces(std::int32_t source) const {
    const auto rows = [&](const layout::RowSegment* segments, std::int32_t count) {
      std::int64_t sum = 0;
      for (std::int32_t i = 0; i < count; ++i)
        if (segments[i].rank == source ||
            (segments[i].rank == layout::kAllRanks && source == rank_))
          sum += segments[i].end - segments[i].begin;
      return sum;
    };
    std::int64_t pieces = rows(config_.segments, config_.segment_count) * heads_.query.count;
    if (!config_.keys_replicated)
      pieces += 2 * rows(config_.key_segments, config_.key_segment_count) * heads_.key.count;
    return pieces * config_.batch;
  }

  // --- attention -----------------------------------------------------------------------------

  bool attention() {
    output_.begin();
    const std::int64_t dim = config_.head_dim;
    query_ = Scratch<float>(config_.block_m * dim);
    keys_ = Scratch<float>(config_.block_n * dim);
    values_ = Scratch<float>(config_.block_n * dim);
    scores_ = Scratch<float>(std::int64_t{config_.block_m} * config_.block_n);
    result_ = Scratch<float>(config_.block_m * dim);
    largest_ = Scratch<float>(config_.block_m);
    sum_ = Scratch<float>(config_.block_m);
    if (!output_.open()) return false;
    schedule::RowRange ranges[schedule::UlyssesOrder::kMaxRanges];
    const schedule::UlyssesOrder order(config_.order, config_.batch * heads_.query.count,
                                       config_.rows, config_.block_m, ranges, own_ranges(ranges));
    schedule::StaticTiles tiles(order, static_cast<std::uint32_t>(worker_),
                                static_cast<std::uint32_t>(config_.workers));
    for (schedule::UlyssesTile tile; tiles.next(tile);) run_tile(tile);
    const std::int64_t rows = layout::rows_received(config_.segments, config_.segment_count, rank_);
    for (std::int32_t source = 0; source < config_.ranks; ++source)
      if (!output_.wait(source, config_.batch * heads(source).query.count * rows)) return false;
    return true;
  }

  std::int32_t own_ranges(schedule::RowRange* ranges) const {
    std::int32_t count = 0;
    for (std::int32_t i = 0; i < config_.segment_count; ++i)
      if (config_.segments[i].rank == rank_ && count < schedule::UlyssesOrder::kMaxRanges)
        ranges[count++] = {config_.segments[i].begin, config_.segments[i].end};
    return count;
  }

  void run_tile(const schedule::UlyssesTile& tile) {
    const std::int64_t batch = tile.head / heads_.query.count;
    const std::int64_t head = tile.head % heads_.query.count;
    const std::int64_t begin = tile.block * config_.block_m;
    const std::int64_t rows = std::min<std::int64_t>(config_.block_m, config_.rows - begin);
    const std::int64_t dim = config_.head_dim;
    std::vector<std::uint16_t> row(static_cast<std::size_t>(dim));
    for (std::int64_t i = 0; i < rows; ++i) {
      load(row.data(),
           layout_.query_row(own(), exchange_.slot(), heads_.query.count, batch, begin + i, head),
           dim);
      widen(row.data(), query_.data() + i * dim);
    }
    std::fill_n(result_.data(), rows * dim, 0.0f);
    std::fill_n(largest_.data(), rows, -std::numeric_limits<float>::infinity());
    std::fill_n(sum_.data(), rows, 0.0f);
    const std::int64_t keys = std::min(launch_.key_length[batch], config_.key_rows);
    // The key head of this query head, counted among this rank's.
    const std::int64_t group = config_.heads / config_.kv_heads;
    const std::int64_t key_head = (heads_.query.begin + head) / group - heads_.key.begin;
    for (std::int64_t at = 0; at < keys; at += config_.block_n)
      add_keys(batch, key_head, at, std::min<std::int64_t>(config_.block_n, keys - at), rows);
    finish(batch, head, begin, rows);
  }

  void widen(const std::uint16_t* from, float* to) const {
    for (std::int64_t d = 0; d < config_.head_dim; ++d) to[d] = bf16_to_float(from[d]);
  }

  void load_keys(const layout::Region& which, const layout::TensorView& replicated, float* to,
                 std::int64_t batch, std::int64_t head, std::int64_t at, std::int64_t count) {
    std::vector<std::uint16_t> row(static_cast<std::size_t>(config_.head_dim));
    for (std::int64_t i = 0; i < count; ++i) {
      if (config_.keys_replicated) {
        widen(static_cast<const std::uint16_t*>(replicated.data) +
                  replicated.index(batch, at + i, heads_.key.begin + head),
              to + i * config_.head_dim);
        continue;
      }
      load(row.data(),
           layout_.key_row(which, own(), exchange_.slot(), heads_.key.count, batch, at + i, head),
           config_.head_dim);
      widen(row.data(), to + i * config_.head_dim);
    }
  }

  /// One step of the online softmax: scores in fp32, probabilities in bf16, sums in fp32.
  void add_keys(std::int64_t batch, std::int64_t key_head, std::int64_t at, std::int64_t count,
                std::int64_t rows) {
    const std::int64_t dim = config_.head_dim;
    load_keys(layout_.key, launch_.key, keys_.data(), batch, key_head, at, count);
    load_keys(layout_.value, launch_.value, values_.data(), batch, key_head, at, count);
    multiply_transposed(query_.data(), keys_.data(), scores_.data(), rows, count, dim);
    const float scale = logit_scale() * 1.4426950408889634f;  // exp2 in place of exp
    for (std::int64_t i = 0; i < rows; ++i) {
      float* const row = scores_.data() + i * count;
      float largest = largest_[i];
      for (std::int64_t j = 0; j < count; ++j) largest = std::max(largest, row[j]);
      const float shrink = std::exp2((largest_[i] - largest) * scale);
      float sum = 0;
      for (std::int64_t j = 0; j < count; ++j) {
        const float p = std::exp2((row[j] - largest) * scale);
        sum += p;
        row[j] = bf16_to_float(float_to_bf16(p));
      }
      largest_[i] = largest;
      sum_[i] = sum_[i] * shrink + sum;
      for (std::int64_t d = 0; d < dim; ++d) result_[i * dim + d] *= shrink;
    }
    multiply_add(scores_.data(), values_.data(), result_.data(), rows, dim, count);
  }

  float logit_scale() const {
    return config_.scale > 0 ? config_.scale
                             : 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  }

  /// Divides by the sums and sends each row to its owner.
  void finish(std::int64_t batch, std::int64_t head, std::int64_t begin, std::int64_t rows) {
    const std::int64_t dim = config_.head_dim;
    rounded_.resize(static_cast<std::size_t>(rows * dim));
    for (std::int64_t i = 0; i < rows; ++i) {
      const float inverse = sum_[i] > 0 ? 1.0f / sum_[i] : 0.0f;  // no key: zeros
      for (std::int64_t d = 0; d < dim; ++d)
        rounded_[static_cast<std::size_t>(i * dim + d)] =
            float_to_bf16(result_[i * dim + d] * inverse);
      if (launch_.log_sum_exp)
        launch_.log_sum_exp[(batch * heads_.query.count + head) * config_.rows + begin + i] =
            sum_[i] > 0 ? largest_[i] * logit_scale() + std::log(sum_[i])
                        : -std::numeric_limits<float>::infinity();
      if (launch_.local)
        std::copy_n(
            rounded_.data() + i * dim, dim,
            launch_.local + ((batch * config_.rows + begin + i) * heads_.query.count + head) * dim);
    }
    layout::for_each_piece(config_.segments, config_.segment_count, begin, begin + rows,
                           [&](const Piece& piece) {
                             for (std::int32_t to = 0; to < config_.ranks; ++to)
                               if (piece.rank == to || piece.rank == layout::kAllRanks)
                                 send(piece, to, batch, head, begin);
                           });
  }

  void send(const Piece& piece, std::int32_t to, std::int64_t batch, std::int64_t head,
            std::int64_t tile_begin) {
    const std::int64_t rows = layout::rows_received(config_.segments, config_.segment_count, to);
    output_.deliver(to, piece.end - piece.begin, [&] {
      for (std::int64_t row = piece.begin; row < piece.end; ++row)
        store(layout_.output_row(launch_.symmetric[to], output_.slot(), rows, batch,
                                 piece.row + row - piece.begin, heads_.query.begin + head),
              rounded_.data() + (row - tile_begin) * config_.head_dim, config_.head_dim);
    });
  }

  Memory& memory_;
  const UlyssesLaunch& launch_;
  const layout::UlyssesLayout& layout_;
  const layout::UlyssesConfig& config_;
  const std::int32_t rank_;
  const std::int32_t worker_;
  const layout::HeadShare heads_;
  sync::Arrivals<Memory, UlyssesWords> exchange_, output_;

  Scratch<float> query_, keys_, values_, scores_, result_, largest_, sum_;
  std::vector<std::uint16_t> rounded_;
};

}  // namespace xstage::cpu
