// The running simulation of a MoE layer. Private to the room.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "xstage/sim/moe.hpp"

namespace xstage::sim {

class MoeRun {
 public:
  MoeRun(const std::vector<EgressParameters>& fabric, const MoeTraffic& traffic,
         const MoeKernel& kernel, std::uint64_t seed, const TimelineOptions& timeline);
  MoeResult run();

 private:
  enum class Wait : std::uint8_t { kNone, kTokens, kLinear1, kBuffer };
  enum class State : std::uint8_t { kMath, kWaiting, kStoring, kStagingFull, kDone };
  enum class EventKind : std::uint8_t { kMathEnd, kTokens, kRowReady, kClaim };

  struct Row {
    std::int32_t tokens = 0;
    std::int32_t remote = 0;        // of them owned by other ranks
    std::int32_t sources_left = 0;  // peers whose tokens are not here yet
    std::int32_t first_done = 0;    // Linear-1 tiles
    std::int32_t second_done = 0;
    bool ready = false;         // Linear-1 is finished and seen
    std::int32_t waiters = -1;  // SMs, linked
  };
  struct Claim {
    std::uint64_t* counter;
    std::uint64_t operator()() const { return (*counter)++; }
  };
  using Fixed = schedule::StaticTiles<schedule::MoeOrder>;
  using Claimed = schedule::ClaimedTiles<schedule::MoeOrder, Claim>;
  struct Worker {
    std::optional<std::variant<Fixed, Claimed>> tiles;
    schedule::MoeTile tile;
    std::optional<schedule::MoeTile> claimed;  // to come after it
    bool waited = false;                       // before the tile
    State state = State::kMath;
    Wait wait = Wait::kNone;
    double since = 0;  // of the state
    std::int32_t next_waiter = -1;
    std::int64_t waits_for_row = -1;
    // Stores.
    std::vector<schedule::MoeTile> staged;  // in order; the front one is being stored
    bool storing = false;
    double issue_start = 0;
    double issue_floor = 0;
    double issued = 0;
  };
  struct Rank {
    std::vector<std::uint32_t> tokens;  // of each local expert
    schedule::MoeOrder order;
    std::vector<Row> rows;
    std::vector<Worker> workers;
    std::uint64_t counter = 0;
    std::int64_t live_rows = 0;
    std::int64_t in_math = 0;  // SMs
    std::int64_t tiles_finished = 0;
    std::int64_t bursts_started = 0, bursts_drained = 0;
    double issue_sum = 0;
    MoeRankResult result;
  };
  struct Event {
    double time;
    std::uint64_t order;  // of creation: the same every time
    EventKind kind;
    std::int32_t rank;
    std::int64_t what;  // SM, or row
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  struct NextEgress {
    double time;
    std::int32_t rank;
    std::uint64_t version;
    bool operator>(const NextEgress& other) const {
      return time != other.time ? time > other.time : rank > other.rank;
    }
  };
  struct Piece {   // of a dispatch flow
    double place;  // of the row in its receiver's order, 0 … 1
    std::int32_t receiver;
    std::int64_t row;
    double bytes;
  };

  void build_rank(int rank);
  void build_dispatch();
  void schedule_event(double time, EventKind kind, int rank, std::int64_t what);
  void touch(int rank);
  void advance_egress(int rank);
  void on_egress(int rank, const Egress::Event& event);
  void sample_backlog();

  static void claim_ahead(Worker& worker);
  void next_tile(int rank, int sm);
  void try_start(int rank, int sm);
  void wait_on(int rank, int sm, Wait wait, std::int64_t row);
  void wake(int rank, std::int64_t row, Wait wait);
  void math_end(int rank, int sm);
  void store(int rank, int sm);
  void settled(int rank, int sm);
  void span(int rank, int sm, Role role, Activity activity, double start, double end,
            const schedule::MoeTile* tile = nullptr);
  std::optional<std::string> find_deadlock() const;
  struct Missing;
  Missing missing_for(int rank, int sm) const;
  std::string describe_wait(int rank, int sm) const;
  MoeResult finish();

  Rank& rank_at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  Worker& worker_at(int rank, int sm) {
    return rank_at(rank).workers[static_cast<std::size_t>(sm)];
  }
  Row& row_at(int rank, std::int64_t row) {
    return rank_at(rank).rows[static_cast<std::size_t>(row)];
  }

  const MoeTraffic& traffic_;
  const MoeKernel& kernel_;
  std::mt19937_64 random_;
  std::vector<Egress> egress_;
  std::vector<std::uint64_t> versions_;
  std::vector<NextEgress> next_egress_;  // heap
  std::vector<std::vector<Piece>> pieces_;
  std::vector<Rank> ranks_;
  std::vector<Event> heap_;
  std::uint64_t created_ = 0;
  std::int64_t events_ = 0;
  double now_ = 0;
  Recorder recorder_;
  bool recording_;
};

}  // namespace xstage::sim
