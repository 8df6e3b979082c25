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
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"

namespace xstage::schedule {

/// Worker `worker` of `workers` takes positions worker, worker + workers, worker + 2·workers, …
template <class Order>
class StaticTiles {
 public:
  /// `workers` at least 1, `worker` below it. `order` stands at position 0.
  XSTAGE_HD constexpr StaticTiles(const Order& order, std::uint32_t worker, std::uint32_t workers)
      : order_(order), delta_(worker), workers_(workers) {}

  template <class Tile>
  XSTAGE_HD constexpr bool next(Tile& tile) {
    if (!order_.advance(delta_)) return false;
    delta_ = workers_;
    tile = order_.tile();
    return true;
  }

 private:
  Order order_;
  std::uint64_t delta_;
  std::uint64_t workers_;
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
