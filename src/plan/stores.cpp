#include "plan/stores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace xstage::plan {

using model::Mechanism;

std::int64_t store_size(double bytes) {
  if (bytes <= 0) return 0;
  return std::max<std::int64_t>(16, std::llround(bytes / 16) * 16);
}

Result<bool> choose_mechanism(const model::Profile& profile, const StoreChoice& store,
                              int producers, std::int64_t tile_bytes, bool both_ways, Plan& plan) {
  if (store.mechanism) {
    const auto found = profile.find(*store.mechanism, store.threads);
    if (!found) return found.error();
    plan.mechanism = *store.mechanism;
    plan.threads = (*found)->threads;
    plan.mechanism_reason = "as asked";
    return true;
  }
  const auto bulk = profile.find(Mechanism::kTmaBulk, 0);
  const auto stores = profile.find(Mechanism::kStoreV4, 0);
  if (!bulk && !stores) return stores.error();
  plan.mechanism = bulk ? Mechanism::kTmaBulk : Mechanism::kStoreV4;
  plan.threads = bulk ? (*bulk)->threads : (*stores)->threads;
  if (!bulk || !stores) {
    plan.mechanism_reason = "the only one in the profile";
    return true;
  }
  const model::MechanismProfile& s = **stores;
  const double rate = both_ways ? profile.drain.both_ways_gb_s.value_or(profile.drain.one_way_gb_s)
                                : profile.drain.one_way_gb_s;
  const double residue = s.loop ? std::min(s.loop->residue_bytes, double(tile_bytes)) : 0;
  const double delay = model::drain_us(residue * producers, rate);
  plan.mechanism_reason = fmt::format(
      "bulk stores leave the SM free; of 16-byte stores {:.0f} bytes stay in the SM and hold up "
      "the "
      "next tile's loads by up to {:.2f} us once the link is busy, and their issue takes {:.2f} us "
      "a "
      "tile",
      residue, delay,
      staircase_us(s.steady_issue.empty() ? s.isolated_issue : s.steady_issue,
                   std::max<std::int64_t>(tile_bytes, 16), s.pass_bytes()));
  return true;
}

Result<bool> predict_phase(const model::Profile& profile, const Plan& plan, bool both_ways,
                           Phase& phase) {
  phase.natural_gap_us = phase.cycle_us;
  if (phase.tile_bytes <= 0 || phase.producers <= 0) return true;
  const auto found = profile.find(plan.mechanism, plan.threads);
  if (!found) return found.error();
  const model::MechanismProfile& m = **found;
  const double issue0 = staircase_us(m.steady_issue.empty() ? m.isolated_issue : m.steady_issue,
                                     phase.tile_bytes, m.pass_bytes());
  if (model::store_bytes(plan.mechanism) > 0)
    phase.issue_us = issue0;
  else
    phase.natural_gap_us = std::max(0.0, phase.cycle_us - issue0);
  model::Workload w;
  w.producers = phase.producers;
  w.bytes = phase.tile_bytes;
  w.gap_us = phase.natural_gap_us;
  w.mechanism = plan.mechanism;
  w.threads = plan.threads;
  w.both_ways = both_ways && profile.drain.both_ways_gb_s.has_value();
  const Result<model::Prediction> p = model::predict(profile, w);
  if (!p) return p.error();
  phase.stall_per_tile_us = p->overhead_us;
  if (p->isolated_issue_us)
    phase.aligned_stall_us = std::max(0.0, *p->isolated_issue_us - p->isolated_issue0_us);
  phase.prediction = *p;
  return true;
}

}  // namespace xstage::plan
