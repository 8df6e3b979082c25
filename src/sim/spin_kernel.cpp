#include "xstage/sim/spin_kernel.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <utility>

namespace xstage::sim {
namespace {

using schedule::Linear;
using schedule::MoeOrder;
using schedule::MoeTile;
using schedule::StaticTiles;

class SpinRun {
 public:
  SpinRun(const EgressParameters& parameters, const SpinKernel& kernel)
      : kernel_(kernel),
        egress_(parameters, kernel.seed),
        random_(kernel.seed ^ 0x9E3779B97F4A7C15ULL),
        remote_(kernel.pieces, kernel.remote_fraction),
        // A row is an "expert" of one row: every block has all of them to itself.
        tokens_(static_cast<std::size_t>(kernel.rows), 1U) {
    const MoeOrder order({1, kernel.n1, kernel.n2}, kernel.schedule, tokens_.data(),
                         static_cast<std::int32_t>(kernel.rows));
    for (const int sm : kernel.blocks) {
      blocks_.push_back({sm, StaticTiles<MoeOrder>(order, 0, 1), {}, 0, 0});
    }
  }

  SpinResult run() {
    for (std::size_t i = 0; i < blocks_.size(); ++i) next_tile(i);
    while (true) {
      const double spun =
          wakes_.empty() ? std::numeric_limits<double>::infinity() : wakes_.front().first;
      const double next = std::min(egress_.next_event(), spun);
      if (std::isinf(next)) break;
      egress_.advance(next);
      for (Egress::Event event; egress_.poll(event);) on(event);
      while (!wakes_.empty() && wakes_.front().first <= next) {
        const std::size_t block = wakes_.front().second;
        std::pop_heap(wakes_.begin(), wakes_.end(), std::greater<>());
        wakes_.pop_back();
        spin_over(block);
      }
    }
    std::vector<double> means;
    const auto stores = static_cast<double>(kernel_.rows * kernel_.n2);
    for (const Block& block : blocks_) means.push_back(block.issue_sum / stores);
    std::sort(means.begin(), means.end());
    if (!means.empty())
      result_.issue_median = (means[(means.size() - 1) / 2] + means[means.size() / 2]) / 2;
    return result_;
  }

 private:
  struct Block {
    int sm;
    StaticTiles<MoeOrder> tiles;
    MoeTile tile;
    double issue_start;
    double issue_sum;
  };

  void next_tile(std::size_t index) {
    Block& block = blocks_[index];
    if (!block.tiles.next(block.tile)) return;
    const double spin =
        block.tile.linear == Linear::kFirst ? kernel_.linear1_us : kernel_.linear2_us;
    wakes_.emplace_back(egress_.now() + kernel_.fixed_us + spin, index);
    std::push_heap(wakes_.begin(), wakes_.end(), std::greater<>());
  }

  void spin_over(std::size_t index) {
    Block& block = blocks_[index];
    if (block.tile.linear == Linear::kFirst) {
      result_.time_us = std::max(result_.time_us, egress_.now());
      next_tile(index);
      return;
    }
    const int pieces = remote_(random_);
    block.issue_start = egress_.now();
    egress_.start(block.sm, {pieces * kernel_.piece_bytes, kernel_.issue_us,
                             kernel_.residual * pieces / kernel_.pieces, index});
  }

  void on(const Egress::Event& event) {
    Block& block = blocks_[event.tag];
    const double now = egress_.now();
    switch (event.kind) {
      case EgressEvent::kIssued:
        block.issue_sum += now - block.issue_start;
        result_.time_us = std::max(result_.time_us, now);
        return;
      case EgressEvent::kSettled: next_tile(event.tag); return;
      case EgressEvent::kDrained: result_.drained_us = now; return;
      case EgressEvent::kFlow: return;
    }
  }

  const SpinKernel& kernel_;
  Egress egress_;
  std::mt19937_64 random_;
  std::binomial_distribution<int> remote_;
  std::vector<std::uint32_t> tokens_;
  std::vector<Block> blocks_;
  std::vector<std::pair<double, std::size_t>> wakes_;  // heap
  SpinResult result_;
};

}  // namespace

SpinResult run_spin_kernel(const EgressParameters& parameters, const SpinKernel& kernel) {
  return SpinRun(parameters, kernel).run();
}

ScheduleValidation validate_schedules(const EgressParameters& parameters,
                                      const ScheduleSampleKernel& kernel,
                                      const std::vector<ScheduleSample>& samples,
                                      std::uint64_t seed) {
  ScheduleValidation out;
  for (const ScheduleSample& sample : samples) {
    SpinKernel spin;
    for (const auto& group : parameters.groups)
      spin.blocks.insert(spin.blocks.end(), group.begin(), group.end());
    spin.n1 = sample.n1;
    spin.n2 = sample.n2;
    spin.linear1_us = sample.linear1_tile_us;
    spin.linear2_us = sample.linear2_tile_us;
    spin.rows = std::max<std::int64_t>(
        1, std::llround(sample.compute_us /
                        (sample.n1 * sample.linear1_tile_us + sample.n2 * sample.linear2_tile_us)));
    spin.remote_fraction = sample.remote_percent / 100;
    spin.issue_us = kernel.issue_us;
    spin.residual = kernel.residual;
    spin.seed = seed;
    ScheduleComparison row;
    row.sample = sample;
    spin.fixed_us = kernel.wave_fixed_us;
    spin.schedule = schedule::MoeSchedule::wave(kernel.wave_rows);
    row.wave_us = run_spin_kernel(parameters, spin).time_us;
    spin.fixed_us = kernel.interleaved_fixed_us;
    spin.schedule = schedule::MoeSchedule::interleaved(kernel.lead);
    row.interleaved_us = run_spin_kernel(parameters, spin).time_us;
    out.speedup_mean += std::abs(row.speedup_error());
    out.speedup_worst = std::max(out.speedup_worst, std::abs(row.speedup_error()));
    for (const double error : {row.wave_error(), row.interleaved_error()}) {
      out.time_mean += std::abs(error);
      out.time_worst = std::max(out.time_worst, std::abs(error));
    }
    out.rows.push_back(row);
  }
  if (!samples.empty()) {
    out.speedup_mean /= static_cast<double>(samples.size());
    out.time_mean /= 2 * static_cast<double>(samples.size());
  }
  return out;
}

}  // namespace xstage::sim
