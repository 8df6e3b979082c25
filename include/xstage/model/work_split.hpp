// What it is worth to give out tiles unequally: more of them to SMs that drain faster, or one by
// one to whoever is free.
#pragma once

#include <vector>

#include "xstage/model/link_share.hpp"

namespace xstage::model {

/// Time until all tiles are stored, µs, by how they are given out.
struct WorkSplit {
  double equal_us = 0;     ///< every SM the same number
  double by_group_us = 0;  ///< every group the same number: an SM of a small group gets more
  double claimed_us = 0;   ///< one by one, by whoever is free

  double by_group_gain() const { return equal_us / by_group_us; }
  double claimed_gain() const { return equal_us / claimed_us; }
};

/// `tiles_per_sm` tiles of `bytes` for every SM on average; an SM works on a tile for `busy_us` at
/// least, its issue included. A fluid: groups share the link fairly, and whoever is done leaves its
/// share to the others. All arguments are positive.
WorkSplit work_split(const std::vector<GroupClass>& classes, double tiles_per_sm, double bytes,
                     double busy_us, double drain_gb_s);

}  // namespace xstage::model
