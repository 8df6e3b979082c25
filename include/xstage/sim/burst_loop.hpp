// The probe's own loop on the simulated fabric: K producers, each stores a burst, computes, and
// stores the next one. What `calibrate` measures on a real node, so that simulator, closed form and
// node can be laid side by side.
#pragma once

#include <cstdint>
#include <vector>

#include "xstage/sim/egress.hpp"

namespace xstage::sim {

enum class Alignment : std::uint8_t {
  kFree,     ///< all start at one instant and then run on their own until the window ends
  kIsolated  ///< every burst starts at one instant, after everything has drained
};

/// Times in µs, sizes in bytes.
struct BurstLoop {
  std::vector<int> producers;  ///< the SMs that store, one block each
  double bytes = 0;            ///< B, the same for all
  double gap_us = 0;       ///< from the end of one burst's issue to the start of the next, at least
  double issue_us = 0;     ///< T_iss0 of such a burst
  double residual = 0;     ///< S of such a burst: the next burst's first store waits for it
  double residual_us = 0;  ///< what that wait costs beside, where there is one
  Alignment alignment = Alignment::kFree;
  double window_us = 0;  ///< kFree: bursts that begin in its last three quarters count
  int bursts = 0;        ///< kIsolated: bursts a producer; all count
  std::uint64_t seed = 1;
};

struct BurstLoopResult {
  std::int64_t bursts = 0;  ///< that count
  double period_us = 0;     ///< mean from start to start, by each producer's rate; kIsolated: 0
  double issue_p05 = 0, issue_p50 = 0, issue_mean = 0, issue_p95 = 0;
  double most_backlog = 0;  ///< bytes, at the ends of bursts
  double drained_us =
      0;  ///< kIsolated: from the start of a burst to the last byte's departure, mean
  struct Producer {
    int sm = 0;
    std::int64_t bursts = 0;
    double issue_mean = 0;
  };
  std::vector<Producer> producers;
};

BurstLoopResult run_burst_loop(const EgressParameters& parameters, const BurstLoop& loop);

}  // namespace xstage::sim
