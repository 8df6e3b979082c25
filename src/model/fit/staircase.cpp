// T_iss0: the staircase of passes.
#include "model/fit/parts.hpp"

namespace xstage::model {
namespace {

bool no_stall(const Sample& s) { return s.issue_p95_us <= kNoStallSpread * s.issue_p50_us; }

/// The issue time of a burst alone on its link cannot come from the drain.
bool drains_at_once(const Sample& s, double drain_gb_s) {
  return drain_us(static_cast<double>(s.producers) * static_cast<double>(s.bytes), drain_gb_s) <=
         s.issue_us;
}

}  // namespace

Curve isolated_curve(const Samples& bursts, std::optional<double> drain_gb_s) {
  std::map<std::int64_t, double> best;
  for (const Sample* s : bursts) {
    if (!no_stall(*s) && !(drain_gb_s && drains_at_once(*s, *drain_gb_s))) continue;
    const auto [at, fresh] = best.emplace(s->bytes, s->issue_us);
    if (!fresh) at->second = std::min(at->second, s->issue_us);
  }
  return to_curve(best);
}

Curve steady_curve(const Samples& windows, double drain_gb_s) {
  std::map<std::int64_t, std::vector<double>> times;
  for (const Sample* s : windows)
    if (rate_gb_s(*s) < kUncontended * drain_gb_s && no_stall(*s))
      times[s->bytes].push_back(s->issue_us);
  std::map<std::int64_t, double> points;
  for (auto& [bytes, values] : times) points[bytes] = median(std::move(values));
  return to_curve(points);
}

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

}  // namespace xstage::model
