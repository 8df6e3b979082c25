#include "xstage/sim/egress.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

namespace xstage::sim {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Bytes below which a queue counts as full or a level as reached: far below one store, far above
// what rounding of levels loses over a long run (10^9 bytes at 2^-52).
constexpr double kSlack = 1e-3;
// A queue that is nearly full is looked at again after this many bytes at the earliest; this is
// what a burst can gain on the link at most.
constexpr double kLook = 0.05;

}  // namespace

Egress::Egress(const EgressParameters& parameters, std::uint64_t seed)
    : parameters_(parameters), random_(seed) {
  int count = 0;
  for (const auto& group : parameters.groups)
    for (const int sm : group) count = std::max(count, sm + 1);
  sms_.resize(static_cast<std::size_t>(count));
  taken_.assign(static_cast<std::size_t>(std::max(1, parameters.peers)), 1);
  throttle_ = taken_;
  for (const auto& members : parameters.groups) {
    for (const int sm : members)
      sms_[static_cast<std::size_t>(sm)].group = static_cast<int>(groups_.size());
    groups_.push_back({});
    groups_.back().sms = members;
    groups_.back().lanes.resize(static_cast<std::size_t>(std::max(1, parameters.peers)));
  }
}

double Egress::queue(int index) const {
  const Sm& sm = sms_[static_cast<std::size_t>(index)];
  if (sm.mode == Mode::kIdle) return 0;
  if (sm.mode == Mode::kFull) return parameters_.queue_per_sm;
  const double served = lane_of(sm).service - sm.level;
  const double in =
      sm.mode == Mode::kFilling ? std::min(sm.left, sm.inflow * (now_ - sm.since)) : 0;
  return std::clamp(sm.queue + in - served, 0.0, parameters_.queue_per_sm);
}

double Egress::backlog() const {
  double sum = 0;
  for (int sm = 0; sm < sms(); ++sm)
    if (sms_[static_cast<std::size_t>(sm)].group >= 0) sum += queue(sm);
  return sum;
}

/// Brings an SM's queue and what is left of its burst to the present.
void Egress::update(Sm& sm) {
  const double served = lane_of(sm).service - sm.level;
  if (sm.mode == Mode::kFilling) {
    const double in = std::min(sm.left, sm.inflow * (now_ - sm.since));
    sm.left -= in;
    sm.queue = std::max(0.0, sm.queue + in - served);
  } else if (sm.mode == Mode::kFull) {
    sm.left = std::max(0.0, sm.left - served);
    sm.queue = parameters_.queue_per_sm;
  } else if (sm.mode == Mode::kDraining) {
    sm.queue = std::max(0.0, sm.queue - served);
  }
  sm.level = lane_of(sm).service;
  sm.since = now_;
}

/// Fair shares: all groups get the same, unless they cannot use it; then the SMs of a group.
void Egress::share() {
  rates_stale_ = false;
  const auto limit = [this](const Group& group) {
    return std::min(parameters_.group_rate, group.active * parameters_.sm_rate);
  };
  // Water level by groups that are below it: at most as many rounds as there are group sizes.
  double left = parameters_.drain_rate;
  double wanted = 0;
  int wanting = 0;
  for (Group& group : groups_) {
    group.share = group.active > 0 ? -1 : 0;
    if (group.active == 0) continue;
    ++wanting;
    wanted += limit(group);
  }
  flow_rate_ = 0;
  if (!flow_.empty()) {
    flow_rate_ = std::max(left - wanted, left * parameters_.flow_share);
    left -= flow_rate_;
  }
  while (wanting > 0) {
    const double even = left / wanting;
    bool settled = false;
    for (Group& group : groups_) {
      if (group.share >= 0 || limit(group) > even) continue;
      group.share = limit(group) / group.active;
      left -= limit(group);
      --wanting;
      settled = true;
    }
    if (settled) continue;
    for (Group& group : groups_)
      if (group.share < 0) group.share = even / group.active;
    break;
  }
  throttle_ = taken_;
  if (parameters_.peer_rate < kNever)
    for (std::size_t peer = 0; peer < throttle_.size(); ++peer) {
      double to_peer = 0;
      for (const Group& group : groups_) to_peer += group.lanes[peer].active * group.share;
      if (to_peer * taken_[peer] > parameters_.peer_rate)
        throttle_[peer] = parameters_.peer_rate / to_peer;
    }
}

double Egress::wanted(int peer) {
  if (rates_stale_) share();
  double rate = 0;
  for (const Group& group : groups_)
    rate += group.lanes[static_cast<std::size_t>(peer)].active * group.share;
  return std::min(rate, parameters_.peer_rate);
}

void Egress::throttle(int peer, double taken) {
  double& now = taken_[static_cast<std::size_t>(peer)];
  if (now == taken) return;
  now = taken;
  rates_stale_ = true;
}

double Egress::served_with_luck(double bytes) {
  if (parameters_.grain <= 0 || bytes <= 0) return bytes;
  std::normal_distribution<double> normal(0, std::sqrt(bytes * parameters_.grain));
  return std::max(0.0, bytes + normal(random_));
}

void Egress::set_timer(int index, double time) {
  Sm& sm = sms_[static_cast<std::size_t>(index)];
  timers_.push_back({time, ++sm.version, index});
  std::push_heap(timers_.begin(), timers_.end(), std::greater<>());
}

void Egress::activate(Sm& sm) {
  if (sm.mode != Mode::kIdle) return;
  sm.queue = 0;
  sm.level = lane_of(sm).service;
  sm.since = now_;
  ++group_of(sm).active;
  ++lane_of(sm).active;
  rates_stale_ = true;
}

/// An SM that still drains goes on in the lane of its new burst's peer.
void Egress::move_to_lane(Sm& sm, int peer) {
  if (sm.peer == peer) return;
  update(sm);
  const double before = lane_of(sm).service;
  lane_of(sm).stale = true;
  if (sm.mode != Mode::kIdle) --lane_of(sm).active;
  sm.peer = peer;
  const double shift = lane_of(sm).service - before;
  sm.level += shift;
  for (Mark& mark : sm.marks) mark.level += shift;
  if (sm.mode != Mode::kIdle) {
    ++lane_of(sm).active;
    rates_stale_ = true;
  }
}

void Egress::start(int index, const Burst& burst) {
  Sm& sm = sms_[static_cast<std::size_t>(index)];
  sm.tag = burst.tag;
  sm.issue_end = now_ + burst.issue_us;
  sm.pass_by = burst.bytes <= 0;
  if (sm.pass_by) {
    set_timer(index, sm.issue_end);
    return;
  }
  move_to_lane(sm, burst.peer);
  activate(sm);
  update(sm);
  sm.mode = Mode::kFilling;
  sm.left = served_with_luck(burst.bytes);
  sm.inflow = burst.issue_us > 0 ? sm.left / burst.issue_us : kNever;
  sm.residual = std::min(burst.residual, burst.bytes);
  lane_of(sm).stale = true;
  fire_timer(index);
}

void Egress::append_flow(double bytes, std::uint64_t tag) {
  if (flow_.empty()) {
    flow_end_ = flow_service_;
    rates_stale_ = true;
  }
  flow_end_ += bytes;
  flow_.push_back({flow_end_, EgressEvent::kFlow, tag});
}

/// kFilling: the burst is in, or the queue is full, or it is too early to know.
void Egress::fire_timer(int index) {
  Sm& sm = sms_[static_cast<std::size_t>(index)];
  if (sm.pass_by || sm.mode != Mode::kFilling) {
    finish_issue(index);
    return;
  }
  if (sm.inflow == kNever) {  // everything that fits goes in at once
    update(sm);
    const double in = std::min(sm.left, parameters_.queue_per_sm - sm.queue);
    sm.left -= in;
    sm.queue += in;
  } else {
    update(sm);
  }
  if (sm.left <= kSlack) {
    finish_issue(index);
    return;
  }
  const double room = parameters_.queue_per_sm - sm.queue;
  if (room <= kSlack) {
    enter_full(index);
    return;
  }
  // The queue cannot be full before inflow without any drain has filled it, and rates may change
  // until then, so look again at that time. The gap shrinks by share/inflow with every look.
  const double all_in = now_ + sm.left / sm.inflow;
  if (sm.left <= room)
    set_timer(index, all_in);
  else
    set_timer(index, std::min(all_in, now_ + std::max(room, kLook) / sm.inflow));
}

void Egress::enter_full(int index) {
  Sm& sm = sms_[static_cast<std::size_t>(index)];
  sm.mode = Mode::kFull;
  sm.full_level = sm.level + sm.left;
  lane_of(sm).stale = true;
}

void Egress::finish_issue(int index) {
  Sm& sm = sms_[static_cast<std::size_t>(index)];
  events_.push_back({index, EgressEvent::kIssued, sm.tag});
  if (sm.pass_by) {
    sm.pass_by = false;
    events_.push_back({index, EgressEvent::kSettled, sm.tag});
    events_.push_back({index, EgressEvent::kDrained, sm.tag});
    return;
  }
  update(sm);
  sm.left = 0;
  sm.mode = Mode::kDraining;
  lane_of(sm).stale = true;
  const double inside = sm.queue - (parameters_.queue_per_sm - sm.residual);
  if (inside <= 0)
    events_.push_back({index, EgressEvent::kSettled, sm.tag});
  else
    add_mark(sm, {sm.level + inside, EgressEvent::kSettled, sm.tag});
  add_mark(sm, {sm.level + sm.queue, EgressEvent::kDrained, sm.tag});
}

/// Marks stand in the order in which they are reached: what a burst left inside the SM goes on
/// before the burst before it has drained, when the queue holds more than one.
void Egress::add_mark(Sm& sm, const Mark& mark) {
  auto at = sm.marks.end();
  while (at != sm.marks.begin() && std::prev(at)->level > mark.level) --at;
  sm.marks.insert(at, mark);
}

double Egress::next_level_of(const Sm& sm) const {
  double level = sm.marks.empty() ? kNever : sm.marks.front().level;
  if (sm.mode == Mode::kFull) level = std::min(level, sm.full_level);
  return level;
}

void Egress::fire_level(int index) {
  Sm& sm = sms_[static_cast<std::size_t>(index)];
  Lane& lane = lane_of(sm);
  lane.stale = true;
  if (!sm.marks.empty() && sm.marks.front().level <= lane.service + kSlack) {
    const Mark mark = sm.marks.front();
    sm.marks.pop_front();
    events_.push_back({index, mark.kind, mark.tag});
    if (sm.marks.empty() && sm.mode == Mode::kDraining) {
      sm.mode = Mode::kIdle;
      sm.queue = 0;
      --group_of(sm).active;
      --lane.active;
      rates_stale_ = true;
    }
    return;
  }
  // The burst is in, unless shares rose so much that the SM's own issue is now what limits it.
  if (now_ + 1e-9 < sm.issue_end) {
    sm.full_level = kNever;
    set_timer(index, sm.issue_end);
    return;
  }
  finish_issue(index);
}

void Egress::refresh(Group& group, int peer) {
  Lane& lane = group.lanes[static_cast<std::size_t>(peer)];
  lane.stale = false;
  lane.next_level = kNever;
  for (const int index : group.sms) {
    const Sm& sm = sms_[static_cast<std::size_t>(index)];
    if (sm.peer == peer) lane.next_level = std::min(lane.next_level, next_level_of(sm));
  }
}

double Egress::next_event() {
  if (!events_.empty()) return now_;
  while (!timers_.empty() &&
         timers_.front().version != sms_[static_cast<std::size_t>(timers_.front().sm)].version) {
    std::pop_heap(timers_.begin(), timers_.end(), std::greater<>());
    timers_.pop_back();
  }
  double next = timers_.empty() ? kNever : timers_.front().time;
  if (rates_stale_) share();
  for (Group& group : groups_) {
    if (group.active == 0) continue;
    for (std::size_t peer = 0; peer < group.lanes.size(); ++peer) {
      const Lane& lane = group.lanes[peer];
      if (lane.active == 0) continue;
      if (lane.stale) refresh(group, static_cast<int>(peer));
      if (lane.next_level < kNever)
        next = std::min(next, now_ + std::max(0.0, lane.next_level - lane.service) /
                                         (group.share * throttle_[peer]));
    }
  }
  if (!flow_.empty())
    next = std::min(next, now_ + std::max(0.0, flow_.front().level - flow_service_) / flow_rate_);
  return std::max(next, now_);
}

void Egress::advance(double time) {
  const double next = next_event();
  const double step = time - now_;
  if (step > 0) {
    for (Group& group : groups_)
      for (std::size_t peer = 0; group.active > 0 && peer < group.lanes.size(); ++peer)
        if (group.lanes[peer].active > 0)
          group.lanes[peer].service += group.share * throttle_[peer] * step;
    if (!flow_.empty()) flow_service_ += flow_rate_ * step;
  }
  now_ = std::max(now_, time);
  if (time < next) return;
  while (!timers_.empty() && timers_.front().time <= now_) {
    const Timer timer = timers_.front();
    std::pop_heap(timers_.begin(), timers_.end(), std::greater<>());
    timers_.pop_back();
    if (timer.version == sms_[static_cast<std::size_t>(timer.sm)].version) fire_timer(timer.sm);
  }
  for (Group& group : groups_) {
    if (group.active == 0) continue;
    for (const Lane& lane : group.lanes) {
      if (lane.active == 0 || lane.next_level > lane.service + kSlack) continue;
      const auto peer = static_cast<int>(&lane - group.lanes.data());
      for (const int index : group.sms) {
        const Sm& sm = sms_[static_cast<std::size_t>(index)];
        while (sm.peer == peer && next_level_of(sm) <= lane.service + kSlack) fire_level(index);
      }
    }
  }
  while (!flow_.empty() && flow_.front().level <= flow_service_ + kSlack) {
    events_.push_back({-1, EgressEvent::kFlow, flow_.front().tag});
    flow_.pop_front();
    if (flow_.empty()) rates_stale_ = true;
  }
}

bool Egress::poll(Event& event) {
  if (events_.empty()) return false;
  event = events_.front();
  events_.pop_front();
  return true;
}

}  // namespace xstage::sim
