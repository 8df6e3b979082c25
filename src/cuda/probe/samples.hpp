// From the records of one run to one sample: a row of a sample file.
#pragma once

#include <string>
#include <vector>

#include "cuda/probe/prober.hpp"

namespace xstage::probe {

/// p5, median, mean and p95 over producers and bursts, µs.
struct Spread {
  double p05 = 0, p50 = 0, mean = 0, p95 = 0;
};

struct Sample {
  std::string experiment;  ///< window, isolated, aligned or free
  BurstRun run;
  std::string target;     ///< remote or local
  std::string direction;  ///< uni or bi
  int source = 0;
  int producers = 0;
  int launches = 1;
  long bursts_total = 0;
  double period_aggregate = 0;  ///< µs: producers over the sum of their rates
  Spread period;                ///< over producers
  Spread issue;
  Spread enqueue;  ///< TMA: until the last bulk store was handed over; mean alone
  Spread after;    ///< fence, or shared load, after the burst
  double last_issue_us = 0, drained_us = 0;
  double gap_us = 0;  ///< window: as asked; aligned: measured, after the last producer
  double clock_ghz = 0;
  bool clock_moved = false;
};

/// One sample a flow, over all launches of the run (window runs: the first).
std::vector<Sample> summarise(const std::string& experiment, const BurstRun& run,
                              const std::vector<std::vector<FlowRecords>>& launches);

std::string window_csv_header();
std::string window_csv_row(const Sample& sample);
std::string burst_csv_header();
std::string burst_csv_row(const Sample& sample);
std::string per_sm_csv_header();
/// One row a producer.
std::string per_sm_csv_rows(const BurstRun& run, const FlowRecords& records);

}  // namespace xstage::probe
