// The profile of a node: everything that the Burst-Gap model needs to know about it.
//
// Times in microseconds, sizes in bytes, rates in GB/s (1e9 bytes a second). What a set of samples
// does not determine is absent (std::nullopt), never invented.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "xstage/model/link_share.hpp"
#include "xstage/model/mechanism.hpp"
#include "xstage/result.hpp"

namespace xstage::model {

inline constexpr const char* kProfileFormat = "xstage.profile/1";

struct Node {
  std::string description;  ///< free text, as the samples name it
  int gpus = 0;             ///< 0: not known
  int sms = 0;              ///< SMs of a GPU
  double sm_clock_ghz = 0;  ///< measured; 0 where not known
};

/// Drain rate of a GPU's egress, all producers together.
struct Drain {
  double one_way_gb_s = 0;
  std::optional<double> both_ways_gb_s;  ///< per direction, while the peer stores too
  bool from_bursts = false;              ///< only isolated bursts were there to tell it
};

/// One point of a measured curve over the bytes of a burst.
struct CurvePoint {
  std::int64_t bytes = 0;
  double us = 0;
};
using Curve = std::vector<CurvePoint>;  ///< ascending in bytes

/// How much one burst can put into the X-Stage before its stores stall. One part belongs to the
/// SM, one to the group of SMs that shares a slot at the link, one to the link: K producers in g
/// groups have Q(K) = K·(sm_bytes + what the SM holds of the last passes) + g·group_bytes +
/// link_bytes.
struct Capacity {
  double sm_bytes = 0;
  double group_bytes = 0;
  double last_pass_max_bytes = 0;  ///< the most that an SM holds of a burst's last pass of stores
  /// Passes of stores by which a block's warps lag, on average, behind the one whose clock ends the
  /// span; the SM holds those, too.
  double lag_passes = 0;
  double link_bytes = 0;  ///< what enters the link before groups are held to their shares
  /// What SMs share is served in grains in no fixed order: over D bytes an SM's service differs
  /// from its share by about sqrt(D·grain). 0: perfectly even, or not determined.
  double grain_bytes = 0;
  std::vector<int> producers;  ///< the K at which bursts beyond the knee were measured
};

/// What a loop of bursts costs beside issue and drain.
struct LoopCost {
  Curve without_gap;           ///< least time from a burst's last store to the next burst's first
  Curve with_gap;              ///< the same with a gap too short to matter
  double gap_overhead_us = 0;  ///< a gap of G lasts G + this
  /// S: bytes still inside the SM when the clock after the last store is read. The next memory
  /// instruction waits for them: residue_offset_us + S/(rate of the SM) on average, spread like
  /// the sum of `residue_shape` exponential times.
  double residue_bytes = 0;
  double residue_offset_us = 0;
  int residue_shape = 1;
  /// Bursts of SMs that share a group overlap by chance: the time the group needs for one burst of
  /// each of its n SMs spreads by overlap_factor·sqrt(n − 1)·(B − overlap_bytes)/(rate of the
  /// group). 0: taken as regular.
  double overlap_factor = 0;
  double overlap_bytes = 0;
};

/// One way to store, as it was probed.
struct MechanismProfile {
  Mechanism mechanism = Mechanism::kStoreV4;
  int threads = 0;
  std::int64_t chunk_bytes = 0;  ///< bytes of one bulk store; 0 for other mechanisms
  std::string clock;             ///< where the second clock is read
  double sm_rate_gb_s = 0;       ///< the most that one SM moves: the slope of T_iss0
  Curve isolated_issue;          ///< T_iss0 of a burst on its own
  Curve steady_issue;            ///< T_iss0 inside a loop (some ns less: its code is warm)
  std::optional<LoopCost> loop;
  std::optional<Capacity> capacity;
  std::vector<std::string> undetermined;  ///< what the samples left open, in words

  /// Bytes of one store of every thread; 0 for bulk stores.
  std::int64_t pass_bytes() const { return std::int64_t{store_bytes(mechanism)} * threads; }
};

/// Which SMs of a GPU share a slot at the link, and in which order blocks fill the SMs.
struct Topology {
  int gpu = 0;
  std::vector<std::vector<int>> groups;  ///< empty: unknown, all SMs share alike
  std::vector<int> order;                ///< SM of the 1st, 2nd, … producer
};

struct ErrorSummary {
  std::int64_t points = 0;
  double median = 0;
  double p95 = 0;
};

/// Errors of the model on the samples it was fitted to.
struct FitQuality {
  ErrorSummary windowed_period;  ///< fraction of the measured period
  ErrorSummary windowed_issue_us;
  ErrorSummary isolated_issue_us;  ///< bursts beyond the knee
};

struct Provenance {
  std::string tool;                ///< "xstage 0.1.0 fit"
  std::string date;                ///< UTC, ISO 8601; empty where it was not recorded
  std::vector<std::string> files;  ///< names of the sample files, without folders
};

struct Profile {
  std::string name;  ///< short, as a file is named: "h200-nv18-x2"
  Node node;
  Drain drain;
  std::vector<MechanismProfile> mechanisms;
  std::vector<Topology> topology;  ///< one a GPU; empty: groups unknown
  FitQuality quality;
  std::vector<std::string> notes;  ///< what the fit has to say
  Provenance provenance;

  /// The entry for a mechanism; `threads` 0 takes the default (256 threads for stores where it was
  /// measured, else the first entry). Error with the measured thread counts where there is none.
  /// `chunk_bytes` 0 takes, of bulk stores in pieces of several sizes, the fastest (8 KiB first).
  Result<const MechanismProfile*> find(Mechanism mechanism, int threads,
                                       std::int64_t chunk_bytes = 0) const;

  /// How `producers` blocks of GPU `gpu` (the first, if it is not known) spread over the groups.
  std::vector<GroupClass> classes(int producers, int gpu = 0) const;
};

nlohmann::json to_json(const Profile& profile);

/// Checks everything: types, ranges, ascending curves, finite numbers. Errors name the key.
Result<Profile> profile_from_json(const nlohmann::json& document);
Result<Profile> load_profile(const std::filesystem::path& path);

}  // namespace xstage::model
