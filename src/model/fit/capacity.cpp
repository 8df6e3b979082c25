// Q: what an SM and its group hold before a burst stalls.
#include "model/fit/parts.hpp"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "model/least_squares.hpp"

namespace xstage::model {
namespace {

/// Points that the link's share and the grain rest on: with fewer they stay 0.
constexpr std::size_t kEnoughForFinerParts = 20;

struct BurstPoint {
  const Sample* sample;
  const MechanismProfile* mechanism;
  std::vector<GroupClass> classes;
};

/// What a residual is measured in, µs: 0.02 where a burst hardly stalls, so that the onset of
/// back-pressure counts, up to 0.1 for long stalls.
double scale_us(double issue_us) { return std::min(0.1, 0.02 + 0.05 * issue_us); }

}  // namespace

bool fit_capacity(const Samples& bursts, Mechanism mechanism, Profile& profile,
                  bool rate_is_known) {
  // Those beyond the knee tell the capacity; those before it, where it begins to be felt.
  std::vector<BurstPoint> points, before_knee;
  std::set<int> producers;
  std::set<int> threads;
  for (const Sample* s : bursts) {
    if (s->mechanism != mechanism) continue;
    for (const MechanismProfile& m : profile.mechanisms) {
      if (m.mechanism != mechanism || m.threads != s->threads || m.chunk_bytes != s->chunk)
        continue;
      const double issue0 = staircase_us(m.isolated_issue, s->bytes, m.pass_bytes());
      if (s->issue_us <= kKnee * issue0) {
        if (s->producers > 1) before_knee.push_back({s, &m, profile.classes(s->producers)});
        continue;
      }
      points.push_back({s, &m, profile.classes(s->producers)});
      producers.insert(s->producers);
      threads.insert(s->threads);
    }
  }
  if (points.size() < 4) {
    for (MechanismProfile& m : profile.mechanisms)
      if (m.mechanism == mechanism)
        m.undetermined.push_back(
            "Q: these samples hold no isolated bursts long enough to stall (at least 4 are "
            "needed)");
    return rate_is_known;
  }
  const bool by_group = producers.size() > 1 && !profile.topology.empty();
  const bool by_pass = store_bytes(mechanism) > 0 && threads.size() > 1;
  const bool finer = by_group && rate_is_known && points.size() >= kEnoughForFinerParts &&
                     before_knee.size() >= kEnoughForFinerParts;
  if (finer) points.insert(points.end(), before_knee.begin(), before_knee.end());
  Capacity capacity;
  double drain = profile.drain.one_way_gb_s;
  std::vector<double> start{16.0};
  if (by_group) start.push_back(16.0);
  if (by_pass) start.insert(start.end(), {8.0, 1.0});
  if (finer) start.insert(start.end(), {5.0, 3.0});
  if (!rate_is_known) start.push_back(drain / 10);
  const auto apply = [&](const std::vector<double>& x) {
    std::size_t i = 0;
    capacity.sm_bytes = std::max(0.0, 1000 * x[i++]);
    capacity.group_bytes = by_group ? std::max(0.0, 1000 * x[i++]) : 0;
    // With one thread count the share of the last pass cannot be told from the rest.
    capacity.last_pass_max_bytes = by_pass ? std::max(0.0, 1000 * x[i++]) : 0;
    capacity.lag_passes = by_pass ? std::max(0.0, 0.1 * x[i++]) : 0;
    capacity.link_bytes = finer ? std::max(0.0, 1e4 * x[i++]) : 0;
    capacity.grain_bytes = finer ? std::max(0.0, 100 * x[i++]) : 0;
    if (!rate_is_known) drain = std::max(1.0, 10 * x[i++]);
  };
  const std::vector<double> best = least_squares(
      start, points.size(), [&](const std::vector<double>& x, std::vector<double>& out) {
        apply(x);
        for (std::size_t i = 0; i < points.size(); ++i) {
          const BurstPoint& p = points[i];
          out[i] = (isolated(*p.mechanism, capacity, p.classes, p.sample->bytes, drain).issue_us -
                    p.sample->issue_us) /
                   (finer ? scale_us(p.sample->issue_us) : 0.2);
        }
      });
  apply(best);
  profile.drain.one_way_gb_s = drain;
  capacity.producers.assign(producers.begin(), producers.end());
  for (MechanismProfile& m : profile.mechanisms) {
    if (m.mechanism != mechanism) continue;
    m.capacity = capacity;
    if (producers.size() == 1)
      m.undetermined.push_back(fmt::format(
          "Q by producers: bursts beyond the knee at K = {} only; other K are extrapolated",
          *producers.begin()));
  }
  return true;
}

}  // namespace xstage::model
