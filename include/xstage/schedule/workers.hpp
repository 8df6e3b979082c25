// How workers share one global order of tiles: by fixed strides, or by claiming the next position.
//
// A worker is whatever executes tiles: a persistent thread block, an SM of the simulator, a CPU
// thread. All of them run
//
//   while (schedule.next(tile)) execute(tile);
//
// An `Order` is a copyable cursor over positions 0 … size()-1 with
//   bool advance(std::uint64_t delta);  // forward only; false once past the end
//   Tile tile() const;                  // the tile at the cursor
//   std::uint32_t rotation(std::uint32_t workers) const;  // for fixed strides, below
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"

namespace xstage::schedule {

/// Positions are dealt out in rounds of `workers`, one a worker; from round to round the dealing
/// rotates by `rotation` places. An order that repeats a pattern of long and short tiles needs
/// that: 132 workers without rotation on a pattern of 2 would give half of them all the long tiles
/// (1.5 times the time of an even deal). With rotation 0 worker w takes w, w + workers, w +
/// 2·workers, … A worker's positions only grow.
template <class Order>
class StaticTiles {
 public:
  /// `workers` at least 1, `worker` below it, `rotation` below `workers`. `order` stands at
  /// position 0.
  XSTAGE_HD constexpr StaticTiles(const Order& order, std::uint32_t worker, std::uint32_t workers,
                                  std::uint32_t rotation)
      : order_(order), delta_(worker), place_(worker), workers_(workers), rotation_(rotation) {}

  /// With the rotation that the order asks for.
  XSTAGE_HD constexpr StaticTiles(const Order& order, std::uint32_t worker, std::uint32_t workers)
      : StaticTiles(order, worker, workers, order.rotation(workers)) {}

  template <class Tile>
  XSTAGE_HD constexpr bool next(Tile& tile) {
    if (!order_.advance(delta_)) return false;
    place_ += rotation_;
    delta_ = workers_ + rotation_;
    if (place_ >= workers_) {
      place_ -= workers_;
      delta_ = rotation_;
    }
    tile = order_.tile();
    return true;
  }

  /// The worker that takes a position.
  XSTAGE_HD static constexpr std::uint32_t worker_of(std::uint64_t position, std::uint32_t workers,
                                                     std::uint32_t rotation) {
    const std::uint64_t turned = position / workers % workers * rotation % workers;
    return static_cast<std::uint32_t>((position % workers + workers - turned) % workers);
  }

 private:
  Order order_;
  std::uint64_t delta_;  // to this worker's next position
  std::uint32_t place_;  // of this worker in the round
  std::uint32_t workers_;
  std::uint32_t rotation_;
};

/// Each worker takes the next position that nobody has taken. `Claim` is called without arguments
/// and returns that position (a fetch-and-add on a counter shared by the workers of one rank, zero
/// before they start); a worker's own positions only grow.
template <class Order, class Claim>
class ClaimedTiles {
 public:
  XSTAGE_HD constexpr ClaimedTiles(const Order& order, const Claim& claim)
      : order_(order), claim_(claim) {}

  // nvcc would refuse a claim that is for the device alone in a function for both.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class Tile>
  XSTAGE_HD constexpr bool next(Tile& tile) {
    return take(claim_(), tile);
  }

  /// The same where the position was claimed elsewhere: one thread claims, and tells the others.
  template <class Tile>
  XSTAGE_HD constexpr bool take(std::uint64_t position, Tile& tile) {
    if (!order_.advance(position - position_)) return false;
    position_ = position;
    tile = order_.tile();
    return true;
  }

 private:
  Order order_;
  Claim claim_;
  std::uint64_t position_ = 0;
};

}  // namespace xstage::schedule
