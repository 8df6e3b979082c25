#include "xstage/sim/from_profile.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "xstage/model/burst_gap.hpp"

namespace xstage::sim {
namespace {

constexpr double kPerGbS = 1000;  // bytes per µs

/// Producers in each group that has any.
std::vector<model::GroupClass> classes_of(const std::vector<std::vector<int>>& groups) {
  std::vector<model::GroupClass> classes;
  for (const auto& group : groups) {
    const auto size = static_cast<int>(group.size());
    const auto same = std::find_if(classes.begin(), classes.end(),
                                   [&](const model::GroupClass& c) { return c.sms == size; });
    if (same != classes.end())
      ++same->groups;
    else
      classes.push_back({size, 1});
  }
  return classes;
}

double on_curve(const model::MechanismProfile& mechanism, const model::Curve& curve, double bytes) {
  if (bytes <= 0 || curve.empty()) return 0;
  return model::staircase_us(curve, static_cast<std::int64_t>(std::llround(bytes)),
                             mechanism.pass_bytes());
}

}  // namespace

double StoreModel::issue_us(double bytes) const {
  const model::Curve& curve =
      mechanism->steady_issue.empty() ? mechanism->isolated_issue : mechanism->steady_issue;
  return on_curve(*mechanism, curve, bytes);
}

double StoreModel::isolated_issue_us(double bytes) const {
  return on_curve(*mechanism, mechanism->isolated_issue, bytes);
}

Result<StoreModel> store_model(const model::Profile& profile, const StoreOptions& options) {
  const auto found = profile.find(options.mechanism, options.threads);
  if (!found) return found.error();
  const model::MechanismProfile& mechanism = **found;
  StoreModel out;
  out.mechanism = &mechanism;
  if (options.both_ways && !profile.drain.both_ways_gb_s)
    return bad_input("the profile has no drain rate with both directions",
                     "drain_rate_gb_per_s.both_ways", "null", "a profile whose samples hold it");
  if (!mechanism.capacity)
    return bad_input("the profile does not determine how much a burst can put into the X-Stage",
                     "capacity of " + std::string(name(mechanism.mechanism)), "null",
                     "a profile fitted to bursts beyond the knee");
  const double rate =
      options.both_ways ? *profile.drain.both_ways_gb_s : profile.drain.one_way_gb_s;

  std::vector<model::Topology> topology = profile.topology;
  if (topology.empty()) {
    model::Topology all;
    all.groups.emplace_back(static_cast<std::size_t>(std::max(profile.node.sms, 1)));
    std::iota(all.groups[0].begin(), all.groups[0].end(), 0);
    topology.push_back(all);
    out.notes.push_back("groups of SMs are not known: all SMs share alike");
  }
  for (model::Topology& gpu : topology) {
    if (gpu.groups.empty()) {
      gpu.groups.emplace_back(static_cast<std::size_t>(std::max(profile.node.sms, 1)));
      std::iota(gpu.groups[0].begin(), gpu.groups[0].end(), 0);
    }
    std::vector<int> order = gpu.order;
    if (order.empty())
      for (const auto& group : gpu.groups) order.insert(order.end(), group.begin(), group.end());
    const int producers =
        options.producers > 0 ? options.producers : static_cast<int>(order.size());
    if (producers > static_cast<int>(order.size()))
      return bad_input("more producers than SMs", "producers", std::to_string(producers),
                       "1 to " + std::to_string(order.size()));
    order.resize(static_cast<std::size_t>(producers));
    // Only SMs that store can be active, so the others may stay in their groups; capacity goes by
    // them.
    std::vector<std::vector<int>> active;
    for (const auto& group : gpu.groups) {
      std::vector<int> members;
      for (const int sm : group)
        if (std::find(order.begin(), order.end(), sm) != order.end()) members.push_back(sm);
      if (!members.empty()) active.push_back(members);
    }
    EgressParameters p;
    p.drain_rate = rate * kPerGbS;
    p.sm_rate = mechanism.sm_rate_gb_s * kPerGbS;
    p.grain = options.grain;
    p.groups = gpu.groups;
    const auto large = std::int64_t{1} << 20;  // a burst whose last pass is a full one
    p.queue_per_sm =
        model::capacity_bytes(mechanism, *mechanism.capacity, classes_of(active), large) /
        producers;
    out.fabric.push_back(std::move(p));
    if (out.order.empty()) out.order = std::move(order);
  }
  if (mechanism.loop) {
    out.residual = mechanism.loop->residue_bytes;
    out.residual_us = mechanism.loop->residue_offset_us;
  }
  return out;
}

}  // namespace xstage::sim
