#include "xstage/sim/moe.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "sim/moe_run.hpp"

namespace xstage::sim {

using schedule::Linear;
using schedule::MoeOrder;
using schedule::MoeTile;

MoeRun::MoeRun(const std::vector<EgressParameters>& fabric, const MoeTraffic& traffic,
               const MoeKernel& kernel, std::uint64_t seed, const TimelineOptions& timeline)
    : traffic_(traffic),
      kernel_(kernel),
      random_(seed),
      recorder_(timeline, traffic.ranks),
      recording_(timeline.max_spans > 0) {
  const auto ranks = static_cast<std::size_t>(traffic.ranks);
  ranks_.resize(ranks);
  versions_.resize(ranks);
  egress_.reserve(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    egress_.emplace_back(fabric[rank % fabric.size()], seed * 1000003 + rank);
    build_rank(static_cast<int>(rank));
  }
  build_dispatch();
}

/// Rows of a rank, with how many of each row's tokens other ranks own. Tokens of one expert come in
/// no order of their owners.
void MoeRun::build_rank(int index) {
  Rank& rank = rank_at(index);
  const int local = traffic_.experts_local();
  for (int e = 0; e < local; ++e) {
    std::int64_t tokens = 0, remote = 0;
    for (int source = 0; source < traffic_.ranks; ++source) {
      const std::uint32_t count = traffic_.at(index * local + e, source);
      tokens += count;
      if (source != index) remote += count;
    }
    rank.tokens.push_back(static_cast<std::uint32_t>(tokens));
    while (tokens > 0) {
      Row row;
      row.tokens =
          static_cast<std::int32_t>(std::min<std::int64_t>(tokens, kernel_.tiling.block_m));
      std::binomial_distribution<std::int32_t> draw(
          row.tokens, static_cast<double>(remote) / static_cast<double>(tokens));
      const auto least = std::max<std::int64_t>(0, row.tokens - (tokens - remote));
      row.remote = static_cast<std::int32_t>(std::clamp<std::int64_t>(
          draw(random_), least, std::min<std::int64_t>(row.tokens, remote)));
      tokens -= row.tokens;
      remote -= row.remote;
      rank.rows.push_back(row);
    }
  }
  rank.order = MoeOrder(kernel_.tiling, kernel_.schedule, rank.tokens.data(), local);
  rank.result.rows = rank.order.rows();
  rank.result.tiles = static_cast<std::int64_t>(rank.order.size());
  const int sms = egress_.back().sms();
  const int workers = kernel_.workers > 0 ? std::min(kernel_.workers, sms) : sms;
  rank.workers.resize(static_cast<std::size_t>(workers));
  for (int w = 0; w < workers; ++w) {
    auto& tiles = rank.workers[static_cast<std::size_t>(w)].tiles;
    if (kernel_.claimed)
      tiles = Claimed(rank.order, Claim{&rank.counter});
    else
      tiles = Fixed(rank.order, static_cast<std::uint32_t>(w), static_cast<std::uint32_t>(workers));
  }
}

/// What every rank reads of every other, in the order in which rows are wanted.
void MoeRun::build_dispatch() {
  pieces_.resize(ranks_.size());
  if (kernel_.token_bytes <= 0) return;
  const int local = traffic_.experts_local();
  for (int receiver = 0; receiver < traffic_.ranks; ++receiver) {
    Rank& rank = rank_at(receiver);
    std::int64_t index = 0;
    for (int e = 0; e < local; ++e) {
      const int expert = receiver * local + e;
      const std::uint32_t tokens = rank.tokens[static_cast<std::size_t>(e)];
      if (tokens == 0) continue;
      const double remote = tokens - traffic_.at(expert, receiver);
      for (std::int64_t left = tokens; left > 0; left -= kernel_.tiling.block_m, ++index) {
        Row& row = rank.rows[static_cast<std::size_t>(index)];
        if (row.remote == 0) continue;
        for (int source = 0; source < traffic_.ranks; ++source) {
          const std::uint32_t count = source == receiver ? 0 : traffic_.at(expert, source);
          if (count == 0) continue;
          if (kernel_.fault == Fault::kLostTokens && receiver == 0 && index == kernel_.fault_row) {
            ++row.sources_left;
            continue;
          }
          ++row.sources_left;
          pieces_[static_cast<std::size_t>(source)].push_back(
              {static_cast<double>(index) / static_cast<double>(rank.rows.size()), receiver, index,
               row.remote * (count / remote) * kernel_.token_bytes});
        }
      }
    }
  }
  for (auto& pieces : pieces_)
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
      return std::tie(a.place, a.receiver, a.row) < std::tie(b.place, b.receiver, b.row);
    });
}

void MoeRun::schedule_event(double time, EventKind kind, int rank, std::int64_t what) {
  heap_.push_back({time, created_++, kind, rank, what});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

/// An egress was given something, so its next event may have changed.
void MoeRun::touch(int rank) {
  const auto index = static_cast<std::size_t>(rank);
  const double time = egress_[index].next_event();
  ++versions_[index];
  if (std::isinf(time)) return;
  next_egress_.push_back({time, rank, versions_[index]});
  std::push_heap(next_egress_.begin(), next_egress_.end(), std::greater<>());
}

/// Brings a rank's egress to the present and handles what happened on the way.
void MoeRun::advance_egress(int rank) {
  Egress& egress = egress_[static_cast<std::size_t>(rank)];
  egress.advance(now_);
  for (Egress::Event event; egress.poll(event);) on_egress(rank, event);
}

MoeResult MoeRun::run() {
  for (int rank = 0; rank < traffic_.ranks; ++rank) {
    const auto& pieces = pieces_[static_cast<std::size_t>(rank)];
    if (!pieces.empty()) schedule_event(kernel_.start_us, EventKind::kTokens, rank, -1);
    for (int sm = 0; sm < static_cast<int>(rank_at(rank).workers.size()); ++sm)
      worker_at(rank, sm).since = 0;
  }
  now_ = kernel_.start_us;
  for (int rank = 0; rank < traffic_.ranks; ++rank)
    for (int sm = 0; sm < static_cast<int>(rank_at(rank).workers.size()); ++sm) next_tile(rank, sm);
  while (true) {
    while (!next_egress_.empty() &&
           next_egress_.front().version !=
               versions_[static_cast<std::size_t>(next_egress_.front().rank)]) {
      std::pop_heap(next_egress_.begin(), next_egress_.end(), std::greater<>());
      next_egress_.pop_back();
    }
    const double own = heap_.empty() ? std::numeric_limits<double>::infinity() : heap_.front().time;
    const double link =
        next_egress_.empty() ? std::numeric_limits<double>::infinity() : next_egress_.front().time;
    if (std::isinf(own) && std::isinf(link)) break;
    ++events_;
    now_ = std::max(now_, std::min(own, link));
    if (recorder_.due(now_)) sample_backlog();
    if (link <= own) {
      const int rank = next_egress_.front().rank;
      std::pop_heap(next_egress_.begin(), next_egress_.end(), std::greater<>());
      next_egress_.pop_back();
      advance_egress(rank);
      touch(rank);
      continue;
    }
    const Event event = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    switch (event.kind) {
      case EventKind::kMathEnd: math_end(event.rank, static_cast<int>(event.what)); break;
      case EventKind::kClaim:
        claim_ahead(worker_at(event.rank, static_cast<int>(event.what)));
        break;
      case EventKind::kRowReady:
        row_at(event.rank, event.what).ready = true;
        wake(event.rank, event.what, Wait::kLinear1);
        break;
      case EventKind::kTokens:
        if (event.what < 0) {
          advance_egress(event.rank);
          const auto& pieces = pieces_[static_cast<std::size_t>(event.rank)];
          for (std::size_t i = 0; i < pieces.size(); ++i)
            egress_[static_cast<std::size_t>(event.rank)].append_flow(pieces[i].bytes, i);
          touch(event.rank);
        } else if (--row_at(event.rank, event.what).sources_left == 0) {
          rank_at(event.rank).result.dispatched_us = now_;
          wake(event.rank, event.what, Wait::kTokens);
        }
        break;
    }
  }
  return finish();
}

void MoeRun::on_egress(int rank, const Egress::Event& event) {
  if (event.kind == EgressEvent::kFlow) {
    const Piece& piece = pieces_[static_cast<std::size_t>(rank)][event.tag];
    schedule_event(now_ + kernel_.pull_us, EventKind::kTokens, piece.receiver, piece.row);
    return;
  }
  Worker& worker = worker_at(rank, event.sm);
  Rank& r = rank_at(rank);
  switch (event.kind) {
    case EgressEvent::kIssued: {
      worker.issued = now_;
      r.result.issued_us = now_;
      r.issue_sum += now_ - worker.issue_start;
      r.result.most_backlog =
          std::max(r.result.most_backlog, egress_[static_cast<std::size_t>(rank)].backlog());
      break;
    }
    case EgressEvent::kSettled: settled(rank, event.sm); break;
    case EgressEvent::kDrained:
      ++r.bursts_drained;
      r.result.drained_us = now_;
      break;
    case EgressEvent::kFlow: break;
  }
}

void MoeRun::sample_backlog() {
  std::vector<double> bytes;
  for (const Egress& egress : egress_) bytes.push_back(egress.backlog());
  recorder_.sample(now_, bytes);
}

void MoeRun::span(int rank, int sm, Role role, Activity activity, double start, double end,
                  const MoeTile* tile) {
  if (!recording_ || !recorder_.keeps(sm)) return;
  recorder_.add({rank, sm, role, activity, start, end - start, tile ? tile->row : -1,
                 tile ? tile->column : -1});
}

void MoeRun::claim_ahead(Worker& worker) {
  MoeTile tile;
  if (std::visit([&](auto& tiles) { return tiles.next(tile); }, *worker.tiles))
    worker.claimed = tile;
}

void MoeRun::next_tile(int rank, int sm) {
  Worker& worker = worker_at(rank, sm);
  if (!worker.claimed) claim_ahead(worker);
  if (!worker.claimed) {
    worker.state = State::kDone;
    return;
  }
  worker.tile = *worker.claimed;
  worker.claimed.reset();
  worker.waited = false;
  try_start(rank, sm);
}

/// Starts the tile's math if all it needs is there.
void MoeRun::try_start(int rank, int sm) {
  Worker& worker = worker_at(rank, sm);
  const MoeTile& tile = worker.tile;
  const Row& row = row_at(rank, tile.row);
  if (tile.linear == Linear::kSecond) {
    if (!row.ready) return wait_on(rank, sm, Wait::kLinear1, tile.row);
  } else {
    if (row.sources_left > 0) return wait_on(rank, sm, Wait::kTokens, tile.row);
    const std::int64_t before = tile.row - kernel_.buffers;
    if (kernel_.buffers > 0 && before >= 0 && row_at(rank, before).second_done < kernel_.tiling.n2)
      return wait_on(rank, sm, Wait::kBuffer, before);
  }
  worker.state = State::kMath;
  worker.since = now_;
  const bool first = tile.linear == Linear::kFirst;
  double math = first ? kernel_.linear1_us : kernel_.linear2_us;
  Rank& r = rank_at(rank);
  const auto idle = static_cast<double>(static_cast<std::int64_t>(r.workers.size()) - ++r.in_math);
  math -= (first ? kernel_.linear1_memory_us : kernel_.linear2_memory_us) * idle /
          static_cast<double>(r.workers.size());
  if (kernel_.math_spread > 0)
    math *= 1 + kernel_.math_spread * (2e-9 * static_cast<double>(random_() % 1000000001) - 1);
  const double end = now_ + kernel_.fixed_us + math + (worker.waited ? kernel_.refill_us : 0);
  const double early = first ? kernel_.claim_first_us : kernel_.claim_second_us;
  if (kernel_.claimed && early > 0)
    schedule_event(std::max(now_, end - early), EventKind::kClaim, rank, sm);
  schedule_event(end, EventKind::kMathEnd, rank, sm);
}

void MoeRun::wait_on(int rank, int sm, Wait wait, std::int64_t row) {
  Worker& worker = worker_at(rank, sm);
  worker.state = State::kWaiting;
  worker.wait = wait;
  worker.waited = true;
  worker.waits_for_row = row;
  worker.since = now_;
  worker.next_waiter = row_at(rank, row).waiters;
  row_at(rank, row).waiters = sm;
}

void MoeRun::wake(int rank, std::int64_t row, Wait wait) {
  std::int32_t sm = row_at(rank, row).waiters;
  row_at(rank, row).waiters = -1;
  while (sm >= 0) {
    Worker& worker = worker_at(rank, sm);
    const std::int32_t next = worker.next_waiter;
    if (worker.wait != wait) {  // waits for something else of this row
      worker.next_waiter = row_at(rank, row).waiters;
      row_at(rank, row).waiters = sm;
    } else {
      const double waited = now_ - worker.since;
      MoeRankResult& result = rank_at(rank).result;
      Activity activity = Activity::kWaitTokens;
      if (wait == Wait::kTokens) result.wait_tokens_us += waited;
      if (wait == Wait::kLinear1) {
        result.wait_linear1_us += waited;
        activity = Activity::kWaitLinear1;
      }
      if (wait == Wait::kBuffer) {
        result.wait_buffer_us += waited;
        activity = Activity::kWaitBuffer;
      }
      span(rank, sm, Role::kLoader, activity, worker.since, now_, &worker.tile);
      worker.wait = Wait::kNone;
      worker.waits_for_row = -1;
      try_start(rank, sm);
    }
    sm = next;
  }
}

void MoeRun::math_end(int rank, int sm) {
  Worker& worker = worker_at(rank, sm);
  Rank& r = rank_at(rank);
  const MoeTile tile = worker.tile;
  Row& row = row_at(rank, tile.row);
  --r.in_math;
  r.result.math_us += now_ - worker.since;
  ++r.tiles_finished;
  const bool faulty = rank == 0 && tile.row == kernel_.fault_row;
  if (tile.linear == Linear::kFirst) {
    span(rank, sm, Role::kMath, Activity::kLinear1, worker.since, now_, &tile);
    if (faulty && kernel_.fault == Fault::kLostLinear1Signal && tile.column == 0) {
      next_tile(rank, sm);
      return;
    }
    if (++row.first_done == kernel_.tiling.n1) {
      r.result.most_live_rows = std::max(r.result.most_live_rows, ++r.live_rows);
      schedule_event(now_ + kernel_.signal_us, EventKind::kRowReady, rank, tile.row);
    }
    next_tile(rank, sm);
    return;
  }
  span(rank, sm, Role::kMath, Activity::kLinear2, worker.since, now_, &tile);
  if (!(faulty && kernel_.fault == Fault::kLostBufferRelease && tile.column == 0) &&
      ++row.second_done == kernel_.tiling.n2) {
    --r.live_rows;
    wake(rank, tile.row, Wait::kBuffer);
  }
  if (static_cast<int>(worker.staged.size()) > kernel_.staging ||
      (kernel_.staging > 0 && static_cast<int>(worker.staged.size()) == kernel_.staging)) {
    worker.state = State::kStagingFull;  // the tile stays where math made it until a place is free
    worker.since = now_;
    return;
  }
  worker.staged.push_back(tile);
  worker.state = kernel_.staging == 0 ? State::kStoring : State::kMath;
  worker.since = now_;
  if (!worker.storing) store(rank, sm);
  if (kernel_.staging > 0) next_tile(rank, sm);
}

/// Starts to store the first staged tile.
void MoeRun::store(int rank, int sm) {
  Worker& worker = worker_at(rank, sm);
  const Row& row = row_at(rank, worker.staged.front().row);
  const double bytes = row.remote * kernel_.piece_bytes;
  worker.storing = true;
  worker.issue_start = now_;
  worker.issue_floor = kernel_.issue_us[static_cast<std::size_t>(row.tokens)];
  Rank& r = rank_at(rank);
  ++r.bursts_started;
  r.result.remote_bytes += static_cast<std::int64_t>(bytes);
  Egress& egress = egress_[static_cast<std::size_t>(rank)];
  if (egress.now() < now_) advance_egress(rank);
  const double share = row.tokens > 0 ? static_cast<double>(row.remote) / row.tokens : 0;
  egress.start(sm, {bytes, worker.issue_floor, kernel_.residual * share, 0});
  touch(rank);
}

/// The tile in front has left the SM: its staging place is free, or math goes on.
void MoeRun::settled(int rank, int sm) {
  Worker& worker = worker_at(rank, sm);
  MoeRankResult& result = rank_at(rank).result;
  const double floor_end = std::min(now_, worker.issue_start + worker.issue_floor);
  span(rank, sm, Role::kEpilogue, Activity::kIssue, worker.issue_start, floor_end,
       &worker.staged.front());
  span(rank, sm, Role::kEpilogue, Activity::kStall, floor_end, now_, &worker.staged.front());
  worker.staged.erase(worker.staged.begin());
  worker.storing = false;
  if (kernel_.staging == 0) {
    result.issue_us += floor_end - worker.issue_start;
    result.stall_us += now_ - floor_end;
    next_tile(rank, sm);
    return;
  }
  const bool was_full = worker.state == State::kStagingFull;
  if (was_full) {
    result.stall_us += now_ - worker.since;
    span(rank, sm, Role::kMath, Activity::kWaitStaging, worker.since, now_, &worker.tile);
    worker.staged.push_back(worker.tile);
    worker.state = State::kMath;
  }
  if (!worker.staged.empty()) store(rank, sm);
  if (was_full) next_tile(rank, sm);
}

MoeResult MoeRun::finish() {
  MoeResult out;
  out.events = events_;
  out.deadlock = find_deadlock();
  double last_drained = now_;
  if (!out.deadlock) {
    last_drained = 0;
    for (Rank& rank : ranks_)
      last_drained = std::max({last_drained, rank.result.drained_us, rank.result.issued_us});
  }
  for (int index = 0; index < traffic_.ranks; ++index) {
    Rank& rank = rank_at(index);
    MoeRankResult& r = rank.result;
    const auto workers = static_cast<double>(std::max<std::size_t>(1, rank.workers.size()));
    for (double* const sum : {&r.math_us, &r.issue_us, &r.stall_us, &r.wait_tokens_us,
                              &r.wait_linear1_us, &r.wait_buffer_us})
      *sum /= workers;
    if (rank.bursts_started > 0)
      r.issue_mean = rank.issue_sum / static_cast<double>(rank.bursts_started);
    // A rank's tokens may be anywhere, so it is done when all that send have drained.
    r.done_us = last_drained + (traffic_.ranks > 1 ? kernel_.flag_us : 0) + kernel_.slot_sum_us;
    out.time_us = std::max(out.time_us, r.done_us);
    if (recording_ && !out.deadlock && kernel_.slot_sum_us > 0)
      recorder_.add({index, -1, Role::kCombine, Activity::kSlotSum, r.done_us - kernel_.slot_sum_us,
                     kernel_.slot_sum_us, -1, -1});
    if (recording_ && r.dispatched_us > kernel_.start_us)
      recorder_.add({index, -1, Role::kDispatch, Activity::kPull, kernel_.start_us,
                     r.dispatched_us - kernel_.start_us, -1, -1});
    out.ranks.push_back(r);
  }
  out.timeline = recorder_.take();
  return out;
}

MoeResult simulate_moe(const std::vector<EgressParameters>& fabric, const MoeTraffic& traffic,
                       const MoeKernel& kernel, std::uint64_t seed,
                       const TimelineOptions& timeline) {
  return MoeRun(fabric, traffic, kernel, seed, timeline).run();
}

}  // namespace xstage::sim
