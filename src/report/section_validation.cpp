// The model against measurement: error table, knee, period against gap, shares of the SMs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "report/page.hpp"

namespace xstage::report {
namespace {

constexpr double kBytesPerMegabyte = 1e6;

struct Summary {
  std::optional<double> points, period_median, period_p95, issue_median, issue_p95;
};

Summary read_summary(const json& set) {
  return {get_number(set, "n"), get_number(child(set, "period"), "median"),
          get_number(child(set, "period"), "p95"), get_number(child(set, "issue_us"), "median"),
          get_number(child(set, "issue_us"), "p95")};
}

void error_row(Table& table, std::string_view label, const json& set) {
  if (!set.is_object()) return;
  const Summary s = read_summary(set);
  table.row({escape(label), number(s.points, 6), percent(s.period_median), percent(s.period_p95),
             microseconds(s.issue_median), microseconds(s.issue_p95)});
}

std::string error_tables(const json& content) {
  Table table({"set", ">points", ">period, median", ">period, p95", ">issue time, median",
               ">issue time, p95"});
  error_row(table, "windowed", child(content, "windowed"));
  error_row(table, "isolated", child(content, "isolated"));
  const json& regimes = child(content, "by_regime");
  if (regimes.is_object())
    for (const auto& [name, set] : regimes.items())
      error_row(table, get_bool(set, "validated").value_or(true) ? name : name + " (not validated)",
                set);
  const json& sets = child(content, "by_set");
  if (sets.is_array())
    for (const json& set : sets) error_row(table, get_text(set, "set", "–"), set);
  const json& crossed = child(content, "cross_validation");
  if (crossed.is_array())
    for (const json& round : crossed)
      for (const char* set : {"windowed", "isolated"})
        error_row(table,
                  fmt::format("{}, each {} left out of the fit in turn", set,
                              get_text(round, "left_out", "?")),
                  child(round, set));
  std::string out = table.html("Prediction error by set of samples");

  Table folds({"left out of the fit", ">points", ">period, median", ">period, p95",
               ">issue time, median", ">issue time, p95"});
  const json& left_out = child(content, "folds");
  if (left_out.is_array())
    for (const json& fold : left_out)
      if (get_number(fold, "n").value_or(0) > 0)
        error_row(folds, get_text(fold, "left_out", "–"), fold);
  if (!folds.empty())
    out += "<details><summary>Each value left out</summary>" + folds.html() + "</details>";

  Table laws({"law of the period", ">median", ">p95"});
  const json& compared = child(content, "laws");
  if (compared.is_array())
    for (const json& law : compared)
      laws.row({escape(get_text(law, "law", "–")),
                percent(get_number(child(law, "period"), "median")),
                percent(get_number(child(law, "period"), "p95"))});
  if (!laws.empty()) out += laws.html("Laws of the period side by side");
  return out;
}

// ---- series ---------------------------------------------------------------------------------

std::string direction_name(const std::string& direction) {
  if (direction.empty() || direction == "uni") return "one way";
  if (direction == "bi") return "both ways";
  return direction;
}

// What a reader picks from a list. Ordered by mechanism, direction, threads and piece size.
struct SetName {
  std::string mechanism;
  std::string direction;
  double threads = 0;
  double chunk = 0;
  auto operator<=>(const SetName&) const = default;

  std::string text() const {
    std::string out = fmt::format("{}, {} threads", mechanism, threads);
    if (chunk > 0) out += ", pieces of " + binary_bytes(chunk);
    return out + ", " + direction_name(direction);
  }
};

SetName set_name(const json& series) {
  // "uni" before "bi": what the model is about comes first.
  std::string direction = get_text(series, "direction", "uni");
  return {get_text(series, "mechanism", "?"), direction == "uni" ? "" : direction,
          get_number(series, "threads").value_or(0), get_number(series, "chunk_bytes").value_or(0)};
}

std::vector<double> scaled(std::vector<double> values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

// Points and model line of one series, y being one of its columns.
void add_traces(const json& series, const std::string& x, const std::string& y, double x_scale,
                const std::string& name, int colour, int colours, Panel& panel) {
  const json& measured = child(series, "measured");
  const json& model = child(series, "model");
  Trace line{
      Trace::Shape::kLine,   "", colour, colours, false, scaled(get_numbers(model, x), x_scale),
      get_numbers(model, y), {}, {},     {}};
  Trace points{Trace::Shape::kPoints,
               name,
               colour,
               colours,
               false,
               scaled(get_numbers(measured, x), x_scale),
               get_numbers(measured, y),
               {},
               {},
               {}};
  if (y.ends_with("_us")) {
    const std::string stem = y.substr(0, y.size() - 3);
    points.low = get_numbers(measured, stem + "_p05_us");
    points.high = get_numbers(measured, stem + "_p95_us");
  }
  if (line.x.size() == line.y.size() && !line.x.empty()) panel.traces.push_back(std::move(line));
  if (points.x.size() == points.y.size() && !points.x.empty())
    panel.traces.push_back(std::move(points));
}

// By the value that the colour stands for; two files may hold the same one.
using Group = std::multimap<double, const json*>;

struct Sorted {
  // set name -> K -> series, and set name -> K -> B -> series
  std::map<SetName, Group> isolated;
  std::map<SetName, std::map<double, Group>> windowed;
  std::string isolated_source, windowed_source;
};

Sorted sort_series(const json& all) {
  Sorted out;
  if (!all.is_array()) return out;
  for (const json& series : all) {
    const double producers = get_number(series, "producers").value_or(0);
    if (get_text(series, "x") == "volume_bytes") {
      out.isolated[set_name(series)].emplace(producers, &series);
      out.isolated_source = get_text(series, "source", out.isolated_source);
    } else if (get_text(series, "x") == "gap_us") {
      const double burst = get_number(series, "bytes").value_or(0);
      out.windowed[set_name(series)][producers].emplace(burst, &series);
      out.windowed_source = get_text(series, "source", out.windowed_source);
    }
  }
  return out;
}

Figure knee_figure(const Sorted& sorted) {
  Figure figure;
  figure.title = "The knee: issue time of an isolated burst";
  figure.caption =
      "Aligned bursts into an empty X-Stage. Up to the knee a burst costs its issue time alone; "
      "beyond it the capacity is full and every further byte waits for the drain. Points: mean "
      "over producers, whiskers 5 to 95 %. Lines: the model.";
  figure.source = sorted.isolated_source;
  figure.x_title = "burst volume V = K·B (MB)";
  figure.y_title = "issue time (µs)";
  figure.log_x = figure.log_y = true;
  for (const auto& [set, by_producers] : sorted.isolated) {
    Panel panel{set.text(), "", {}};
    int colour = 0;
    for (const auto& [producers, series] : by_producers)
      add_traces(*series, "volume_bytes", "issue_us", 1 / kBytesPerMegabyte,
                 fmt::format("K = {}", producers), colour++, static_cast<int>(by_producers.size()),
                 panel);
    if (!panel.traces.empty()) figure.panels.push_back(std::move(panel));
  }
  figure.show_fullest();
  return figure;
}

Figure gap_figure(const Sorted& sorted, const std::string& y) {
  Figure figure;
  const bool period = y == "period_us";
  figure.title = period ? "Aggregate period against gap" : "Issue time against gap";
  figure.caption =
      period ? "The maximum law: flat while the drain limits, then the gap plus the issue time. "
               "Points: bytes counted inside a common window. Lines: the model."
             : "What a store burst costs its producer. Points: mean over producers, whiskers 5 to "
               "95 %. Lines: the model.";
  figure.source = sorted.windowed_source;
  figure.x_title = "gap G (µs)";
  figure.y_title = period ? "period (µs)" : "issue time (µs)";
  figure.link = "window";
  figure.from_zero = true;
  for (const auto& [set, by_producers] : sorted.windowed)
    for (const auto& [producers, by_bytes] : by_producers) {
      Panel panel{set.text(), fmt::format("K = {}", producers), {}};
      int colour = 0;
      for (const auto& [burst, series] : by_bytes)
        add_traces(*series, "gap_us", y, 1, "B = " + binary_bytes(burst), colour++,
                   static_cast<int>(by_bytes.size()), panel);
      if (!panel.traces.empty()) figure.panels.push_back(std::move(panel));
    }
  figure.show_fullest();
  return figure;
}

// ---- shares ---------------------------------------------------------------------------------

Figure shares_figure(const json& all) {
  Figure figure;
  figure.title = "The share of each SM";
  figure.caption =
      "Bursts of each SM over the mean of all. The link is shared fairly between groups of SMs, "
      "so an SM in a small group drains faster. Points: measured. Dashes: the model.";
  figure.x_title = "SM";
  figure.y_title = "share (1 = mean)";
  figure.from_zero = true;
  if (!all.is_array()) return figure;
  for (const json& run : all) {
    const std::vector<double> sm = get_numbers(run, "sm");
    std::vector<double> share = get_numbers(run, "bursts");
    std::vector<double> predicted = get_numbers(run, "predicted_share");
    if (sm.empty() || share.size() != sm.size()) continue;
    double sum = 0;
    for (const double bursts : share) sum += bursts;
    if (!(sum > 0)) continue;
    for (double& bursts : share) bursts *= static_cast<double>(share.size()) / sum;
    figure.source = get_text(run, "source", figure.source);
    Panel panel{
        fmt::format("{}, {} threads, K = {}, GPU {}", get_text(run, "mechanism", "?"),
                    get_any(run, "threads"), get_any(run, "producers"), get_any(run, "gpu")),
        fmt::format("{}, G = {}", binary_bytes(get_number(run, "bytes")),
                    microseconds(get_number(run, "gap_us"))),
        {}};
    if (predicted.size() == sm.size()) {
      // A short dash under each point rather than a line: SM numbers have no order.
      Trace dashes{Trace::Shape::kSpans, "model", 0, 1, true, sm, predicted, {}, {}, {}};
      for (double& x : dashes.x) x -= 0.5;
      dashes.width.assign(sm.size(), 1.0);
      panel.traces.push_back(std::move(dashes));
    }
    // Two clouds where the data has two: above and below the middle of the range.
    const auto [least, most] = std::minmax_element(share.begin(), share.end());
    const double middle = (*least + *most) / 2;
    const bool two = *most > 1.25 * *least;
    Trace fast{Trace::Shape::kPoints, "fast SMs", 4, 6, false, {}, {}, {}, {}, {}};
    Trace slow{Trace::Shape::kPoints, two ? "other SMs" : "SMs", 1, 6, false, {}, {}, {}, {}, {}};
    for (std::size_t i = 0; i < sm.size(); ++i) {
      Trace& cloud = two && share[i] > middle ? fast : slow;
      cloud.x.push_back(sm[i]);
      cloud.y.push_back(share[i]);
    }
    if (!fast.x.empty()) fast.name = fmt::format("{} fast SMs", fast.x.size());
    if (two) slow.name = fmt::format("{} other SMs", slow.x.size());
    panel.traces.push_back(std::move(slow));
    if (!fast.x.empty()) panel.traces.push_back(std::move(fast));
    figure.panels.push_back(std::move(panel));
  }
  figure.show_fullest();
  return figure;
}

std::string schedule_rows(const json& schedule, Page& page) {
  if (!schedule.is_object()) return {};
  const json& speedup = child(schedule, "speedup");
  const json& time = child(schedule, "time_fraction");
  Table table({"simulated against measured schedules", ">rows", ">mean", ">worst"});
  table.row({"speed-up of interleaved over wave", number(get_number(schedule, "n"), 6),
             number(get_number(speedup, "mean")), number(get_number(speedup, "worst"))});
  table.row({"time", number(get_number(schedule, "n"), 6), percent(get_number(time, "mean")),
             percent(get_number(time, "worst"))});
  Figure figure;
  figure.title = "Speed-up of the interleaved schedule, simulated against measured";
  figure.caption = "One point a measured kernel; on the dashed line both agree.";
  figure.x_title = "measured speed-up";
  figure.y_title = "simulated speed-up";
  const json& rows = child(schedule, "rows");
  Trace points{Trace::Shape::kPoints,
               "kernels",
               1,
               6,
               false,
               get_numbers(rows, "measured_speedup"),
               get_numbers(rows, "simulated_speedup"),
               {},
               {},
               {}};
  if (!points.x.empty() && points.x.size() == points.y.size()) {
    const auto [least, most] = std::minmax_element(points.x.begin(), points.x.end());
    Trace same{Trace::Shape::kLimit, "equal",         0,  1,  true,
               {*least, *most},      {*least, *most}, {}, {}, {}};
    figure.panels.push_back({"", "", {std::move(same), std::move(points)}});
  }
  return table.html() + page.place(std::move(figure));
}

}  // namespace

void add_validation(const Document& document, Page& page) {
  const json& content = document.content;
  const Summary windowed = read_summary(child(content, "windowed"));
  const Summary isolated = read_summary(child(content, "isolated"));
  if (windowed.period_median)
    page.add_tile({percent(windowed.period_median), "period error, median", document.file});
  if (windowed.issue_median)
    page.add_tile({microseconds(windowed.issue_median), "issue time error, median", document.file});
  if (isolated.issue_median)
    page.add_tile(
        {microseconds(isolated.issue_median), "isolated burst error, median", document.file});

  const Sorted sorted = sort_series(child(content, "series"));
  std::string body = error_box(document) + error_tables(content);
  Figure knee = knee_figure(sorted);
  const Figure period = gap_figure(sorted, "period_us");
  // Both open on the same set of samples where both have it.
  if (!period.panels.empty())
    for (std::size_t i = 0; i < knee.panels.size(); ++i)
      if (knee.panels[i].group == period.panels[period.shown].group) knee.shown = i;
  body += page.place(std::move(knee));
  body += "<div class=\"pair\">" + page.place(period) + page.place(gap_figure(sorted, "issue_us")) +
          "</div>";
  body += page.place(shares_figure(child(content, "sm_shares")));
  body += schedule_rows(child(content, "schedule"), page);
  page.add("validation", "The model against measurement", body);
}

}  // namespace xstage::report
