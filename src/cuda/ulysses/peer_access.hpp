// Access from one GPU to another one's memory.
#pragma once

#include "xstage/result.hpp"

namespace xstage::ulysses {

/// Lets the current GPU, `gpu`, address the memory of `peer`. Asks the driver once a process and
/// pair: asking again is an error, which memory checkers report.
Result<bool> reach_peer(int gpu, int peer);

}  // namespace xstage::ulysses
