// The loop that every worker runs, whatever a worker is: a thread block, a thread, an SM of a
// model.
#pragma once

#include "xstage/schedule/moe.hpp"

// `Work` brings four things of the kernel's own:
//   wait_for_tokens(row)   wait_for_linear1(row)   linear1(tile)   linear2(tile)
template <class Tiles, class Work>
XSTAGE_HD void tile_loop(Tiles& tiles, Work& work) {
  for (xstage::schedule::MoeTile tile; tiles.next(tile);) {
    if (tile.linear == xstage::schedule::Linear::kFirst) {
      work.wait_for_tokens(tile.row);
      work.linear1(tile);  // computes, stores locally, and signals the row
    } else {
      work.wait_for_linear1(tile.row);  // n1 signals; cannot deadlock, see the header
      work.linear2(
          tile);  // computes and stores to the token owners: the burst the order spreads out
    }
  }
}
