#include "xstage/model/work_split.hpp"

#include <algorithm>

#include "xstage/model/burst_gap.hpp"

namespace xstage::model {
namespace {

/// Time until every SM has stored its `tiles` (by class).
double time_us(const std::vector<GroupClass>& classes, const std::vector<double>& tiles,
               double bytes, double busy_us, double drain_gb_s) {
  std::vector<double> left, demand;
  for (const double of_sm : tiles) {
    left.push_back(of_sm * bytes);
    demand.push_back(of_sm > 0 ? bytes / (1000.0 * busy_us) : 0);
  }
  double time = 0;
  for (std::size_t done = 0; done < classes.size(); ++done) {
    const std::vector<double> rates = max_min_share(classes, demand, drain_gb_s);
    double step = -1;
    for (std::size_t i = 0; i < left.size(); ++i)
      if (demand[i] > 0) {
        const double needed = drain_us(left[i], rates[i]);
        if (step < 0 || needed < step) step = needed;
      }
    if (step < 0) break;
    time += step;
    for (std::size_t i = 0; i < left.size(); ++i) {
      left[i] -= 1000.0 * rates[i] * step;
      if (left[i] < 1e-6 * bytes) left[i] = demand[i] = 0;
    }
  }
  return time;
}

}  // namespace

WorkSplit work_split(const std::vector<GroupClass>& classes, double tiles_per_sm, double bytes,
                     double busy_us, double drain_gb_s) {
  int sms = 0, groups = 0;
  for (const GroupClass& c : classes) {
    sms += c.producers();
    groups += c.groups;
  }
  const double all = tiles_per_sm * sms;
  std::vector<double> equal(classes.size(), tiles_per_sm), by_group;
  for (const GroupClass& c : classes) by_group.push_back(all / groups / c.sms);
  return {time_us(classes, equal, bytes, busy_us, drain_gb_s),
          time_us(classes, by_group, bytes, busy_us, drain_gb_s),
          std::max(drain_us(all * bytes, drain_gb_s), tiles_per_sm * busy_us)};
}

}  // namespace xstage::model
