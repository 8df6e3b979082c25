// A kernel of blocks that spin for their matrix work and really store their tiles: the simplest
// program in which the order of tiles matters, and the one that was measured on two H200
// (`synthetic_schedule.csv`). Blocks have no dependencies; each works through its own rows.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "xstage/result.hpp"
#include "xstage/schedule/moe.hpp"
#include "xstage/sim/egress.hpp"

namespace xstage::sim {

/// Times in µs, sizes in bytes.
struct SpinKernel {
  std::vector<int> blocks;         ///< SMs, one block each
  std::int64_t rows = 1;           ///< rows that each block works through
  std::int32_t n1 = 1;             ///< Linear-1 tiles a row
  std::int32_t n2 = 1;             ///< Linear-2 tiles a row
  double linear1_us = 0;           ///< spin of a Linear-1 tile
  double linear2_us = 0;           ///< spin of a Linear-2 tile, before its stores
  double fixed_us = 0;             ///< what the loop costs beside, a tile
  int pieces = 128;                ///< row pieces of a tile
  double piece_bytes = 256;        ///< bytes of a piece
  double remote_fraction = 1;      ///< probability of a piece to go to the peer
  double issue_us = 0;             ///< T_iss0 of a tile's stores
  double residual = 0;             ///< S of a tile whose pieces are all remote
  schedule::MoeSchedule schedule;  ///< wave: its group counts rows
  std::uint64_t seed = 1;
};

struct SpinResult {
  double time_us = 0;       ///< start to the last block's last issue
  double drained_us = 0;    ///< start to the last byte's departure
  double issue_median = 0;  ///< median over blocks of the mean issue time of a Linear-2 tile
};

SpinResult run_spin_kernel(const EgressParameters& parameters, const SpinKernel& kernel);

/// One row of `synthetic_schedule.csv`, as measured.
struct ScheduleSample {
  std::string layer;
  double remote_percent = 0;
  double linear1_tile_us = 0, linear2_tile_us = 0, compute_us = 0;
  std::int32_t n1 = 0, n2 = 0;
  double wave_us = 0, interleaved_us = 0;
};

/// Reads such a file; columns are found by name. Errors name line and column.
Result<std::vector<ScheduleSample>> read_schedule_samples(std::istream& in);

/// What the measured kernel's loops cost a tile, and how it cuts its tiles (data/h200x2/README.md).
struct ScheduleSampleKernel {
  double wave_fixed_us = 0.09;
  double interleaved_fixed_us = 0.25;
  std::int32_t wave_rows = 4;
  /// The kernel keeps one whole row of Linear-1 between the row it makes and the row whose Linear-2
  /// it issues, so Linear-1 of two rows comes first.
  std::int64_t lead = 2;
  double issue_us = 0;  ///< T_iss0 of a 32 KiB tile
  double residual = 0;  ///< S
};

struct ScheduleComparison {
  ScheduleSample sample;
  double wave_us = 0, interleaved_us = 0;  ///< simulated
  double speedup() const { return wave_us / interleaved_us; }
  double speedup_error() const { return speedup() - sample.wave_us / sample.interleaved_us; }
  double wave_error() const { return wave_us / sample.wave_us - 1; }
  double interleaved_error() const { return interleaved_us / sample.interleaved_us - 1; }
};

struct ScheduleValidation {
  std::vector<ScheduleComparison> rows;
  double speedup_mean = 0, speedup_worst = 0;  ///< of |simulated - measured|
  double time_mean = 0, time_worst = 0;        ///< of |simulated / measured - 1|, both schedules
};

/// Simulates every sample on the 132 SMs (or as many as `parameters` has) and compares.
ScheduleValidation validate_schedules(const EgressParameters& parameters,
                                      const ScheduleSampleKernel& kernel,
                                      const std::vector<ScheduleSample>& samples,
                                      std::uint64_t seed = 1);

}  // namespace xstage::sim
