#include "xstage/model/fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

#include "least_squares.hpp"

namespace xstage::model {
namespace {

using Samples = std::vector<const Sample*>;

/// A burst that meets no stall takes the same time in every producer and every repetition.
constexpr double kNoStallSpread = 1.1;
/// Points below this part of the drain rate do not feel the link.
constexpr double kUncontended = 0.95;
constexpr double kAnyRate = 1e12;  ///< a drain rate that nothing reaches
/// An isolated burst is beyond the knee when it takes this much longer than T_iss0.
constexpr double kKnee = 1.2;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double rate_gb_s(const Sample& s) {
  return static_cast<double>(s.producers) * static_cast<double>(s.bytes) / (1000.0 * s.period_us);
}

Samples select(const SampleSet& set, Experiment experiment, bool both_ways) {
  Samples out;
  for (const Sample& s : set.samples)
    if (s.experiment == experiment && s.remote && s.both_ways == both_ways) out.push_back(&s);
  return out;
}

bool no_stall(const Sample& s) { return s.issue_p95_us <= kNoStallSpread * s.issue_p50_us; }

/// The issue time of a burst alone on its link cannot come from the drain.
bool drains_at_once(const Sample& s, double drain_gb_s) {
  return drain_us(static_cast<double>(s.producers) * static_cast<double>(s.bytes), drain_gb_s) <=
         s.issue_us;
}

// ---- topology ---------------------------------------------------------------------------------

/// Blocks fill SMs in an order that small grids show: an SM that the grid of 33 uses comes before
/// one that only the grid of 66 uses. Blocks with the lowest indices sit on the SMs that every
/// grid takes first; after them the first SM of every pair comes before the second.
std::vector<int> fill_order(const std::vector<SmBursts>& bursts, int sms) {
  std::map<int, std::map<int, int>> grids;  // producers -> block -> SM
  for (const SmBursts& b : bursts)
    if (b.sm < sms) grids[b.producers].emplace(b.block, b.sm);
  // The common prefix of all grids.
  std::vector<int> rank(static_cast<std::size_t>(sms), 1 << 20);
  int prefix = 0;
  if (!grids.empty()) {
    const auto& smallest = grids.begin()->second;
    for (const auto& [block, sm] : smallest) {
      const bool common =
          block == prefix && std::all_of(grids.begin(), grids.end(), [&](const auto& grid) {
            const auto found = grid.second.find(block);
            return found != grid.second.end() && found->second == sm;
          });
      // A grid of one kind only shows no prefix: its blocks are numbered, not filled, in order.
      if (!common || grids.size() < 2) break;
      rank[static_cast<std::size_t>(sm)] = prefix++;
    }
  }
  std::vector<std::tuple<int, int, int, int>> keys;
  for (int sm = 0; sm < sms; ++sm) {
    int first_grid = 1 << 20;
    for (const auto& [producers, blocks] : grids)
      for (const auto& [block, used] : blocks)
        if (used == sm) first_grid = std::min(first_grid, producers);
    keys.emplace_back(rank[static_cast<std::size_t>(sm)], first_grid, sm % 2, sm);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<int> order;
  for (const auto& key : keys) order.push_back(std::get<3>(key));
  return order;
}

void fit_topology(const SampleSet& set, Profile& profile) {
  int sms = 0;
  for (const Sample& s : set.samples) sms = std::max(sms, s.producers);
  for (const SmBursts& b : set.sm_bursts) sms = std::max({sms, b.producers, b.sm + 1});
  for (const SmGroups& g : set.sm_groups)
    for (const auto& group : g.groups)
      for (int sm : group) sms = std::max(sms, sm + 1);
  profile.node.sms = sms;
  if (set.sm_groups.empty()) {
    profile.notes.push_back(
        "groups of SMs are not among these samples: every SM is taken to share the link alike");
    return;
  }
  if (set.sm_bursts.empty())
    profile.notes.push_back(
        "no per-SM samples: blocks are taken to fill the first SM of every pair first");
  std::set<int> gpus;
  for (const SmGroups& g : set.sm_groups) {
    int members = 0;
    for (const auto& group : g.groups) members += static_cast<int>(group.size());
    if (members != sms)
      throw Failure(bad_input("the groups of SMs do not cover the GPU", "sm_groups",
                              fmt::format("{} SMs on GPU {}", members, g.gpu),
                              fmt::format("{}", sms)));
    if (gpus.insert(g.gpu).second)
      profile.topology.push_back({g.gpu, g.groups, fill_order(set.sm_bursts, sms)});
  }
}

void fit_node(const SampleSet& set, Profile& profile) {
  for (const std::string& comment : set.comments) {
    if (profile.node.description.empty()) {
      const std::size_t end = comment.find(';');
      profile.node.description = comment.substr(0, std::min(end, std::size_t{120}));
    }
    double ghz = 0;
    const std::size_t at = comment.find("SM clock measured ");
    if (at != std::string::npos &&
        std::sscanf(comment.c_str() + at, "SM clock measured %lf", &ghz) == 1 && ghz > 0.01 &&
        ghz < 100)
      profile.node.sm_clock_ghz = ghz;
  }
  std::set<int> gpus;
  for (const SmGroups& g : set.sm_groups) gpus.insert(g.gpu);
  profile.node.gpus = static_cast<int>(gpus.size());
}

// ---- drain rate -------------------------------------------------------------------------------

/// The median of the rates within `part` of the highest ones. Absent below three.
std::optional<double> plateau(std::vector<double> rates, double part) {
  if (rates.size() < 3) return std::nullopt;
  std::sort(rates.begin(), rates.end());
  const double top = rates[rates.size() - 1 - rates.size() / 50];
  std::erase_if(rates, [&](double rate) { return rate < part * top; });
  return rates.size() < 3 ? std::nullopt : std::optional(median(std::move(rates)));
}

/// R: the rate at which windowed runs saturate. Absent where no run does: a run whose SMs could not
/// have gone faster says nothing about the link.
std::optional<double> saturated_rate(const Samples& windows, double sm_rate_gb_s) {
  double top = 0;
  for (const Sample* s : windows) top = std::max(top, rate_gb_s(*s));
  std::vector<double> rates;
  for (const Sample* s : windows)
    if (sm_rate_gb_s <= 0 || s->producers * sm_rate_gb_s >= 1.1 * top)
      rates.push_back(rate_gb_s(*s));
  const std::optional<double> found = plateau(rates, 0.98);
  return found && *found >= 0.98 * 0.98 * top ? found : std::nullopt;
}

/// R from runs with a fixed number of bursts, by bytes over the time to drain them all. Their fast
/// producers finish early, so only the largest grids come near the truth.
std::optional<double> drained_rate(const SampleSet& set, double sm_rate_gb_s) {
  std::vector<double> rates;
  double top = 0;
  for (const Sample& s : set.samples)
    if (s.remote && !s.both_ways) top = std::max(top, s.drained_gb_s);
  for (const Sample& s : set.samples)
    if (s.remote && !s.both_ways && s.drained_gb_s > 0 && s.producers * sm_rate_gb_s >= 1.1 * top)
      rates.push_back(s.drained_gb_s);
  return plateau(rates, 0.99);
}

// ---- one mechanism ----------------------------------------------------------------------------

struct Key {
  Mechanism mechanism;
  int threads;
  std::int64_t chunk;
  auto operator<=>(const Key&) const = default;
};

Samples of_key(const Samples& samples, const Key& key) {
  Samples out;
  for (const Sample* s : samples)
    if (s->mechanism == key.mechanism && s->threads == key.threads && s->chunk == key.chunk)
      out.push_back(s);
  return out;
}

Curve to_curve(const std::map<std::int64_t, double>& points) {
  Curve curve;
  for (const auto& [bytes, us] : points) curve.push_back({bytes, us});
  return curve;
}

/// T_iss0 of bursts on their own: at every B the fastest grid that did not stall.
Curve isolated_curve(const Samples& bursts, std::optional<double> drain_gb_s) {
  std::map<std::int64_t, double> best;
  for (const Sample* s : bursts) {
    if (!no_stall(*s) && !(drain_gb_s && drains_at_once(*s, *drain_gb_s))) continue;
    const auto [at, fresh] = best.emplace(s->bytes, s->issue_us);
    if (!fresh) at->second = std::min(at->second, s->issue_us);
  }
  return to_curve(best);
}

/// T_iss0 inside a loop: the median of windowed runs that do not feel the link.
Curve steady_curve(const Samples& windows, double drain_gb_s) {
  std::map<std::int64_t, std::vector<double>> times;
  for (const Sample* s : windows)
    if (rate_gb_s(*s) < kUncontended * drain_gb_s && no_stall(*s))
      times[s->bytes].push_back(s->issue_us);
  std::map<std::int64_t, double> points;
  for (auto& [bytes, values] : times) points[bytes] = median(std::move(values));
  return to_curve(points);
}

/// Adds to `curve` the bursts that only `other` has, moved by the distance of the two around them.
/// Both show the same staircase, so one tells the other where its steps are. Below the first common
/// burst the distance shrinks with the time itself.
Curve completed(const Curve& curve, const Curve& other, std::int64_t pass_bytes) {
  if (curve.empty()) return curve;
  Curve distance;
  for (const CurvePoint& p : curve)
    if (!other.empty() && p.bytes <= other.back().bytes)
      distance.push_back({p.bytes, p.us - staircase_us(other, p.bytes, pass_bytes)});
  if (distance.empty()) return curve;
  const double first_us = curve.front().us - distance.front().us;
  std::map<std::int64_t, double> points;
  for (const CurvePoint& p : other)
    points[p.bytes] = p.bytes < distance.front().bytes ? p.us * curve.front().us / first_us
                                                       : p.us + interpolate_us(distance, p.bytes);
  for (const CurvePoint& p : curve) points[p.bytes] = p.us;
  return to_curve(points);
}

double slope_gb_s(const Curve& curve) {
  if (curve.size() < 2) return 0;
  const CurvePoint& a = curve[curve.size() >= 3 ? curve.size() - 3 : 0];
  const CurvePoint& b = curve.back();
  return b.us > a.us ? static_cast<double>(b.bytes - a.bytes) / (1000.0 * (b.us - a.us)) : 0;
}

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

/// The loop's floors and the overhead of a gap. The least of all runs is the floor: what the link
/// adds comes on top. The overhead is what the period has beyond T_iss0 + G, so that the three add
/// up, from runs that do not feel the link.
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
    if (between <= 0) continue;
    if (s->gap_us == 0)
      keep_least(without, s->bytes, between);
    else if (s->gap_us < 0.6 * between)
      keep_least(with, s->bytes, between);
    else if (s->gap_us < 5 && rate_gb_s(*s) < kUncontended * drain_gb_s)
      overhead.push_back(s->period_us - s->gap_us -
                         staircase_us(steady_issue, s->bytes, pass_bytes));
  }
  if (without.empty() && with.empty()) return std::nullopt;
  LoopCost loop;
  const Curve floors_without = to_curve(without.empty() ? with : without);
  const Curve floors_with = to_curve(with.empty() ? without : with);
  loop.without_gap = completed_floors(floors_without, steady_issue, pass_bytes, sm_rate_gb_s);
  loop.with_gap = completed_floors(floors_with, steady_issue, pass_bytes, sm_rate_gb_s);
  loop.gap_overhead_us = std::max(0.0, median(overhead));
  return loop;
}

/// S and how its drain time spreads, from runs that the link limits.
void fit_residue(const Samples& windows, const Profile& profile, MechanismProfile& m) {
  const double drain = profile.drain.one_way_gb_s;
  Samples limited;
  double excess = 0;
  for (const Sample* s : windows) {
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

// ---- capacity, over all thread counts of a mechanism ------------------------------------------

struct BurstPoint {
  const Sample* sample;
  const MechanismProfile* mechanism;
  std::vector<GroupClass> classes;
};

/// Returns whether the drain rate is known afterwards.
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

MechanismProfile probe_of(const Key& key, const Samples& windows, const Samples& bursts,
                          std::optional<double> drain_gb_s) {
  MechanismProfile m;
  m.mechanism = key.mechanism;
  m.threads = key.threads;
  m.chunk_bytes = key.chunk;
  m.clock = key.mechanism == Mechanism::kTmaBulk ? "after cp.async.bulk.wait_group.read"
                                                 : "after the last store, no fence";
  const Curve alone = isolated_curve(bursts, drain_gb_s);
  const Curve in_loop = drain_gb_s ? steady_curve(windows, *drain_gb_s) : Curve{};
  m.isolated_issue = completed(alone.empty() ? in_loop : alone, in_loop, m.pass_bytes());
  m.steady_issue = completed(in_loop, alone, m.pass_bytes());
  m.sm_rate_gb_s = slope_gb_s(m.isolated_issue);
  if (alone.empty()) m.undetermined.push_back("T_iss0 of isolated bursts: taken from the loop");
  if (in_loop.empty()) m.undetermined.push_back("T_iss0 in a loop: taken from isolated bursts");
  if (drain_gb_s)
    m.loop = loop_floors(windows, m.steady_issue, m.pass_bytes(), m.sm_rate_gb_s, *drain_gb_s);
  return m;
}

/// Runs that do not feel the link tell what a loop costs; without any, the floors above hold the
/// link's share too. Then the loop of another thread count stands in: the same code, with its own
/// one store a thread left in the SM.
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

/// Without windowed runs the rate is a parameter of the capacity fit; it starts where the largest
/// burst drained.
double rate_of_bursts(const Samples& bursts) {
  double volume = 0;
  double rate = 1;
  for (const Sample* s : bursts) {
    const double v = static_cast<double>(s->producers) * static_cast<double>(s->bytes);
    if (v <= volume) continue;
    volume = v;
    rate = v / (1000.0 * std::max(s->issue_p95_us, s->issue_us));
  }
  return rate;
}

void set_quality(const Samples& windows, const Samples& bursts, Profile& profile) {
  std::vector<Sample> all;
  for (const Sample* s : windows) all.push_back(*s);
  for (const Sample* s : bursts) all.push_back(*s);
  std::vector<double> period;
  std::vector<double> issue;
  std::vector<double> isolated_issue;
  for (const PointError& e : errors(profile, all)) {
    if (e.sample->experiment == Experiment::kWindow) {
      period.push_back(e.period_fraction);
      issue.push_back(e.issue_us);
    } else if (e.beyond_knee) {
      isolated_issue.push_back(e.issue_us);
    }
  }
  profile.quality.windowed_period = summarise(std::move(period));
  profile.quality.windowed_issue_us = summarise(std::move(issue));
  profile.quality.isolated_issue_us = summarise(std::move(isolated_issue));
}

std::vector<FitReport::SetAside> set_aside(const SampleSet& set) {
  std::map<std::string, std::int64_t> counts;
  for (const Sample& s : set.samples) {
    if (s.experiment == Experiment::kOther)
      ++counts["neither windowed nor isolated (shown, not fitted)"];
    else if (!s.remote)
      ++counts["local control"];
    else if (s.both_ways && s.experiment == Experiment::kIsolated)
      ++counts["isolated, both ways"];
  }
  std::vector<FitReport::SetAside> out;
  for (const auto& [why, points] : counts) out.push_back({why, points});
  return out;
}

Error poor(std::string what, std::string field, std::string value, std::string allowed) {
  return {ErrorKind::kPoorFit, std::move(what), std::move(field), std::move(value),
          std::move(allowed)};
}

FitReport fit_or_throw(const SampleSet& set, const FitOptions& options) {
  FitReport report;
  Profile& profile = report.profile;
  profile.name = options.name;
  profile.provenance = {options.tool, options.date, set.files};
  const Samples windows = select(set, Experiment::kWindow, false);
  const Samples bursts = select(set, Experiment::kIsolated, false);
  if (windows.empty() && bursts.empty())
    throw Failure(bad_input("no sample can be fitted", "samples",
                            fmt::format("{} rows", set.samples.size()),
                            "windowed or isolated bursts with target remote and direction uni"));
  fit_node(set, profile);
  fit_topology(set, profile);

  std::set<Key> keys;
  for (const Samples& group : {windows, bursts})
    for (const Sample* s : group) keys.insert({s->mechanism, s->threads, s->chunk});

  double sm_rate = 0;
  for (const Key& key : keys) {
    sm_rate = std::max(sm_rate, slope_gb_s(isolated_curve(of_key(bursts, key), std::nullopt)));
    sm_rate = std::max(sm_rate, slope_gb_s(steady_curve(of_key(windows, key), kAnyRate)));
  }
  std::optional<double> rate = saturated_rate(windows, sm_rate);
  if (!rate) {
    rate = drained_rate(set, sm_rate);
    if (rate)
      profile.notes.push_back(
          "R from runs with a fixed number of bursts: no windowed runs saturate");
  }
  if (!rate && !windows.empty() && bursts.empty())
    throw Failure(poor("these samples never saturate the link: R is not determined", "producers",
                       "too few, or bursts too short", "runs whose SMs could move more than R"));
  profile.drain.one_way_gb_s = rate ? *rate : rate_of_bursts(bursts);
  if (!rate)
    profile.notes.push_back(
        "no windowed runs saturate the link: R is fitted together with Q to isolated bursts");
  profile.drain.both_ways_gb_s = saturated_rate(select(set, Experiment::kWindow, true), sm_rate);

  for (const Key& key : keys) {
    MechanismProfile m = probe_of(key, of_key(windows, key), of_key(bursts, key), rate);
    if (m.isolated_issue.size() < 2 || m.sm_rate_gb_s <= 0) {
      profile.notes.push_back(fmt::format(
          "{} with {} threads is left out: too few bursts without a stall to see T_iss0",
          name(key.mechanism), key.threads));
      continue;
    }
    if (m.loop) fit_residue(of_key(windows, key), profile, m);
    profile.mechanisms.push_back(std::move(m));
  }
  borrow_loops(set, profile);
  if (profile.mechanisms.empty())
    throw Failure(poor("T_iss0 is not determined for any mechanism", "samples",
                       "every burst stalled", "bursts short enough to meet an empty X-Stage"));
  for (Mechanism mechanism : kMechanisms)
    fit_capacity(bursts, mechanism, profile, rate.has_value());
  if (!rate && std::none_of(profile.mechanisms.begin(), profile.mechanisms.end(),
                            [](const MechanismProfile& m) { return m.capacity.has_value(); }))
    throw Failure(poor("these samples never saturate the link: R is not determined", "bytes",
                       "all bursts small", "bursts long enough to stall"));
  set_quality(windows, bursts, profile);
  if (profile.quality.windowed_period.median > 0.1)
    throw Failure(poor("the model misses the samples it was fitted to", "median period error",
                       fmt::format("{:.1f} %", 100 * profile.quality.windowed_period.median),
                       "up to 10 %"));
  report.used = static_cast<std::int64_t>(windows.size() + bursts.size());
  report.set_aside = set_aside(set);
  return report;
}

}  // namespace

Result<FitReport> fit(const SampleSet& set, const FitOptions& options) {
  try {
    return fit_or_throw(set, options);
  } catch (const Failure& failure) {
    return failure.error();
  }
}

}  // namespace xstage::model
