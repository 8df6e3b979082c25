// How bursts of SMs of one group overlap.
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "model/fit/parts.hpp"
#include "model/least_squares.hpp"

namespace xstage::model {
namespace {

/// What the SMs of one class did in one run.
struct ClassIssue {
  const MechanismProfile* mechanism;
  std::vector<GroupClass> classes;
  std::size_t at = 0;  ///< the class
  std::int64_t bytes = 0;
  double gap_us = 0;
  double issue_us = 0;
};

/// With fewer the two parameters would rest on chance.
constexpr std::size_t kEnough = 20;
/// SMs of one group store alike, those of groups of other sizes differ by a third and more: a
/// larger spread within a group says that the groups are another GPU's.
constexpr double kAlikeInGroup = 1.2;

using RunKey = std::tuple<int, int, int, std::int64_t, double>;

/// Mean issue times by class of the runs in the samples; empty where the groups do not fit them.
std::vector<ClassIssue> class_issues(const SampleSet& set, const Profile& profile) {
  if (profile.topology.empty() || profile.topology.front().groups.empty()) return {};
  const Topology& gpu = profile.topology.front();
  std::vector<int> group_of(gpu.order.size(), 0);
  for (std::size_t g = 0; g < gpu.groups.size(); ++g)
    for (const int sm : gpu.groups[g]) group_of[static_cast<std::size_t>(sm)] = static_cast<int>(g);
  std::map<RunKey, std::vector<const SmBursts*>> runs;
  for (const SmBursts& b : set.sm_bursts)
    if (b.sm >= 0 && b.sm < static_cast<int>(group_of.size()) && b.bursts > 0)
      runs[{static_cast<int>(b.mechanism), b.threads, b.producers, b.bytes, b.gap_us}].push_back(
          &b);
  std::vector<ClassIssue> out;
  for (const auto& [key, bursts] : runs) {
    const SmBursts& first = *bursts.front();
    const MechanismProfile* mechanism = nullptr;
    for (const MechanismProfile& m : profile.mechanisms)
      if (m.mechanism == first.mechanism && m.threads == first.threads && m.chunk_bytes == 0 &&
          m.loop && m.capacity)
        mechanism = &m;
    if (!mechanism || static_cast<int>(bursts.size()) != first.producers) continue;
    std::map<int, std::vector<const SmBursts*>> by_group;
    for (const SmBursts* b : bursts)
      by_group[group_of[static_cast<std::size_t>(b->sm)]].push_back(b);
    struct Sum {
      int groups = 0;
      double issue = 0, bursts = 0;
    };
    std::map<int, Sum> by_size;
    for (const auto& [group, members] : by_group) {
      const auto [least, most] = std::minmax_element(
          members.begin(), members.end(), [](auto* a, auto* b) { return a->bursts < b->bursts; });
      if (static_cast<double>((*most)->bursts) >
          kAlikeInGroup * static_cast<double>((*least)->bursts) + 2)
        return {};
      Sum& sum = by_size[static_cast<int>(members.size())];
      ++sum.groups;
      for (const SmBursts* b : members) {
        sum.issue += b->issue_us * static_cast<double>(b->bursts);
        sum.bursts += static_cast<double>(b->bursts);
      }
    }
    if (by_size.size() < 2 || first.gap_us <= 0) continue;
    std::vector<GroupClass> classes;
    for (const auto& [sms, sum] : by_size) classes.push_back({sms, sum.groups});
    std::size_t at = 0;
    for (const auto& [sms, sum] : by_size)
      out.push_back({mechanism, classes, at++, first.bytes, first.gap_us, sum.issue / sum.bursts});
  }
  return out;
}

}  // namespace

void fit_overlap(const SampleSet& set, Profile& profile) {
  std::vector<ClassIssue> points = class_issues(set, profile);
  // A few thousand tell as much as all.
  const std::size_t stride = std::max<std::size_t>(1, points.size() / 2000);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < points.size(); i += stride) points[kept++] = points[i];
  points.resize(kept);
  if (points.size() < kEnough) return;
  const double drain = profile.drain.one_way_gb_s;
  const auto residuals = [&](const std::vector<double>& x, std::vector<double>& out) {
    for (std::size_t i = 0; i < points.size(); ++i) {
      const ClassIssue& p = points[i];
      MechanismProfile trial = *p.mechanism;
      trial.loop->overlap_factor = std::max(0.0, x[0]);
      trial.loop->overlap_bytes = std::max(0.0, 1e4 * x[1]);
      const double predicted =
          steady(trial, p.classes, p.bytes, p.gap_us, drain).class_issue_us[p.at];
      out[i] = (predicted - p.issue_us) / (0.02 + 0.02 * p.issue_us);
    }
  };
  const auto loss_of = [&](const std::vector<double>& x) {
    std::vector<double> at(points.size());
    residuals(x, at);
    double loss = 0;
    for (const double r : at) loss += std::sqrt(1 + r * r) - 1;
    return loss;
  };
  const std::vector<double> best = least_squares({0.8, 1.3}, points.size(), residuals);
  // What explains nothing is left out.
  if (best[0] <= 0 || !std::isfinite(best[0]) || loss_of(best) > 0.9 * loss_of({0, 0})) return;
  for (MechanismProfile& m : profile.mechanisms) {
    if (!m.loop || !m.capacity ||
        store_bytes(m.mechanism) != store_bytes(points[0].mechanism->mechanism))
      continue;
    m.loop->overlap_factor = best[0];
    m.loop->overlap_bytes = std::max(0.0, 1e4 * best[1]);
  }
}

}  // namespace xstage::model
