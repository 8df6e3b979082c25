#include "xstage/model/link_share.hpp"

namespace xstage::model {

std::vector<double> max_min_share(std::span<const GroupClass> classes,
                                  std::span<const double> demand, double rate) {
  const std::size_t n = classes.size();
  std::vector<double> share(n, 0.0);
  std::vector<bool> settled(n, false);
  double left = rate;
  int open_groups = 0;
  for (std::size_t i = 0; i < n; ++i) {
    settled[i] = demand[i] <= 0 || classes[i].producers() <= 0;
    if (!settled[i]) open_groups += classes[i].groups;
  }
  // Every round settles at least one class that wants less than an equal share, or ends.
  while (open_groups > 0) {
    const double equal = left / open_groups;
    bool limited = false;
    for (std::size_t i = 0; i < n; ++i) {
      const double wanted = demand[i] * classes[i].sms;
      if (settled[i] || wanted > equal) continue;
      share[i] = demand[i];
      left -= wanted * classes[i].groups;
      open_groups -= classes[i].groups;
      settled[i] = limited = true;
    }
    if (limited) continue;
    for (std::size_t i = 0; i < n; ++i)
      if (!settled[i]) share[i] = equal / classes[i].sms;
    break;
  }
  return share;
}

}  // namespace xstage::model
