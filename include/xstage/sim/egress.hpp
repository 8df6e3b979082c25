// One GPU's way out: the X-Stage as a fluid with events.
//
// Every SM has a queue of finite capacity. A burst flows into it at the rate of its unloaded issue
// time until the queue is full, then only as fast as the queue drains; the issue ends when the last
// byte is in. Queues drain into the link at a finite rate R, shared fairly between groups of SMs
// and then between the SMs of a group that have something to send. Nothing happens between events:
// a burst starts, a queue fills up or empties, a burst is issued or drained. Rates change only
// then, so the cost is per burst, not per byte or per time step.
//
// The link serves SMs in grains in no fixed order. Over n grains the service an SM gets differs
// from its fair share by about sqrt(n) grains; this is what makes producers that start together
// drift apart, as they do on real GPUs, and it is the only random thing here.
//
// Beside the SMs' stores the link carries one flow that nobody's issue waits for: what peers read
// from this GPU (a dispatch that pulls).
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <random>
#include <vector>

namespace xstage::sim {

/// Times in µs, bytes in bytes, rates in bytes per µs (1 GB/s = 1000 bytes per µs).
struct EgressParameters {
  double drain_rate = 0;                                        ///< R: what the link takes in all
  double sm_rate = 0;                                           ///< the most one SM can drain alone
  double group_rate = std::numeric_limits<double>::infinity();  ///< the most one group can
  double queue_per_sm = 0;  ///< capacity of one SM's queue, what sits inside the SM included
  double grain = 0;         ///< bytes served at a time; 0: perfectly even service
  double flow_share = 0.5;  ///< of the link for reads by peers while SMs want more than the rest
  int peers = 1;            ///< destinations that are told apart
  double peer_rate =
      std::numeric_limits<double>::infinity();  ///< the most that goes to one of them
  std::vector<std::vector<int>> groups;  ///< SMs that share one fair slot of the link; disjoint
};

enum class EgressEvent : std::uint8_t {
  kIssued,   ///< the last byte of an SM's burst is in its queue: the SM goes on
  kSettled,  ///< nothing of it sits inside the SM any more: memory instructions go through again
  kDrained,  ///< all of it has left: with the flight time, it is visible at the peer
  kFlow      ///< a piece of the flow has left
};

struct Burst {
  double bytes = 0;     ///< for the link; 0 takes the issue time and nothing else
  double issue_us = 0;  ///< T_iss0: how long its issue takes on an empty queue
  double residual = 0;  ///< S: of its last bytes, what sits inside the SM when the issue ends
  std::uint64_t tag = 0;
  int peer = 0;  ///< where it goes, below EgressParameters::peers
};

class Egress {
 public:
  Egress(const EgressParameters& parameters, std::uint64_t seed);

  /// SM `sm` starts a burst. Its previous burst must have been issued.
  void start(int sm, const Burst& burst);

  /// Appends a piece to the flow that peers read.
  void append_flow(double bytes, std::uint64_t tag);

  /// Time of the next event; infinity if nothing is under way.
  double next_event();

  /// Goes forward to `time`, not past next_event().
  void advance(double time);

  struct Event {
    int sm;
    EgressEvent kind;
    std::uint64_t tag;
  };
  /// The next event at the present time, if there is one. Call until there is none.
  bool poll(Event& event);

  /// Rate at which this GPU would send to a peer if that peer took everything.
  double wanted(int peer);

  /// What a peer takes of it, 0 … 1: a receiver that many send to at once slows all of them down.
  /// What an SM cannot send is not given to others: its queue is first in, first out.
  void throttle(int peer, double taken);

  double now() const { return now_; }
  /// Bytes in all queues.
  double backlog() const;
  /// Bytes in one SM's queue.
  double queue(int sm) const;
  int sms() const { return static_cast<int>(sms_.size()); }

 private:
  enum class Mode : std::uint8_t { kIdle, kFilling, kFull, kDraining };
  struct Mark {
    double level;  // of the group's service per SM at which it is reached
    EgressEvent kind;
    std::uint64_t tag;
  };
  struct Sm {
    int group = -1;
    Mode mode = Mode::kIdle;
    double queue = 0;  // at `since`
    double level = 0;  // the group's service per SM at `since`
    double since = 0;
    double inflow = 0;      // rate of the burst while the queue is not full
    double left = 0;        // of the burst, not yet in the queue, at `since`
    double issue_end = 0;   // earliest end of the issue
    double full_level = 0;  // kFull: service level at which the burst is in
    bool pass_by = false;   // a burst without bytes for the link
    double residual = 0;
    int peer = 0;
    std::uint64_t tag = 0;
    std::uint32_t version = 0;  // of its timer
    std::deque<Mark> marks;     // of earlier bursts, by level
  };
  /// SMs of a group that send to the same peer are served alike.
  struct Lane {
    int active = 0;
    double service = 0;  // bytes an active SM of the lane has been served, since ever
    double next_level = std::numeric_limits<double>::infinity();
    bool stale = true;  // next_level is to be found again
  };
  struct Group {
    std::vector<int> sms;
    std::vector<Lane> lanes;  // by peer
    int active = 0;
    double share = 0;  // rate of an active SM whose peer takes everything
  };
  struct Timer {
    double time;
    std::uint32_t version;
    int sm;
    bool operator>(const Timer& other) const {
      return time != other.time ? time > other.time : sm > other.sm;
    }
  };

  void update(Sm& sm);
  void activate(Sm& sm);
  void share();
  void refresh(Group& group, int peer);
  void move_to_lane(Sm& sm, int peer);
  void set_timer(int index, double time);
  void enter_full(int index);
  void finish_issue(int index);
  static void add_mark(Sm& sm, const Mark& mark);
  void fire_timer(int index);
  void fire_level(int index);
  double served_with_luck(double bytes);
  double next_level_of(const Sm& sm) const;
  Group& group_of(const Sm& sm) { return groups_[static_cast<std::size_t>(sm.group)]; }
  Lane& lane_of(const Sm& sm) { return group_of(sm).lanes[static_cast<std::size_t>(sm.peer)]; }
  const Lane& lane_of(const Sm& sm) const {
    return groups_[static_cast<std::size_t>(sm.group)].lanes[static_cast<std::size_t>(sm.peer)];
  }

  EgressParameters parameters_;
  std::mt19937_64 random_;
  double now_ = 0;
  std::vector<Sm> sms_;
  std::vector<Group> groups_;
  bool rates_stale_ = true;
  std::vector<double> taken_;     // by peer, as told by throttle()
  std::vector<double> throttle_;  // by peer, with the limit of one peer
  std::deque<Mark> flow_;         // pieces by level of flow_service_
  double flow_service_ = 0;
  double flow_end_ = 0;  // level at which all appended pieces have left
  double flow_rate_ = 0;
  std::vector<Timer> timers_;  // heap
  std::deque<Event> events_;
};

}  // namespace xstage::sim
