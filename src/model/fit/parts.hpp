// The pieces of the fit, in the order in which they build on each other.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "xstage/model/fit.hpp"

namespace xstage::model {

using Samples = std::vector<const Sample*>;

/// A burst that meets no stall takes the same time in every producer and every repetition.
inline constexpr double kNoStallSpread = 1.1;
/// Points below this part of the drain rate do not feel the link.
inline constexpr double kUncontended = 0.95;
/// A drain rate that nothing reaches.
inline constexpr double kAnyRate = 1e12;
/// An isolated burst is beyond the knee when it takes this much longer than T_iss0.
inline constexpr double kKnee = 1.2;

double median(std::vector<double> values);
double rate_gb_s(const Sample& sample);
Samples select(const SampleSet& set, Experiment experiment, bool both_ways);
Curve to_curve(const std::map<std::int64_t, double>& points);

// topology.cpp: who shares the link, and which SMs a grid takes

void fit_node(const SampleSet& set, Profile& profile);
void fit_topology(const SampleSet& set, Profile& profile);

// drain.cpp: R

/// The rate at which windowed runs saturate. Absent where no run does: a run whose SMs could not
/// have gone faster says nothing about the link.
std::optional<double> saturated_rate(const Samples& windows, double sm_rate_gb_s);
/// From runs with a fixed number of bursts, by bytes over the time to drain them all. Their fast
/// producers finish early, so only the largest grids come near the truth.
std::optional<double> drained_rate(const SampleSet& set, double sm_rate_gb_s);
/// Where the largest burst drained: the start of a fit that has nothing else.
double rate_of_bursts(const Samples& bursts);

// staircase.cpp: T_iss0

/// T_iss0 of bursts on their own: at every B the fastest grid that did not stall.
Curve isolated_curve(const Samples& bursts, std::optional<double> drain_gb_s);
/// T_iss0 inside a loop: the median of windowed runs that do not feel the link.
Curve steady_curve(const Samples& windows, double drain_gb_s);
/// Adds to `curve` the bursts that only `other` has, moved by the distance of the two around them.
/// Both show the same staircase, so one tells the other where its steps are. Below the first common
/// burst the distance shrinks with the time itself.
Curve completed(const Curve& curve, const Curve& other, std::int64_t pass_bytes);
/// Bytes over time at the end of a curve: the rate of one SM.
double slope_gb_s(const Curve& curve);

// loop.cpp: what a loop costs, and S

/// The loop's floors and the overhead of a gap. The least of all runs is the floor: what the link
/// adds comes on top. The overhead is what the period has beyond T_iss0 + G, so that the three add
/// up, from runs that do not feel the link.
std::optional<LoopCost> loop_floors(const Samples& windows, const Curve& steady_issue,
                                    std::int64_t pass_bytes, double sm_rate_gb_s,
                                    double drain_gb_s);
/// S and how its drain time spreads, from runs that the link limits.
void fit_residue(const Samples& windows, const Profile& profile, MechanismProfile& mechanism);
/// Runs that do not feel the link tell what a loop costs; without any, the floors above hold the
/// link's share too. Then the loop of another thread count stands in: the same code, with its own
/// one store a thread left in the SM.
void borrow_loops(const SampleSet& set, Profile& profile);

/// How bursts of one group overlap, from what every SM did in windowed runs of the GPU whose groups
/// are known. Call when the capacity is known.
void fit_overlap(const SampleSet& set, Profile& profile);

// capacity.cpp: Q

/// Over all thread counts of a mechanism. Returns whether the drain rate is known afterwards.
bool fit_capacity(const Samples& bursts, Mechanism mechanism, Profile& profile, bool rate_is_known);

}  // namespace xstage::model
