// The Burst-Gap model: what a burst of remote stores costs its issuer.
//
// K producers store B bytes each, V = K·B together, then compute for G. T_iss0 is the issue time
// of a burst that meets an empty X-Stage, R the drain rate, Q the outstanding capacity.
// The equations in `closed_form` are those of X-Stage (arXiv 2607.23264); predict() refines them
// by what was measured: the staircase, groups of SMs, and the bytes left inside the SM.
// Units: microseconds, bytes, GB/s (V/R in µs is bytes / (1000 · GB/s)).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xstage/model/profile.hpp"

namespace xstage::model {

/// Time to drain `bytes` at `gb_s`.
constexpr double drain_us(double bytes, double gb_s) { return bytes / (1000.0 * gb_s); }

namespace closed_form {

/// (1) Period from start to start: max(T_iss0 + G, V/R).
constexpr double period_us(double issue0, double gap, double drain) {
  return std::max(issue0 + gap, drain);
}
/// The alternative that measurement rules out: every burst waits for its completion.
constexpr double completion_coupled_period_us(double gap, double drain) { return gap + drain; }
/// (2) Issue time: max(T_iss0, V/R − G).
constexpr double issue_us(double issue0, double gap, double drain) {
  return std::max(issue0, drain - gap);
}
/// (3) Issue overhead ΔT: [V/R − G − T_iss0]+.
constexpr double overhead_us(double issue0, double gap, double drain) {
  return std::max(0.0, drain - gap - issue0);
}
/// (4) Recovery gap G*, the least gap without back-pressure: [V/R − T_iss0]+.
constexpr double recovery_gap_us(double issue0, double drain) {
  return std::max(0.0, drain - issue0);
}
/// (5) Peak backlog of an isolated burst: [V − R·T_iss0]+.
constexpr double peak_backlog_bytes(double volume, double gb_s, double issue0) {
  return std::max(0.0, volume - 1000.0 * gb_s * issue0);
}
/// (6) Issue time of an isolated burst: max(T_iss0, (V − Q)/R).
constexpr double isolated_issue_us(double issue0, double volume, double capacity, double gb_s) {
  return std::max(issue0, drain_us(volume - capacity, gb_s));
}

}  // namespace closed_form

/// Where a point of (K, B, G) lies: the first inequality that holds, in this order.
enum class Regime {
  kDrainLimited,     ///< V/R > T_iss0 + G: every period waits for the link
  kCapacityLimited,  ///< [V − R·T_iss0]+ > Q: one aligned burst alone stalls; not yet validated
  kIssueBound,       ///< V/R <= T_iss0: the link keeps up without any gap
  kGapHidden         ///< else: the burst drains while the issuer computes
};
std::string_view name(Regime regime);
/// The inequality that defines it.
std::string_view inequality(Regime regime);

/// What is asked: K producers of `bytes` each with `gap_us` of useful time between bursts.
struct Workload {
  int producers = 0;
  std::int64_t bytes = 0;
  double gap_us = 0;
  Mechanism mechanism = Mechanism::kStoreV4;
  int threads = 0;  ///< 0: the profile's default for the mechanism
  bool both_ways = false;
  int gpu = 0;  ///< whose groups of SMs
};

/// Producers whose group holds `sms` of them.
struct GroupPrediction {
  int sms = 0;
  int groups = 0;
  double period_us = 0;
  double issue_us = 0;
  std::optional<double> isolated_issue_us;
};

struct Prediction {
  Regime regime = Regime::kIssueBound;
  double volume_bytes = 0;     ///< V
  double drain_gb_s = 0;       ///< R
  double drain_us = 0;         ///< V/R
  double issue0_us = 0;        ///< T_iss0, in a loop
  double gap_us = 0;           ///< what the gap really lasts: max(G + overhead, the loop's floor)
  double period_us = 0;        ///< over all producers, weighted by bursts
  double issue_us = 0;         ///< mean issue time over all bursts
  double overhead_us = 0;      ///< ΔT = issue_us − issue0_us
  double recovery_gap_us = 0;  ///< G*
  double peak_backlog_bytes = 0;
  std::optional<double> capacity_bytes;           ///< Q(K)
  double isolated_issue0_us = 0;                  ///< T_iss0 of a burst on its own
  std::optional<double> isolated_issue_us;        ///< mean over producers that start at one instant
  bool average_fits = false;                      ///< V/(T_iss0 + G) <= R
  std::optional<bool> burst_fits;                 ///< [V − R·T_iss0]+ <= Q
  double paper_period_us = 0;                     ///< (1), with the gap as asked
  double paper_issue_us = 0;                      ///< (2)
  std::optional<double> paper_isolated_issue_us;  ///< (6)
  double completion_coupled_period_us = 0;
  std::vector<GroupPrediction> groups;
  std::vector<std::string> warnings;  ///< what is extrapolated or not known
};

/// The model's answer for one point. Errors: producers outside 1…SMs, bytes that are no positive
/// multiple of 16 or above 2^40, a gap that is negative, not finite or above 1e9, a mechanism or
/// thread count that is not in the profile, both ways where only one way was measured.
Result<Prediction> predict(const Profile& profile, const Workload& workload);

// The pieces that predict() and the fit are made of.

/// T_iss0 of `bytes` on a measured curve: constant within one pass of stores, linear between
/// measured passes, straight on beyond the last. pass_bytes 0: linear between points.
double staircase_us(const Curve& curve, std::int64_t bytes, std::int64_t pass_bytes);

/// A curve without steps: linear between points, constant outside.
double interpolate_us(const Curve& curve, std::int64_t bytes);

/// E[max(gap, X)] where X is the sum of `shape` exponential times (Erlang) with mean `mean`.
double expected_wait_us(double gap, double mean, int shape);

/// E[max(issue0, X)] where X is normal: the mean issue time of bursts that stall, or nearly do, by
/// times that spread with `deviation`. At deviation 0 the maximum itself.
double expected_issue_us(double issue0, double mean, double deviation);

/// Bytes of a burst's last pass of stores; 0 for bulk stores (pass_bytes 0).
std::int64_t last_pass_bytes(std::int64_t bytes, std::int64_t pass_bytes);

/// A loop of bursts in which nothing is aligned.
struct Steady {
  double issue0_us = 0;
  double gap_us = 0;
  double period_us = 0;
  double issue_us = 0;
  std::vector<double> class_period_us;
  std::vector<double> class_issue_us;
};
Steady steady(const MechanismProfile& mechanism, const std::vector<GroupClass>& classes,
              std::int64_t bytes, double gap_us, double drain_gb_s);

/// One burst of every producer, all from one instant, into an empty X-Stage.
struct Isolated {
  double issue0_us = 0;
  double issue_us = 0;  ///< mean over producers
  std::vector<double> class_issue_us;
};
Isolated isolated(const MechanismProfile& mechanism, const Capacity& capacity,
                  const std::vector<GroupClass>& classes, std::int64_t bytes, double drain_gb_s);

/// Q(K) for bursts of `bytes`.
double capacity_bytes(const MechanismProfile& mechanism, const Capacity& capacity,
                      const std::vector<GroupClass>& classes, std::int64_t bytes);

}  // namespace xstage::model
