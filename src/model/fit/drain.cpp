// R, from three kinds of runs.
#include "model/fit/parts.hpp"

#include <cmath>

namespace xstage::model {
namespace {

/// The highest rate but for the top 2 %, which may be slips.
double top_of(std::vector<double> rates) {
  if (rates.empty()) return 0;
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() - 1 - rates.size() / 50];
}

/// The median of the rates within `part` of the highest ones. Absent below three.
std::optional<double> plateau(std::vector<double> rates, double part) {
  if (rates.size() < 3) return std::nullopt;
  const double top = top_of(rates);
  std::erase_if(rates, [&](double rate) { return rate < part * top; });
  return rates.size() < 3 ? std::nullopt : std::optional(median(std::move(rates)));
}

}  // namespace

std::optional<double> saturated_rate(const Samples& windows, double sm_rate_gb_s) {
  std::vector<double> all;
  for (const Sample* s : windows) all.push_back(rate_gb_s(*s));
  const double top = top_of(std::move(all));
  std::vector<double> rates;
  for (const Sample* s : windows)
    if (sm_rate_gb_s <= 0 || s->producers * sm_rate_gb_s >= 1.1 * top)
      rates.push_back(rate_gb_s(*s));
  const std::optional<double> found = plateau(rates, 0.98);
  return found && *found >= 0.98 * 0.98 * top ? found : std::nullopt;
}

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

}  // namespace xstage::model
