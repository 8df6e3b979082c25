#include "xstage/sim/ulysses.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

namespace xstage::sim {
namespace {

using schedule::RowRange;
using schedule::StaticTiles;
using schedule::UlyssesOrder;
using schedule::UlyssesTile;

class UlyssesRun {
 public:
  UlyssesRun(const std::vector<EgressParameters>& fabric, const UlyssesKernel& kernel,
             std::uint64_t seed, const TimelineOptions& timeline)
      : kernel_(kernel),
        recorder_(timeline, kernel.ranks),
        recording_(timeline.max_spans > 0),
        ranks_(static_cast<std::size_t>(kernel.ranks)) {
    egress_.reserve(ranks_.size());
    next_event_.assign(ranks_.size(), std::numeric_limits<double>::infinity());
    for (int r = 0; r < kernel.ranks; ++r) {
      EgressParameters parameters = fabric[static_cast<std::size_t>(r) % fabric.size()];
      parameters.peers = kernel.ranks;
      receive_rate_.push_back(parameters.drain_rate);
      egress_.emplace_back(parameters, seed * 1000003 + static_cast<std::uint64_t>(r));
      Rank& rank = ranks_[static_cast<std::size_t>(r)];
      const RowRange own{begin(r), begin(r + 1)};
      const std::int64_t heads = head_begin(r + 1) - head_begin(r);
      const UlyssesOrder order(kernel.order, kernel.batch * heads, kernel.seq, kernel.block_m, &own,
                               1);
      rank.result.tiles = static_cast<std::int64_t>(order.size());
      const auto sms = static_cast<std::uint32_t>(egress_.back().sms());
      for (std::uint32_t sm = 0; sm < sms; ++sm)
        rank.workers.push_back({StaticTiles<UlyssesOrder>(order, sm, sms)});
    }
  }

  UlyssesResult run() {
    for (int rank = 0; rank < kernel_.ranks; ++rank)
      for (int sm = 0; sm < static_cast<int>(at(rank).workers.size()); ++sm) next_tile(rank, sm);
    while (true) {
      double next = heap_.empty() ? std::numeric_limits<double>::infinity() : heap_.front().time;
      std::size_t link = egress_.size();
      for (std::size_t r = 0; r < egress_.size(); ++r)
        if (next_event_[r] < next) {
          next = next_event_[r];
          link = r;
        }
      if (std::isinf(next)) break;
      if (kernel_.ranks > 2 && next >= next_incast_) {
        now_ = std::max(now_, next_incast_);
        meet();
        continue;
      }
      now_ = std::max(now_, next);
      if (recorder_.due(now_)) {
        std::vector<double> bytes;
        for (const Egress& egress : egress_) bytes.push_back(egress.backlog());
        recorder_.sample(now_, bytes);
      }
      if (link < egress_.size()) {
        advance(static_cast<int>(link));
        touch(link);
        continue;
      }
      const Wake wake = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      heap_.pop_back();
      math_end(wake.rank, wake.sm);
    }
    return finish();
  }

 private:
  struct Worker {
    StaticTiles<UlyssesOrder> tiles;
    UlyssesTile tile{};
    std::vector<UlyssesTile> staged{};
    bool storing = false;
    bool blocked = false;
    double since = 0;
    double issue_start = 0;
    double issue_floor = 0;
  };
  struct Rank {
    std::vector<Worker> workers;
    std::int64_t stores = 0;
    double issue_sum = 0;
    UlyssesRankResult result;
  };
  struct Wake {
    double time;
    std::uint64_t order;
    int rank, sm;
    bool operator>(const Wake& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  Worker& worker(int rank, int sm) { return at(rank).workers[static_cast<std::size_t>(sm)]; }
  std::int64_t begin(std::int64_t rank) const { return kernel_.seq * rank / kernel_.ranks; }
  std::int64_t head_begin(std::int64_t rank) const { return kernel_.heads * rank / kernel_.ranks; }

  void span(int rank, int sm, Role role, Activity activity, double start, double end,
            const UlyssesTile& tile) {
    if (recording_ && recorder_.keeps(sm))
      recorder_.add({rank, sm, role, activity, start, end - start, tile.block,
                     static_cast<std::int32_t>(tile.head)});
  }

  void advance(int rank) {
    Egress& egress = egress_[static_cast<std::size_t>(rank)];
    egress.advance(now_);
    for (Egress::Event event; egress.poll(event);) {
      Rank& r = at(rank);
      if (event.kind == EgressEvent::kIssued) {
        r.issue_sum += now_ - worker(rank, event.sm).issue_start;
        r.result.issued_us = now_;
        r.result.most_backlog = std::max(r.result.most_backlog, egress.backlog());
      } else if (event.kind == EgressEvent::kSettled) {
        settled(rank, event.sm);
      } else if (event.kind == EgressEvent::kDrained) {
        r.result.drained_us = now_;
      }
    }
  }

  /// Receivers that more is sent to than they can take slow their senders down.
  void meet() {
    for (std::size_t r = 0; r < egress_.size(); ++r) advance(static_cast<int>(r));
    for (int peer = 0; peer < kernel_.ranks; ++peer) {
      double rate = 0;
      for (Egress& egress : egress_) rate += egress.wanted(peer);
      const double most = receive_rate_[static_cast<std::size_t>(peer)];
      for (Egress& egress : egress_) egress.throttle(peer, rate > most ? most / rate : 1);
    }
    for (std::size_t r = 0; r < egress_.size(); ++r) touch(r);
    // Often enough to follow bursts of some µs; with many ranks a round looks at many links.
    next_incast_ = now_ + std::max(1.0, kernel_.ranks / 8.0);
  }

  /// The rank that owns the first remote row of a tile.
  int peer_of(int rank, std::int64_t first, std::int64_t last) const {
    const std::int64_t row = first >= begin(rank) && first < begin(rank + 1)
                                 ? std::min(begin(rank + 1), last - 1)
                                 : first;
    auto owner = static_cast<int>(row * kernel_.ranks / kernel_.seq);
    while (owner + 1 < kernel_.ranks && begin(owner + 1) <= row) ++owner;
    while (owner > 0 && begin(owner) > row) --owner;
    return owner;
  }

  /// An egress was given something, so its next event may have changed.
  void touch(std::size_t rank) { next_event_[rank] = egress_[rank].next_event(); }

  void next_tile(int rank, int sm) {
    Worker& w = worker(rank, sm);
    if (!w.tiles.next(w.tile)) return;
    w.since = now_;
    heap_.push_back({now_ + kernel_.fixed_us + kernel_.tile_us, created_++, rank, sm});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  void math_end(int rank, int sm) {
    Worker& w = worker(rank, sm);
    at(rank).result.math_us += now_ - w.since;
    span(rank, sm, Role::kMath, Activity::kAttention, w.since, now_, w.tile);
    w.since = now_;
    if (kernel_.staging > 0 && static_cast<int>(w.staged.size()) == kernel_.staging) {
      w.blocked = true;
      return;
    }
    w.staged.push_back(w.tile);
    if (!w.storing) store(rank, sm);
    if (kernel_.staging > 0) next_tile(rank, sm);
  }

  void store(int rank, int sm) {
    Worker& w = worker(rank, sm);
    const UlyssesTile& tile = w.staged.front();
    const std::int64_t first = tile.block * kernel_.block_m;
    const std::int64_t last = std::min<std::int64_t>(first + kernel_.block_m, kernel_.seq);
    const std::int64_t own =
        std::max<std::int64_t>(0, std::min(last, begin(rank + 1)) - std::max(first, begin(rank)));
    const std::int64_t rows = last - first;
    const double bytes =
        kernel_.local_only ? 0 : static_cast<double>(rows - own) * kernel_.row_bytes;
    w.storing = true;
    w.issue_start = now_;
    w.issue_floor = kernel_.issue_us[static_cast<std::size_t>(rows)];
    at(rank).result.remote_bytes += static_cast<std::int64_t>(bytes);
    ++at(rank).stores;
    if (egress_[static_cast<std::size_t>(rank)].now() < now_) advance(rank);
    const double share = static_cast<double>(rows - own) / static_cast<double>(rows);
    egress_[static_cast<std::size_t>(rank)].start(
        sm, {bytes, w.issue_floor, kernel_.residual * share, 0, peer_of(rank, first, last)});
    touch(static_cast<std::size_t>(rank));
  }

  void settled(int rank, int sm) {
    Worker& w = worker(rank, sm);
    const double floor_end = std::min(now_, w.issue_start + w.issue_floor);
    span(rank, sm, Role::kEpilogue, Activity::kIssue, w.issue_start, floor_end, w.staged.front());
    span(rank, sm, Role::kEpilogue, Activity::kStall, floor_end, now_, w.staged.front());
    w.staged.erase(w.staged.begin());
    w.storing = false;
    if (kernel_.staging == 0) {
      at(rank).result.stall_us += now_ - floor_end;
      next_tile(rank, sm);
      return;
    }
    const bool was_blocked = w.blocked;
    if (was_blocked) {
      at(rank).result.stall_us += now_ - w.since;
      span(rank, sm, Role::kMath, Activity::kWaitStaging, w.since, now_, w.tile);
      w.staged.push_back(w.tile);
      w.blocked = false;
    }
    if (!w.staged.empty()) store(rank, sm);
    if (was_blocked) next_tile(rank, sm);
  }

  UlyssesResult finish() {
    UlyssesResult out;
    double last = 0;
    for (const Rank& rank : ranks_)
      last = std::max({last, rank.result.drained_us, rank.result.issued_us});
    for (Rank& rank : ranks_) {
      UlyssesRankResult& r = rank.result;
      const auto workers = static_cast<double>(rank.workers.size());
      r.math_us /= workers;
      r.stall_us /= workers;
      if (rank.stores > 0) r.issue_mean = rank.issue_sum / static_cast<double>(rank.stores);
      r.done_us = kernel_.local_only || kernel_.ranks == 1 ? std::max(r.issued_us, r.drained_us)
                                                           : last + kernel_.flag_us;
      out.time_us = std::max(out.time_us, r.done_us);
      out.ranks.push_back(r);
    }
    out.timeline = recorder_.take();
    return out;
  }

  const UlyssesKernel& kernel_;
  Recorder recorder_;
  bool recording_;
  std::vector<Rank> ranks_;
  std::vector<Egress> egress_;
  std::vector<double>
      next_event_;  // of each egress; asked again only after something was given to it
  std::vector<double> receive_rate_;
  double next_incast_ = 0;
  std::vector<Wake> heap_;
  std::uint64_t created_ = 0;
  double now_ = 0;
};

}  // namespace

UlyssesResult simulate_ulysses(const std::vector<EgressParameters>& fabric,
                               const UlyssesKernel& kernel, std::uint64_t seed,
                               const TimelineOptions& timeline) {
  return UlyssesRun(fabric, kernel, seed, timeline).run();
}

AttentionRate attention_tile(std::int64_t keys, std::int64_t head_dim, std::int32_t block_m) {
  // cuDNN's times divided by the rounds of 132 tiles: 59.5, 107, 203, 409 us at 4k, 8k, 16k, 32k
  // keys and head size 128; 178 us at 17776 keys and head size 64.
  constexpr double kFixedUs = 5;
  const double flop = 4.0 * block_m * static_cast<double>(keys) * static_cast<double>(head_dim);
  const double rate = head_dim <= 64 ? 3.37e6 : 5.3e6;
  return {kFixedUs + flop / rate, head_dim != 64 && head_dim != 128};
}

}  // namespace xstage::sim
