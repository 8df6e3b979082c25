// How a link's drain rate is shared: equally between groups of SMs, equally within a group
// (max-min fairness with a demand limit for each SM).
//
// Measured on H200: leaving one SM out speeds up the other SMs of its group and nobody else.
#pragma once

#include <span>
#include <vector>

namespace xstage::model {

/// Producers that behave alike: `groups` groups with `sms` active SMs each.
struct GroupClass {
  int sms = 1;
  int groups = 1;
  int producers() const { return sms * groups; }
};

/// Rates of one SM of each class, in the unit of `rate`.
/// `rate`: drain rate of the link; `demand[i]`: the most that one SM of class i can use (0: idle).
/// Laws: the sum over all SMs is min(rate, sum of the demands); no group gets less than another
/// unless its own demand limits it.
std::vector<double> max_min_share(std::span<const GroupClass> classes,
                                  std::span<const double> demand, double rate);

}  // namespace xstage::model
