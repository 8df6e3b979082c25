// Measured bursts, as read from sample files.
//
// One sample is one kernel launch of `producers` thread blocks that store bursts of `bytes` each.
// Times are in microseconds, sizes in bytes, rates in GB/s (1e9 bytes a second).
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "xstage/model/mechanism.hpp"
#include "xstage/result.hpp"

namespace xstage::model {

enum class Experiment {
  kWindow,    ///< bursts with a gap, counted inside a window in which all producers run
  kIsolated,  ///< every burst starts at one instant, after a full drain
  kOther      ///< kept, but neither fitted nor validated
};

struct Sample {
  Experiment experiment = Experiment::kOther;
  Mechanism mechanism = Mechanism::kStoreV4;
  bool remote = true;      ///< a peer's memory; false: the local control
  bool both_ways = false;  ///< both GPUs store at the same time
  int producers = 0;       ///< K
  int threads = 0;         ///< threads of a block
  std::int64_t bytes = 0;  ///< B, of one burst of one producer
  std::int64_t chunk = 0;  ///< bytes of one bulk store; 0 for other mechanisms
  double gap_us = 0;       ///< G
  double period_us = 0;    ///< start to start, over all producers; windowed runs only
  double issue_us = 0;     ///< mean issue time over all bursts
  double issue_p05_us = 0;
  double issue_p50_us = 0;
  double issue_p95_us = 0;
  double fence_us = 0;  ///< system fence after the last burst; 0 where not measured
  /// All bytes of a saturating run over the time until they had drained; 0 where not measured.
  double drained_gb_s = 0;
  int file = 0;           ///< index into SampleSet::files
  std::int64_t line = 0;  ///< where it was read
};

/// What one SM did in one windowed run: which SMs K producers land on, and how they share.
struct SmBursts {
  Mechanism mechanism = Mechanism::kStoreV4;
  int producers = 0;
  int threads = 0;
  std::int64_t bytes = 0;
  double gap_us = 0;
  int block = 0;
  int sm = 0;
  std::int64_t bursts = 0;
  double issue_us = 0;  ///< mean
};

/// SMs of one GPU that share one fair slot at the link.
struct SmGroups {
  int gpu = 0;
  std::vector<std::vector<int>> groups;
};

/// Everything that was read from one or more files.
struct SampleSet {
  std::vector<Sample> samples;
  std::vector<SmBursts> sm_bursts;
  std::vector<SmGroups> sm_groups;
  std::vector<std::string> comments;  ///< lines that began with '#', without it
  std::vector<std::string> files;     ///< names without folders

  void merge(SampleSet other);
};

/// Reads a sample file. Its kind is told by its content:
///   window_samples.csv, remote_store_samples.csv, per_sm_bursts.csv (data/h200x2/README.md says
///   what the columns mean), sm_groups_raw.csv (no header: GPU, SM left out or −1, bursts of every
///   SM) or sm_groups.json. Further columns are ignored; Windows line ends are accepted.
/// Errors name file, line and column.
Result<SampleSet> read_samples(const std::filesystem::path& path);

/// The same from a stream; `name` stands for the file in errors.
Result<SampleSet> read_samples(std::istream& in, const std::string& name);

/// Groups of SMs from leave-one-out runs: SMs that gain while one SM stays silent share its slot.
/// `all[i]`: bursts of SM i while every SM stores; `without[j][i]`: while SM j is silent.
/// An SM without a mate is a group of its own. Error where two SMs disagree about being mates.
Result<std::vector<std::vector<int>>> groups_from_leave_one_out(
    const std::vector<double>& all, const std::vector<std::vector<double>>& without);

}  // namespace xstage::model
