// Q: what an SM and its group hold before a burst stalls.
#include "model/fit/parts.hpp"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "model/least_squares.hpp"

namespace xstage::model {
namespace {

struct BurstPoint {
  const Sample* sample;
  const MechanismProfile* mechanism;
  std::vector<GroupClass> classes;
};

}  // namespace

bool fit_capacity(const Samples& bursts, Mechanism mechanism, Profile& profile,
                  bool rate_is_known) {
  std::vector<BurstPoint> points;
  std::set<int> producers;
  std::set<int> threads;
  for (const Sample* s : bursts) {
    if (s->mechanism != mechanism) continue;
    for (const MechanismProfile& m : profile.mechanisms) {
      if (m.mechanism != mechanism || m.threads != s->threads || m.chunk_bytes != s->chunk)
        continue;
      if (s->issue_us <= kKnee * staircase_us(m.isolated_issue, s->bytes, m.pass_bytes())) continue;
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
  Capacity capacity;
  double drain = profile.drain.one_way_gb_s;
  std::vector<double> start{16.0};
  if (by_group) start.push_back(16.0);
  if (by_pass) start.push_back(8.0);
  if (!rate_is_known) start.push_back(drain / 10);
  const auto apply = [&](const std::vector<double>& x) {
    std::size_t i = 0;
    capacity.sm_bytes = std::max(0.0, 1000 * x[i++]);
    capacity.group_bytes = by_group ? std::max(0.0, 1000 * x[i++]) : 0;
    // With one thread count the share of the last pass cannot be told from the rest.
    capacity.last_pass_max_bytes = by_pass ? std::max(0.0, 1000 * x[i++]) : 0;
    if (!rate_is_known) drain = std::max(1.0, 10 * x[i++]);
  };
  const std::vector<double> best = least_squares(
      start, points.size(), [&](const std::vector<double>& x, std::vector<double>& out) {
        apply(x);
        for (std::size_t i = 0; i < points.size(); ++i) {
          const BurstPoint& p = points[i];
          out[i] = (isolated(*p.mechanism, capacity, p.classes, p.sample->bytes, drain).issue_us -
                    p.sample->issue_us) /
                   0.2;
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
