// What a calibration found beside the profile: capacity three ways, the onset of back-pressure, SMs
// by size of group, yardsticks, rates between GPUs, how work is given out, signals.
#include <fmt/format.h>

#include <cmath>

#include "report/page.hpp"

namespace xstage::report {
namespace {

constexpr double kBytesPerKilobyte = 1e3;
constexpr double kBytesPerMegabyte = 1e6;

const json& rows_of(const json& content, std::string_view part) {
  static const json none = json::array();
  const json& rows = child(child(content, part), "rows");
  return rows.is_array() ? rows : none;
}

std::string rate(std::optional<double> value) { return with_unit(number(value, 4), "GB/s"); }

/// Points of two columns of rows, those that are numbers.
Trace points_of(const json& rows, const char* x, const char* y, double scale, std::string name,
                int colour, int colours) {
  Trace trace{Trace::Shape::kPoints, std::move(name), colour, colours, false, {}, {}, {}, {}, {}};
  for (const json& row : rows) {
    const auto at = get_number(row, x), value = get_number(row, y);
    if (!at || !value) continue;
    trace.x.push_back(*at);
    trace.y.push_back(*value / scale);
  }
  return trace;
}

/// A figure over the number of producers, unplaced where its first trace has no point.
std::string producers_figure(const Document& document, Page& page, std::string title,
                             std::string caption, std::string y_title, std::vector<Trace> traces) {
  Figure figure;
  figure.title = std::move(title);
  figure.caption = std::move(caption);
  figure.source = document.file;
  figure.x_title = "producers K";
  figure.y_title = std::move(y_title);
  figure.from_zero = true;
  Panel panel;
  panel.traces = std::move(traces);
  if (!panel.traces.front().x.empty()) figure.panels.push_back(std::move(panel));
  return page.place(std::move(figure));
}

std::string capacity_figure(const Document& document, Page& page) {
  const json& rows = rows_of(document.content, "capacity");
  return producers_figure(
      document, page, "Outstanding capacity, three ways",
      "From the issue time of long aligned bursts, from the fence behind them, and from the gap "
      "after which a second burst is undisturbed. The fence misses what SMs of small groups have "
      "drained early.",
      "capacity Q (MB)",
      {points_of(rows, "producers", "isolated_bytes", kBytesPerMegabyte, "aligned bursts", 0, 3),
       points_of(rows, "producers", "fence_bytes", kBytesPerMegabyte, "fence", 1, 3),
       points_of(rows, "producers", "recovery_bytes", kBytesPerMegabyte, "recovery gap", 2, 3)});
}

std::string onset_figure(const Document& document, Page& page) {
  const json& rows = rows_of(document.content, "onset");
  Trace model = points_of(rows, "producers", "predicted_bytes", kBytesPerKilobyte, "model", 1, 2);
  model.shape = Trace::Shape::kLine;
  return producers_figure(
      document, page, "Where back-pressure begins",
      "The smallest burst whose mean issue time exceeds 1.1 T_iss0, all producers starting at one "
      "instant: found by bisection, and by the model.",
      "bytes of a burst (KB)",
      {points_of(rows, "producers", "bytes", kBytesPerKilobyte, "measured", 0, 2),
       std::move(model)});
}

std::string split_figure(const Document& document, Page& page) {
  Figure figure;
  figure.title = "What giving out tiles by group, or one by one, gains";
  figure.caption =
      "Time with equal shares over the time with each policy, for a kernel that computes and then "
      "stores tiles: measured points, the model's lines. Below 1 the policy loses.";
  figure.source = document.file;
  figure.x_title = "work of a tile (µs)";
  figure.y_title = "gain over equal shares";
  Panel panel;
  int colour = 0;
  for (const auto& [policy, name] :
       {std::pair{"by_group", "more to SMs of small groups"}, std::pair{"claimed", "claimed"}}) {
    Trace points{Trace::Shape::kPoints, name, colour, 2, false, {}, {}, {}, {}, {}};
    Trace line{Trace::Shape::kLine, "", colour++, 2, false, {}, {}, {}, {}, {}};
    for (const json& row : rows_of(document.content, "work_split")) {
      const auto work = get_number(row, "work_us");
      const auto gain = get_number(child(row, policy), "gain");
      const auto predicted = get_number(child(row, "predicted"), std::string(policy) + "_gain");
      if (!work) continue;
      if (gain) {
        points.x.push_back(*work);
        points.y.push_back(*gain);
      }
      if (predicted) {
        line.x.push_back(*work);
        line.y.push_back(*predicted);
      }
    }
    if (points.x.empty()) continue;
    panel.traces.push_back(std::move(line));
    panel.traces.push_back(std::move(points));
  }
  if (!panel.traces.empty()) figure.panels.push_back(std::move(panel));
  return page.place(std::move(figure));
}

std::string yardstick_table(const json& content) {
  const json& y = child(content, "yardsticks");
  if (!y.is_object()) return {};
  Table table({"moves one way", ">rate", ">R differs by"});
  table.row({"stores of the probe (R)", rate(get_number(y, "probe_gb_per_s")), "–"});
  table.row({"a plain copy kernel", rate(get_number(y, "copy_kernel_gb_per_s")),
             percent(get_number(y, "copy_kernel_difference_fraction"))});
  table.row({"the copy engine", rate(get_number(y, "copy_engine_gb_per_s")),
             percent(get_number(y, "copy_engine_difference_fraction"))});
  return table.html("R beside what else moves bytes, in the same run");
}

std::string unseen_table(const json& content) {
  const json& validation = child(content, "validation");
  const json& windowed = child(validation, "windowed");
  if (!windowed.is_object()) return {};
  Table table({"unseen points", ">points", ">error, median", ">p95"});
  const auto add = [&](std::string_view name, const json& set, const char* what, auto&& shown) {
    table.row({escape(name), number(get_number(set, "n"), 6),
               shown(get_number(child(set, what), "median")),
               shown(get_number(child(set, what), "p95"))});
  };
  add("loop of bursts, period", windowed, "period", percent);
  add("loop of bursts, mean issue time", windowed, "issue_us", microseconds);
  add("aligned bursts beyond the knee, mean issue time", child(validation, "isolated"), "issue_us",
      microseconds);
  for (const json& row : rows_of(validation, "sm_groups"))
    add(fmt::format("issue time of SMs in groups of {}", get_any(row, "group_sms")), row,
        "issue_fraction", percent);
  return table.html("Random points of the same run that took no part in the fit");
}

std::string between_table(const json& content) {
  const json& between = child(content, "between_gpus");
  if (!between.is_object()) return {};
  Table table({"pattern", ">from", ">to", ">R", ">Q"});
  const auto add = [&](std::string_view name, const json& pattern) {
    const json& sources = child(pattern, "sources");
    if (!sources.is_array()) return;
    for (const json& source : sources) {
      std::string to;
      const json& peers = child(source, "peers");
      if (peers.is_array())
        for (const json& peer : peers) to += (to.empty() ? "" : ", ") + get_any(peer, "to");
      table.row({escape(name), escape(get_any(source, "from")), escape(to),
                 rate(get_number(source, "gb_per_s")),
                 bytes(get_number(source, "capacity_bytes"))});
    }
  };
  for (const auto& [key, name] :
       {std::pair{"pairs", "a pair"}, std::pair{"all_to_one", "all to one"}}) {
    const json& patterns = child(between, key);
    if (patterns.is_array())
      for (const json& pattern : patterns) add(name, pattern);
  }
  add("all to all", child(between, "all_to_all"));
  return table.empty() ? std::string() : table.html("Rates and capacities between GPUs");
}

std::string litmus_table(const json& content) {
  Table table({"payload", "signal", ">messages", ">of them stale"});
  for (const json& row : rows_of(content, "litmus"))
    table.row({escape(get_text(row, "mechanism", "–")), escape(get_text(row, "signal", "–")),
               number(get_number(row, "messages"), 9),
               number(get_number(row, "stale_messages"), 9)});
  return table.empty() ? std::string()
                       : table.html("Message passing, right and deliberately wrong");
}

}  // namespace

void add_calibration(const Document& document, Page& page) {
  const json& content = document.content;
  const json& provenance = child(content, "provenance");
  std::string body = error_box(document);
  body += fmt::format(
      "<h3><code>{}</code></h3><p>{}, {} s, made {} at commit {}.</p>", escape(document.file),
      escape(get_text(child(provenance, "node"), "name", "–")),
      number(get_number(content, "seconds")), escape(get_text(provenance, "created_utc", "–")),
      escape(get_text(provenance, "git_commit", "–").substr(0, 12)));
  body += yardstick_table(content) + unseen_table(content);
  const std::string capacity = capacity_figure(document, page),
                    onset = onset_figure(document, page);
  if (!capacity.empty() || !onset.empty())
    body += "<div class=\"pair\">" + capacity + onset + "</div>";
  body += split_figure(document, page) + between_table(content) + litmus_table(content);
  page.add("calibration", "Calibration of this node", body);
}

}  // namespace xstage::report
