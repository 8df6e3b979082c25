// What a loop of bursts costs beside issue and drain.
#include "model/fit/parts.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "model/least_squares.hpp"

namespace xstage::model {
namespace {

/// Floors of the loop at every B of the staircase. When a burst has been issued the SM still holds
/// B − (its rate)·T_iss0; above some level that delays the next burst, in proportion. Measured
/// floors tell the loop's own cost, the level and the proportion; the law joins them.
Curve completed_floors(const Curve& floors, const Curve& steady_issue, std::int64_t pass_bytes,
                       double sm_rate_gb_s) {
  if (floors.size() < 4 || sm_rate_gb_s <= 0) return floors;
  const auto held_kb = [&](std::int64_t bytes) {
    return static_cast<double>(bytes) / 1000.0 -
           sm_rate_gb_s * staircase_us(steady_issue, bytes, pass_bytes);
  };
  const auto law = [&](std::int64_t bytes, const std::vector<double>& x) {
    return 0.1 * x[0] + 0.01 * std::max(0.0, x[1]) * std::max(0.0, held_kb(bytes) - x[2]);
  };
  const double most_held = held_kb(floors.back().bytes);
  const std::vector<double> best =
      least_squares({10 * floors.front().us, 0.5, 0.25 * most_held}, floors.size(),
                    [&](const std::vector<double>& x, std::vector<double>& out) {
                      for (std::size_t i = 0; i < floors.size(); ++i)
                        out[i] = (law(floors[i].bytes, x) - floors[i].us) / 0.003;
                    });
  std::map<std::int64_t, double> points;
  // The law joins measured floors; below the first they are constant.
  for (const CurvePoint& p : steady_issue)
    if (p.bytes > floors.front().bytes) points[p.bytes] = law(p.bytes, best);
  for (const CurvePoint& p : floors) points[p.bytes] = p.us;
  return to_curve(points);
}

}  // namespace

std::optional<LoopCost> loop_floors(const Samples& windows, const Curve& steady_issue,
                                    std::int64_t pass_bytes, double sm_rate_gb_s,
                                    double drain_gb_s) {
  std::map<std::int64_t, double> without;
  std::map<std::int64_t, double> with;
  std::vector<double> overhead;
  const auto keep_least = [](std::map<std::int64_t, double>& floors, std::int64_t bytes,
                             double us) {
    const auto [at, fresh] = floors.emplace(bytes, us);
    if (!fresh) at->second = std::min(at->second, us);
  };
  for (const Sample* s : windows) {
    const double between = s->period_us - s->issue_us;
    // What is left in the SM takes part in a run that feels the link; bulk stores leave nothing.
    const bool contended = rate_gb_s(*s) >= kUncontended * drain_gb_s;
    const bool own_cost = !contended || store_bytes(s->mechanism) == 0;
    if (between <= 0) continue;
    if (s->gap_us == 0) {
      if (own_cost) keep_least(without, s->bytes, between);
    } else if (s->gap_us < 0.6 * between) {
      if (own_cost) keep_least(with, s->bytes, between);
    } else if (s->gap_us < 5 && !contended)
      overhead.push_back(s->period_us - s->gap_us -
                         staircase_us(steady_issue, s->bytes, pass_bytes));
  }
  LoopCost loop;
  if (without.empty() && with.empty()) {
    if (overhead.empty()) return std::nullopt;
    // Only the overhead of a gap is known: it is the least that passes between two bursts.
    loop.gap_overhead_us = std::max(0.0, median(overhead));
    loop.without_gap = loop.with_gap = {{windows.front()->bytes, loop.gap_overhead_us}};
    return loop;
  }
  const Curve floors_without = to_curve(without.empty() ? with : without);
  const Curve floors_with = to_curve(with.empty() ? without : with);
  loop.without_gap = completed_floors(floors_without, steady_issue, pass_bytes, sm_rate_gb_s);
  loop.with_gap = completed_floors(floors_with, steady_issue, pass_bytes, sm_rate_gb_s);
  loop.gap_overhead_us = std::max(0.0, median(overhead));
  return loop;
}

void fit_residue(const Samples& windows, const Profile& profile, MechanismProfile& m) {
  const double drain = profile.drain.one_way_gb_s;
  Samples limited;
  double excess = 0;
  // A thousand runs tell as much as a million.
  const std::size_t stride = std::max<std::size_t>(1, windows.size() / 20'000);
  for (std::size_t i = 0; i < windows.size(); i += stride) {
    const Sample* s = windows[i];
    const double issue0 = staircase_us(m.steady_issue, s->bytes, m.pass_bytes());
    if (rate_gb_s(*s) < 0.97 * drain || s->issue_us < 1.05 * issue0) continue;
    limited.push_back(s);
    if (s->gap_us == 0)
      excess = std::max(excess,
                        s->period_us - s->issue_us - interpolate_us(m.loop->without_gap, s->bytes));
  }
  // Bulk stores leave nothing behind: the next instruction does not wait.
  if (limited.size() < 6 || excess < 0.05) return;
  std::vector<std::vector<GroupClass>> classes;
  for (const Sample* s : limited) classes.push_back(profile.classes(s->producers));

  double best_loss = std::numeric_limits<double>::infinity();
  LoopCost best = *m.loop;
  MechanismProfile trial = m;
  for (int shape : {2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24}) {
    const auto residuals = [&](const std::vector<double>& x, std::vector<double>& out) {
      trial.loop->residue_bytes = std::max(0.0, 1000 * x[0]);
      trial.loop->residue_offset_us = std::max(0.0, 0.1 * x[1]);
      trial.loop->residue_shape = shape;
      for (std::size_t i = 0; i < limited.size(); ++i) {
        const Sample& s = *limited[i];
        out[i] = (steady(trial, classes[i], s.bytes, s.gap_us, drain).issue_us - s.issue_us) / 0.02;
      }
    };
    const std::vector<double> x =
        least_squares({m.pass_bytes() / 1000.0, 1.0}, limited.size(), residuals);
    std::vector<double> at_x(limited.size());
    residuals(x, at_x);
    double loss = 0;
    for (double r : at_x) loss += std::sqrt(1 + r * r) - 1;
    if (loss < best_loss) {
      best_loss = loss;
      best = *trial.loop;
    }
  }
  m.loop = best;
}

void borrow_loops(const SampleSet& set, Profile& profile) {
  const auto told_by_own_runs = [&](const MechanismProfile& m) {
    return m.loop && std::any_of(set.samples.begin(), set.samples.end(), [&](const Sample& s) {
             return s.experiment == Experiment::kWindow && s.remote && !s.both_ways &&
                    s.mechanism == m.mechanism && s.threads == m.threads &&
                    s.chunk == m.chunk_bytes &&
                    rate_gb_s(s) < kUncontended * profile.drain.one_way_gb_s;
           });
  };
  std::vector<const MechanismProfile*> lenders;
  for (const MechanismProfile& m : profile.mechanisms)
    if (told_by_own_runs(m)) lenders.push_back(&m);
  for (MechanismProfile& m : profile.mechanisms) {
    if (told_by_own_runs(m)) continue;
    const auto lender = std::find_if(
        lenders.begin(), lenders.end(),
        [&](const MechanismProfile* other) { return other->mechanism == m.mechanism; });
    if (lender == lenders.end()) {
      m.undetermined.push_back(m.loop ? "the cost of the loop: every windowed run feels the link"
                                      : "the cost of the loop: no windowed runs");
      continue;
    }
    m.loop = (*lender)->loop;
    if (m.loop->residue_bytes > 0)
      m.loop->residue_bytes =
          std::max(0.0, m.loop->residue_bytes +
                            static_cast<double>(m.pass_bytes() - (*lender)->pass_bytes()));
    m.undetermined.push_back(fmt::format(
        "the cost of the loop, and S: taken from {} threads, with one store a thread of its own",
        (*lender)->threads));
  }
}

}  // namespace xstage::model
