// What a calibration finds beside the samples for the fit: groups of SMs, three estimates of Q,
// the onset of back-pressure, completion times, yardsticks for R, and what a better distribution of
// the storing work is worth. Each answers with one JSON object for the result file; a part that
// failed carries "error".
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cuda/probe/campaign.hpp"
#include "xstage/model/burst_gap.hpp"

namespace xstage::probe {

struct FoundGroups {
  int gpu = 0;
  std::vector<std::vector<int>> groups;
  double seconds = 0;
  std::string csv;  ///< rows of sm_groups_raw.csv: GPU, SM left out or -1, bursts per ms of SM 0 …
};

/// Finds the SMs that share a slot at the link, by leaving one out at a time.
Result<FoundGroups> find_groups(Prober& prober, int gpu, int peer);

nlohmann::json to_json(const FoundGroups& found);

/// Q at several K by isolated bursts, by the fence behind them and by the recovery gap, and what
/// makes the estimates differ. `rate_gb_s` is R one way.
nlohmann::json capacity_estimates(Prober& prober, double rate_gb_s);

/// Rates and capacities of chosen sets of SMs: one SM, parts of a group, whole groups, one SM of
/// many groups; the most one group drains alone; Q split into parts of the SM and of the group.
nlohmann::json by_sm_and_group(Prober& prober, const FoundGroups& found);

/// The smallest B at which the mean issue time of aligned bursts exceeds 1.1 times that of one
/// producer, by bisection, at a quarter to all SMs; beside what `profile` predicts.
nlohmann::json onset(Prober& prober, const model::Profile* profile);

/// Fence and flag round trips.
nlohmann::json completion(Prober& prober);

/// S, the bytes that are inside the SM when the clock after the last store is read.
nlohmann::json residue(const std::vector<Sample>& samples, double rate_gb_s);

/// R beside the copy engine and a plain copy kernel.
nlohmann::json yardsticks(Prober& prober, double rate_gb_s);

/// Tiles given out equally, in proportion to an SM's share of the link, or claimed one by one;
/// measured beside what the profile predicts.
nlohmann::json work_split(Prober& prober, const FoundGroups& found, const model::Profile* profile);

/// Message-passing litmus of every mechanism, and of deliberately wrong signalling.
nlohmann::json litmus(Prober& prober, std::int64_t rounds);

/// Mean issue time of SMs in small and in large groups against the model's.
nlohmann::json group_errors(const std::vector<PerSm>& runs, const FoundGroups& found,
                            const model::Profile& profile);

}  // namespace xstage::probe
