#include "report/figure.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace xstage::report {
namespace {

// Six digits are more than any plot shows, and halve the page.
json rounded(const std::vector<double>& values) {
  json out = json::array();
  for (const double value : values) {
    if (!std::isfinite(value)) {
      out.push_back(nullptr);
      continue;
    }
    if (value == 0) {
      out.push_back(0);
      continue;
    }
    const double scale = std::pow(10.0, 5 - std::floor(std::log10(std::abs(value))));
    const double shorter = std::round(value * scale) / scale;
    out.push_back(std::isfinite(shorter) ? shorter : value);
  }
  return out;
}

const char* shape_name(Trace::Shape shape) {
  switch (shape) {
    case Trace::Shape::kPoints: return "points";
    case Trace::Shape::kLine: return "line";
    case Trace::Shape::kLimit: return "limit";
    case Trace::Shape::kSpans: return "spans";
  }
  return "points";
}

std::size_t points(const Panel& panel) {
  return std::accumulate(panel.traces.begin(), panel.traces.end(), std::size_t{0},
                         [](std::size_t sum, const Trace& trace) { return sum + trace.x.size(); });
}

json to_json(const Trace& trace) {
  json out{{"shape", shape_name(trace.shape)},
           {"name", trace.name},
           {"x", rounded(trace.x)},
           {"y", rounded(trace.y)},
           {"colour", trace.colour},
           {"colours", trace.colours}};
  if (trace.neutral) out["neutral"] = true;
  if (trace.low.size() == trace.y.size()) out["low"] = rounded(trace.low);
  if (trace.high.size() == trace.y.size()) out["high"] = rounded(trace.high);
  if (!trace.width.empty()) out["width"] = rounded(trace.width);
  return out;
}

}  // namespace

std::size_t Figure::size() const {
  return std::accumulate(panels.begin(), panels.end(), std::size_t{0},
                         [](std::size_t sum, const Panel& panel) { return sum + points(panel); });
}

void Figure::show_fullest() {
  const auto fullest =
      std::max_element(panels.begin(), panels.end(),
                       [](const Panel& a, const Panel& b) { return points(a) < points(b); });
  shown = fullest == panels.end() ? 0 : static_cast<std::size_t>(fullest - panels.begin());
}

json to_json(const Figure& figure) {
  json out{{"title", figure.title}, {"xTitle", figure.x_title},     {"yTitle", figure.y_title},
           {"logX", figure.log_x},  {"logY", figure.log_y},         {"link", figure.link},
           {"rows", figure.rows},   {"fromZero", figure.from_zero}, {"xUntil", figure.x_until},
           {"shown", figure.shown}, {"panels", json::array()}};
  for (const Panel& panel : figure.panels) {
    json traces = json::array();
    for (const Trace& trace : panel.traces) traces.push_back(to_json(trace));
    out["panels"].push_back(
        {{"group", panel.group}, {"key", panel.key}, {"traces", std::move(traces)}});
  }
  return out;
}

}  // namespace xstage::report
