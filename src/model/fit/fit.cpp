// The fit as a whole: what is determined, in which order, and what is refused.
#include <fmt/format.h>

#include <cmath>
#include <set>

#include "model/fit/parts.hpp"

namespace xstage::model {
namespace {

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
  const bool shows_loop = std::any_of(windows.begin(), windows.end(), [&](const Sample* s) {
    return drain_gb_s && s->gap_us < 0.6 * (s->period_us - s->issue_us) &&
           (rate_gb_s(*s) < kUncontended * *drain_gb_s || store_bytes(s->mechanism) == 0);
  });
  if (!windows.empty() && !shows_loop)
    m.undetermined.push_back("the loop's own cost: every run with a short gap feels the link");
  if (drain_gb_s)
    m.loop = loop_floors(windows, m.steady_issue, m.pass_bytes(), m.sm_rate_gb_s, *drain_gb_s);
  return m;
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

/// A period is what issue and gap take, and little more: no loop or residue takes 10 us.
bool plausible(const Sample& s) {
  if (s.experiment != Experiment::kWindow) return true;
  const double least = s.issue_us + s.gap_us;
  return s.period_us >= 0.95 * least && s.period_us <= 2 * least + 10;
}

/// Runs whose period or issue time is off by more than half, if they are few; rounding and very
/// short times do not count.
std::vector<const Sample*> slips_of(const Profile& profile, const SampleSet& set) {
  std::vector<const Sample*> out;
  const std::vector<PointError> all = errors(profile, set.samples);
  for (const PointError& e : all) {
    const bool off_period = e.period_fraction > 0.5;
    const bool off_issue =
        e.issue_us > 0.5 * std::max(e.sample->issue_us, e.predicted_issue_us) && e.issue_us > 2.0;
    if (off_period || off_issue) out.push_back(e.sample);
  }
  if (out.size() > std::max<std::size_t>(1, all.size() / 50)) out.clear();
  return out;
}

SampleSet without(const SampleSet& set, const std::vector<const Sample*>& left_out) {
  SampleSet rest = set;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < set.samples.size(); ++i)
    if (std::find(left_out.begin(), left_out.end(), &set.samples[i]) == left_out.end())
      rest.samples[kept++] = set.samples[i];
  rest.samples.resize(kept);
  return rest;
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
  profile.drain.from_bursts = !rate;
  if (!rate)
    profile.notes.push_back(
        "no windowed runs saturate the link: R is fitted together with Q to isolated bursts; "
        "without the groups of SMs it comes out up to a fifth too high");
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
  // The mechanism with the most bursts tells the rate where windowed runs do not.
  std::vector<Mechanism> by_points(kMechanisms.begin(), kMechanisms.end());
  const auto points = [&](Mechanism mechanism) {
    return std::count_if(bursts.begin(), bursts.end(),
                         [&](const Sample* s) { return s->mechanism == mechanism; });
  };
  std::stable_sort(by_points.begin(), by_points.end(),
                   [&](Mechanism x, Mechanism y) { return points(x) > points(y); });
  bool rate_is_known = rate.has_value();
  for (Mechanism mechanism : by_points)
    rate_is_known = fit_capacity(bursts, mechanism, profile, rate_is_known);
  if (rate) fit_overlap(set, profile);
  if (!rate && std::none_of(profile.mechanisms.begin(), profile.mechanisms.end(),
                            [](const MechanismProfile& m) { return m.capacity.has_value(); }))
    throw Failure(poor("these samples never saturate the link: R is not determined", "bytes",
                       "all bursts small", "bursts long enough to stall"));
  set_quality(windows, bursts, profile);
  for (const ErrorSummary* q :
       {&profile.quality.windowed_issue_us, &profile.quality.isolated_issue_us})
    if (!std::isfinite(q->median))
      throw Failure(poor("the fit came to no numbers", "samples", "contradictory",
                         "measurements of one node"));
  if (profile.quality.windowed_period.median > 0.1)
    throw Failure(poor("the model misses the samples it was fitted to", "median period error",
                       fmt::format("{:.1f} %", 100 * profile.quality.windowed_period.median),
                       "up to 10 %"));
  report.used = static_cast<std::int64_t>(windows.size() + bursts.size());
  report.set_aside = set_aside(set);
  return report;
}

}  // namespace

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

Curve to_curve(const std::map<std::int64_t, double>& points) {
  Curve curve;
  for (const auto& [bytes, us] : points) curve.push_back({bytes, us});
  return curve;
}

Result<FitReport> fit(const SampleSet& set, const FitOptions& options) {
  try {
    // A few runs that contradict themselves or all others are slips of measuring: they are named
    // and left out.
    std::vector<const Sample*> slips;
    for (const Sample& s : set.samples)
      if (!plausible(s)) slips.push_back(&s);
    if (slips.size() > std::max<std::size_t>(1, set.samples.size() / 50))
      throw Failure(poor("too many runs contradict themselves", "period_aggregate",
                         fmt::format("{} of {} runs", slips.size(), set.samples.size()),
                         "periods from issue + gap to twice that plus 10 us"));
    FitReport report = fit_or_throw(without(set, slips), options);
    for (const Sample* s : slips_of(report.profile, set))
      if (plausible(*s)) slips.push_back(s);
    if (slips.empty()) return report;
    report = fit_or_throw(without(set, slips), options);
    report.set_aside.push_back(
        {"contradicts the other runs", static_cast<std::int64_t>(slips.size())});
    for (std::size_t i = 0; i < std::min<std::size_t>(slips.size(), 5); ++i)
      report.profile.notes.push_back(fmt::format(
          "{}, line {}: this run contradicts the others and is left out",
          set.files.empty() ? "samples" : set.files[static_cast<std::size_t>(slips[i]->file)],
          slips[i]->line));
    return report;
  } catch (const Failure& failure) {
    return failure.error();
  }
}

}  // namespace xstage::model
