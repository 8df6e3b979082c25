#include "xstage/model/burst_gap.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numbers>
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

/// What an SM itself holds of a burst when the clock after its last store is read.
double held_by_sm(const MechanismProfile& mechanism, const Capacity& capacity, std::int64_t bytes) {
  const std::int64_t pass = mechanism.pass_bytes();
  return capacity.sm_bytes +
         std::min(static_cast<double>(last_pass_bytes(bytes, pass)), capacity.last_pass_max_bytes) +
         capacity.lag_passes * static_cast<double>(pass);
}

/// Rates of one SM of each class where bursts of SMs of one group overlap by chance. While the link
/// saturates, a group is served at no more than `level`: an SM that has its group to itself then
/// issues as after an isolated burst, and with its mates it waits for their bursts, too. The level
/// is the one at which all together take what the link gives.
std::vector<double> overlapping_rates(const MechanismProfile& mechanism,
                                      const std::vector<GroupClass>& classes, std::int64_t bytes,
                                      double issue0_us, double gap_us, double drain_gb_s) {
  const auto size = static_cast<double>(bytes);
  const double held_alone = mechanism.capacity ? held_by_sm(mechanism, *mechanism.capacity, bytes) +
                                                     mechanism.capacity->group_bytes
                                               : size;
  const double spread_bytes =
      mechanism.loop->overlap_factor * std::max(0.0, size - mechanism.loop->overlap_bytes);
  std::vector<double> rate(classes.size());
  const auto total_at = [&](double level) {
    const double alone_us =
        std::max(issue0_us, drain_us(size - held_alone, std::min(level, mechanism.sm_rate_gb_s)));
    double total = 0;
    for (std::size_t i = 0; i < classes.size(); ++i) {
      const int sms = classes[i].sms;
      const double period = expected_issue_us(alone_us + gap_us, drain_us(sms * size, level),
                                              drain_us(spread_bytes * std::sqrt(sms - 1.0), level));
      rate[i] = size / (1000.0 * period);
      total += rate[i] * classes[i].producers();
    }
    return total;
  };
  // Where nothing of it is felt the link has room for all.
  constexpr double kNoLimit = 1e6;
  double high = kNoLimit * drain_gb_s;
  if (total_at(high) <= drain_gb_s) {
    std::fill(rate.begin(), rate.end(), size / (1000.0 * (issue0_us + gap_us)));
    return rate;
  }
  double low = 1e-3 * drain_gb_s;
  for (int i = 0; i < 60; ++i) {
    const double middle = std::sqrt(low * high);
    (total_at(middle) > drain_gb_s ? high : low) = middle;
  }
  const double total = total_at(low);
  for (double& r : rate) r *= drain_gb_s / total;
  return rate;
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

double expected_issue_us(double issue0, double mean, double deviation) {
  if (deviation <= 0) return std::max(issue0, mean);
  const double z = (mean - issue0) / deviation;
  const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
  const double below = std::erfc(-z / std::numbers::sqrt2) / 2;
  return issue0 + deviation * std::max(0.0, density + z * below);
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
      loop.overlap_factor > 0
          ? overlapping_rates(mechanism, classes, bytes, out.issue0_us, out.gap_us, drain_gb_s)
          : max_min_share(classes, std::vector<double>(classes.size(), demand), drain_gb_s);
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

  // Every group drains at its share, once the link's own buffer is full. A class has issued its
  // burst when what is left fits into the capacity of its SMs; it goes on taking its share until
  // all is drained.
  const double held_in_sm = held_by_sm(mechanism, capacity, bytes);
  std::vector<double> left(n, static_cast<double>(bytes));
  std::vector<double> held(n);
  std::vector<double> demand(n, mechanism.sm_rate_gb_s);
  for (std::size_t i = 0; i < n; ++i) held[i] = held_in_sm + capacity.group_bytes / classes[i].sms;
  std::vector<double> until(n);
  std::vector<double> share = max_min_share(classes, demand, drain_gb_s);
  // When the mean SM of a class has issued, and the rate at which it drains then; a class whose
  // burst fits would have done so before the start.
  std::vector<double> issued_us(n), rate_then = share;
  for (std::size_t i = 0; i < n; ++i)
    issued_us[i] = model::drain_us(static_cast<double>(bytes) - held[i], share[i]);
  double link_left = capacity.link_bytes;
  double now = 0;
  while (true) {
    share = max_min_share(classes, demand, drain_gb_s);
    double step = std::numeric_limits<double>::infinity();
    double excess = -drain_gb_s;
    for (std::size_t i = 0; i < n; ++i) excess += demand[i] * classes[i].producers();
    const bool link_fills = link_left > 0 && excess > 0;
    if (link_fills) step = model::drain_us(link_left, excess);
    const double link_full = step;
    const std::vector<double>& rate = link_fills ? demand : share;
    bool draining = false;
    for (std::size_t i = 0; i < n; ++i) {
      if (demand[i] <= 0) continue;
      draining = true;
      until[i] = model::drain_us(left[i] > held[i] ? left[i] - held[i] : left[i], rate[i]);
      step = std::min(step, until[i]);
    }
    if (!draining) break;
    now += step;
    for (std::size_t i = 0; i < n; ++i) {
      if (demand[i] <= 0) continue;
      if (until[i] > step * (1 + 1e-12)) {
        left[i] -= 1000.0 * rate[i] * step;
      } else if (left[i] > held[i]) {
        left[i] = held[i];  // exactly, so that every round ends something
        issued_us[i] = now;
        rate_then[i] = share[i];
      } else {
        demand[i] = 0;
      }
    }
    if (link_fills) link_left = step >= link_full ? 0 : link_left - 1000.0 * excess * step;
  }
  // What does not fit into the SM itself goes through stages that it shares with others, in grains
  // and in no fixed order.
  for (std::size_t i = 0; i < n; ++i) {
    const double shared = std::max(0.0, static_cast<double>(bytes) - held_in_sm);
    const double deviation =
        shared > 0 ? model::drain_us(std::sqrt(shared * capacity.grain_bytes), rate_then[i]) : 0;
    out.class_issue_us[i] = expected_issue_us(out.issue0_us, issued_us[i], deviation);
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
  const double held = held_by_sm(mechanism, capacity, bytes);
  double total = 0;
  for (const GroupClass& c : classes) total += c.groups * (c.sms * held + capacity.group_bytes);
  return total + capacity.link_bytes;
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
