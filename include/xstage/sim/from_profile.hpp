// From a node's profile to the simulator's fabric: the one place where the two meet.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xstage/model/profile.hpp"
#include "xstage/result.hpp"
#include "xstage/sim/egress.hpp"

namespace xstage::sim {

/// Bytes that the link serves at a time. The profile has no such number; on H200 the spread of
/// issue times (p05 … p95, 132 producers) is that of 540 to 750 bytes in isolated bursts of 64 and
/// 128 KiB, and of 700 to 2000 bytes in windows of bursts without a gap.
inline constexpr double kGrain = 800;

/// How the simulated kernel stores.
struct StoreOptions {
  model::Mechanism mechanism = model::Mechanism::kStoreV4;
  int threads = 0;        ///< 0: the profile's default for the mechanism
  int producers = 0;      ///< K; 0: all SMs
  bool both_ways = true;  ///< peers send at the same time
  double grain = kGrain;
};

/// The simulator's view of one way to store on one node.
struct StoreModel {
  std::vector<EgressParameters> fabric;  ///< one a GPU of the profile's topology, at least one
  const model::MechanismProfile* mechanism = nullptr;  ///< of the profile, which must stay
  std::vector<int> order;                              ///< SM of the first, second, … producer
  double residual = 0;                                 ///< S
  double residual_us = 0;                              ///< what waiting for it costs beside
  std::vector<std::string> notes;                      ///< what was assumed

  /// T_iss0 of a burst inside a kernel's loop.
  double issue_us(double bytes) const;
  /// T_iss0 of a burst on its own.
  double isolated_issue_us(double bytes) const;
};

/// Errors: a mechanism that the profile does not hold or whose capacity it does not determine, more
/// producers than SMs, both ways where only one was measured.
Result<StoreModel> store_model(const model::Profile& profile, const StoreOptions& options);

}  // namespace xstage::sim
