#include "xstage/model/burst_gap.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace xstage::model {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 40;
constexpr double kMaxGapUs = 1e9;

double lerp_us(const CurvePoint& a, const CurvePoint& b, double bytes) {
  if (a.bytes == b.bytes) return a.us;
  const double t = (bytes - static_cast<double>(a.bytes)) / static_cast<double>(b.bytes - a.bytes);
  return a.us + t * (b.us - a.us);
}

std::int64_t round_up(std::int64_t bytes, std::int64_t pass) {
  return pass > 0 ? (bytes + pass - 1) / pass * pass : bytes;
}

Regime regime_of(double issue0, double gap, double drain, double backlog,
                 std::optional<double> capacity) {
  if (drain > issue0 + gap) return Regime::kDrainLimited;
  if (capacity && backlog > *capacity) return Regime::kCapacityLimited;
  if (drain <= issue0) return Regime::kIssueBound;
  return Regime::kGapHidden;
}

}  // namespace

std::string_view name(Regime regime) {
  switch (regime) {
    case Regime::kDrainLimited: return "drain-limited";
    case Regime::kCapacityLimited: return "capacity-limited";
    case Regime::kIssueBound: return "issue-bound";
    case Regime::kGapHidden: return "gap-hidden";
  }
  return "?";
}

std::string_view inequality(Regime regime) {
  switch (regime) {
    case Regime::kDrainLimited: return "V/R > T_iss0 + G";
    case Regime::kCapacityLimited: return "V/R <= T_iss0 + G and [V - R*T_iss0]+ > Q";
    case Regime::kIssueBound: return "V/R <= T_iss0";
    case Regime::kGapHidden: return "T_iss0 < V/R <= T_iss0 + G and [V - R*T_iss0]+ <= Q";
  }
  return "?";
}

double interpolate_us(const Curve& curve, std::int64_t bytes) {
  if (curve.empty()) return 0;
  if (bytes <= curve.front().bytes) return curve.front().us;
  for (std::size_t i = 1; i < curve.size(); ++i)
    if (bytes <= curve[i].bytes) return lerp_us(curve[i - 1], curve[i], static_cast<double>(bytes));
  return curve.back().us;
}

double staircase_us(const Curve& curve, std::int64_t bytes, std::int64_t pass_bytes) {
  if (curve.empty()) return 0;
  const auto above = std::lower_bound(
      curve.begin(), curve.end(), bytes,
      [](const CurvePoint& point, std::int64_t wanted) { return point.bytes < wanted; });
  if (above != curve.end() && above->bytes == bytes) return above->us;
  if (above == curve.begin()) {
    // Shorter than any measured burst. One pass of stores takes its time whatever it carries; a
    // bulk copy keeps its slope, but not below its share of the shortest measured one.
    if (pass_bytes > 0 || curve.size() < 2) return above->us;
    const double share = above->us * static_cast<double>(bytes) / static_cast<double>(above->bytes);
    return std::max(share, lerp_us(curve[0], curve[1], static_cast<double>(bytes)));
  }
  const std::int64_t step = round_up(bytes, pass_bytes);
  const auto below = above - 1;
  const bool below_in_pass = pass_bytes > 0 && round_up(below->bytes, pass_bytes) == step;
  const bool above_in_pass =
      pass_bytes > 0 && above != curve.end() && round_up(above->bytes, pass_bytes) == step;
  if (below_in_pass && above_in_pass) return lerp_us(*below, *above, static_cast<double>(bytes));
  if (above_in_pass) return above->us;
  // Within the first pass every warp adds its issue slot; later passes hide theirs.
  if (below_in_pass && step == pass_bytes && below != curve.begin())
    return lerp_us(*(below - 1), *below, static_cast<double>(bytes));
  if (below_in_pass) return below->us;
  if (above != curve.end())
    return lerp_us(*below, *above, static_cast<double>(std::min(step, above->bytes)));
  if (curve.size() == 1) return curve.front().us;
  // Beyond the last point the SM's own rate sets the slope; a wide base keeps noise out of it.
  const std::size_t base = curve.size() >= 3 ? curve.size() - 3 : curve.size() - 2;
  return lerp_us(curve[base], curve.back(), static_cast<double>(step));
}

double expected_wait_us(double gap, double mean, int shape) {
  if (gap <= 0) return std::max(gap, mean);
  if (mean <= 0) return gap;
  const double x = gap * shape / mean;
  // Poisson weights e^-x x^i / i!, up to the shape: P(X > gap) and the mean beyond the gap.
  double term = std::exp(-x);
  double below_shape = 0;
  for (int i = 0; i < shape; ++i) {
    below_shape += term;
    term *= x / (i + 1);
  }
  const double below_next = below_shape + term;
  return gap * (1 - below_shape) + mean * below_next;
}

std::int64_t last_pass_bytes(std::int64_t bytes, std::int64_t pass_bytes) {
  if (pass_bytes <= 0) return 0;
  const std::int64_t rest = bytes % pass_bytes;
  return rest == 0 ? pass_bytes : rest;
}

Steady steady(const MechanismProfile& mechanism, const std::vector<GroupClass>& classes,
              std::int64_t bytes, double gap_us, double drain_gb_s) {
  Steady out;
  const Curve& curve =
      mechanism.steady_issue.empty() ? mechanism.isolated_issue : mechanism.steady_issue;
  out.issue0_us = staircase_us(curve, bytes, mechanism.pass_bytes());
  const LoopCost loop = mechanism.loop.value_or(LoopCost{});
  const double floor_us = interpolate_us(gap_us > 0 ? loop.with_gap : loop.without_gap, bytes);
  const double asked_us = gap_us > 0 ? gap_us + loop.gap_overhead_us : 0;
  out.gap_us = std::max(asked_us, floor_us);

  const double unlimited_us = out.issue0_us + out.gap_us;
  const double demand = static_cast<double>(bytes) / (1000.0 * unlimited_us);
  const std::vector<double> rate =
      max_min_share(classes, std::vector<double>(classes.size(), demand), drain_gb_s);
  // What is left in the SM are stores of the last pass: of a partial pass there is less.
  double residue = std::min(static_cast<double>(bytes), loop.residue_bytes);
  if (const std::int64_t pass = mechanism.pass_bytes(); pass > 0)
    residue *= static_cast<double>(last_pass_bytes(bytes, pass)) / static_cast<double>(pass);
  double bursts = 0;
  double issue_sum = 0;
  int producers = 0;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const double period = model::drain_us(static_cast<double>(bytes), rate[i]);
    double issue = out.issue0_us;
    if (rate[i] < demand * (1 - 1e-9)) {
      // The next memory instruction pays for what is left in the SM, the burst does not.
      const double residue_us = loop.residue_offset_us + model::drain_us(residue, rate[i]);
      const double between =
          residue > 0 ? expected_wait_us(out.gap_us, residue_us, loop.residue_shape) : out.gap_us;
      issue = std::max(issue, period - between);
    }
    out.class_period_us.push_back(period);
    out.class_issue_us.push_back(issue);
    const double weight = classes[i].producers() / period;
    bursts += weight;
    issue_sum += weight * issue;
    producers += classes[i].producers();
  }
  out.period_us = producers / bursts;
  out.issue_us = issue_sum / bursts;
  return out;
}

Isolated isolated(const MechanismProfile& mechanism, const Capacity& capacity,
                  const std::vector<GroupClass>& classes, std::int64_t bytes, double drain_gb_s) {
  const std::size_t n = classes.size();
  Isolated out;
  out.issue0_us = staircase_us(mechanism.isolated_issue, bytes, mechanism.pass_bytes());
  out.class_issue_us.assign(n, out.issue0_us);

  // Every group drains at its share. A class has issued its burst when what is left fits into the
  // capacity of its SMs; it goes on taking its share until all is drained.
  const double held_in_sm =
      capacity.sm_bytes +
      std::min(static_cast<double>(last_pass_bytes(bytes, mechanism.pass_bytes())),
               capacity.last_pass_max_bytes);
  std::vector<double> left(n, static_cast<double>(bytes));
  std::vector<double> held(n);
  std::vector<double> demand(n, mechanism.sm_rate_gb_s);
  for (std::size_t i = 0; i < n; ++i) held[i] = held_in_sm + capacity.group_bytes / classes[i].sms;
  std::vector<double> until(n);
  double now = 0;
  while (true) {
    const std::vector<double> rate = max_min_share(classes, demand, drain_gb_s);
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < n; ++i) {
      if (demand[i] <= 0) continue;
      until[i] = model::drain_us(left[i] > held[i] ? left[i] - held[i] : left[i], rate[i]);
      step = std::min(step, until[i]);
    }
    if (!std::isfinite(step)) break;
    now += step;
    for (std::size_t i = 0; i < n; ++i) {
      if (demand[i] <= 0) continue;
      if (until[i] > step * (1 + 1e-12)) {
        left[i] -= 1000.0 * rate[i] * step;
      } else if (left[i] > held[i]) {
        left[i] = held[i];  // exactly, so that every round ends something
        out.class_issue_us[i] = std::max(out.issue0_us, now);
      } else {
        demand[i] = 0;
      }
    }
  }
  double sum = 0;
  int producers = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += out.class_issue_us[i] * classes[i].producers();
    producers += classes[i].producers();
  }
  out.issue_us = sum / producers;
  return out;
}

double capacity_bytes(const MechanismProfile& mechanism, const Capacity& capacity,
                      const std::vector<GroupClass>& classes, std::int64_t bytes) {
  const double last = std::min(static_cast<double>(last_pass_bytes(bytes, mechanism.pass_bytes())),
                               capacity.last_pass_max_bytes);
  double total = 0;
  for (const GroupClass& c : classes)
    total += c.groups * (c.sms * (capacity.sm_bytes + last) + capacity.group_bytes);
  return total;
}

Result<Prediction> predict(const Profile& profile, const Workload& w) {
  const int sms = profile.node.sms;
  if (w.producers < 1 || w.producers > sms)
    return bad_input("one block an SM stores at most", "producers", fmt::format("{}", w.producers),
                     fmt::format("1 to {}", sms));
  if (w.bytes < 16 || w.bytes > kMaxBytes || w.bytes % 16 != 0)
    return bad_input("a burst is a number of 16-byte pieces", "bytes", fmt::format("{}", w.bytes),
                     "multiples of 16 from 16 to 2^40");
  if (!std::isfinite(w.gap_us) || w.gap_us < 0 || w.gap_us > kMaxGapUs)
    return bad_input("a gap is a time", "gap_us", fmt::format("{}", w.gap_us), "0 to 1e9");
  const Result<const MechanismProfile*> found = profile.find(w.mechanism, w.threads);
  if (!found) return found.error();
  const MechanismProfile& mechanism = **found;
  const bool knows_gpu = std::any_of(profile.topology.begin(), profile.topology.end(),
                                     [&](const Topology& t) { return t.gpu == w.gpu; });
  if (w.gpu < 0 || (!profile.topology.empty() && !knows_gpu)) {
    std::string known;
    for (const Topology& t : profile.topology)
      known += fmt::format("{}{}", known.empty() ? "" : ", ", t.gpu);
    return bad_input("the profile has no such GPU", "gpu", fmt::format("{}", w.gpu),
                     known.empty() ? "0 or more" : known);
  }
  if (w.both_ways && !profile.drain.both_ways_gb_s)
    return bad_input("the profile has no drain rate with both directions in use", "both_ways",
                     "true", "false");

  Prediction out;
  out.drain_gb_s = w.both_ways ? *profile.drain.both_ways_gb_s : profile.drain.one_way_gb_s;
  out.volume_bytes = static_cast<double>(w.producers) * static_cast<double>(w.bytes);
  out.drain_us = model::drain_us(out.volume_bytes, out.drain_gb_s);
  const std::vector<GroupClass> classes = profile.classes(w.producers, w.gpu);

  const Steady loop = steady(mechanism, classes, w.bytes, w.gap_us, out.drain_gb_s);
  out.issue0_us = loop.issue0_us;
  out.gap_us = loop.gap_us;
  out.period_us = loop.period_us;
  out.issue_us = loop.issue_us;
  out.overhead_us = std::max(0.0, loop.issue_us - loop.issue0_us);
  out.recovery_gap_us = closed_form::recovery_gap_us(loop.issue0_us, out.drain_us);
  out.peak_backlog_bytes =
      closed_form::peak_backlog_bytes(out.volume_bytes, out.drain_gb_s, loop.issue0_us);
  out.average_fits = out.drain_us <= loop.issue0_us + loop.gap_us;
  out.isolated_issue0_us = staircase_us(mechanism.isolated_issue, w.bytes, mechanism.pass_bytes());
  out.paper_period_us = closed_form::period_us(loop.issue0_us, w.gap_us, out.drain_us);
  out.paper_issue_us = closed_form::issue_us(loop.issue0_us, w.gap_us, out.drain_us);
  out.completion_coupled_period_us =
      closed_form::completion_coupled_period_us(w.gap_us, out.drain_us);

  std::optional<Isolated> burst;
  if (mechanism.capacity) {
    const Capacity& capacity = *mechanism.capacity;
    burst = isolated(mechanism, capacity, classes, w.bytes, out.drain_gb_s);
    out.isolated_issue_us = burst->issue_us;
    out.capacity_bytes = capacity_bytes(mechanism, capacity, classes, w.bytes);
    out.burst_fits = out.peak_backlog_bytes <= *out.capacity_bytes;
    out.paper_isolated_issue_us = closed_form::isolated_issue_us(
        out.isolated_issue0_us, out.volume_bytes, *out.capacity_bytes, out.drain_gb_s);
    if (capacity.producers.size() == 1 && capacity.producers.front() != w.producers)
      out.warnings.push_back(
          fmt::format("capacity was measured at {} producers only; its value at {} is extrapolated",
                      capacity.producers.front(), w.producers));
  } else {
    out.warnings.push_back("the profile does not determine the outstanding capacity Q");
  }
  out.regime = regime_of(loop.issue0_us, loop.gap_us, out.drain_us, out.peak_backlog_bytes,
                         out.capacity_bytes);
  if (out.regime == Regime::kCapacityLimited)
    out.warnings.push_back(
        "capacity-limited: the period law in this regime has not been validated by measurement");
  if (profile.drain.from_bursts)
    out.warnings.push_back(
        "the drain rate was fitted to isolated bursts alone, without runs that saturate the link");
  if (!mechanism.loop)
    out.warnings.push_back("the cost of a loop was not measured for this mechanism; taken as 0");
  if (profile.topology.empty())
    out.warnings.push_back("groups of SMs are unknown; equal shares assumed");
  const Curve& curve =
      mechanism.steady_issue.empty() ? mechanism.isolated_issue : mechanism.steady_issue;
  if (w.bytes > curve.back().bytes)
    out.warnings.push_back(fmt::format(
        "T_iss0 was measured up to {} bytes; beyond it is extrapolated", curve.back().bytes));
  for (std::size_t i = 0; i < classes.size(); ++i) {
    GroupPrediction group{classes[i].sms, classes[i].groups, loop.class_period_us[i],
                          loop.class_issue_us[i], std::nullopt};
    if (burst) group.isolated_issue_us = burst->class_issue_us[i];
    out.groups.push_back(group);
  }
  return out;
}

}  // namespace xstage::model
