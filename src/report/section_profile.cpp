// The parameters of a node, how well they are known, and what a fit could not determine.
#include <fmt/format.h>

#include <set>

#include "report/page.hpp"

namespace xstage::report {
namespace {

Figure capacity_figure(const json& mechanisms, const std::string& source) {
  Figure figure;
  figure.title = "Outstanding capacity against producers";
  figure.caption = "How much the X-Stage holds before a store stalls. Whiskers: spread of the fit.";
  figure.source = source;
  figure.x_title = "producers K";
  figure.y_title = "capacity Q (MB)";
  figure.from_zero = true;
  if (!mechanisms.is_array()) return figure;
  Panel panel;
  for (const json& mechanism : mechanisms) {
    const json& capacity = child(mechanism, "capacity");
    Trace trace;
    trace.name = fmt::format("{}, {} threads", get_text(mechanism, "mechanism", "?"),
                             get_any(mechanism, "threads"));
    trace.x = get_numbers(capacity, "producers");
    trace.y = get_numbers(capacity, "capacity_bytes");
    const std::vector<double> spread = get_numbers(capacity, "spread_bytes");
    if (trace.x.empty() || trace.x.size() != trace.y.size()) continue;
    for (std::size_t i = 0; i < trace.y.size(); ++i) {
      trace.y[i] /= 1e6;
      if (spread.size() != trace.y.size()) continue;
      trace.low.push_back(trace.y[i] - spread[i] / 1e6);
      trace.high.push_back(trace.y[i] + spread[i] / 1e6);
    }
    trace.colour = static_cast<int>(panel.traces.size());
    panel.traces.push_back(std::move(trace));
  }
  for (Trace& trace : panel.traces) trace.colours = static_cast<int>(panel.traces.size());
  if (!panel.traces.empty()) figure.panels.push_back(std::move(panel));
  return figure;
}

std::string mechanism_table(const json& mechanisms) {
  Table table({"mechanism", ">threads", ">first pass", ">each pass", ">bytes a pass",
               ">left in the SM (S)", ">idle fence"});
  if (!mechanisms.is_array()) return {};
  for (const json& m : mechanisms) {
    const json& issue = child(m, "issue");
    table.row({escape(get_text(m, "mechanism", "?")), escape(get_any(m, "threads")),
               with_unit(number(get_number(issue, "first_pass_us")), "µs"),
               with_unit(number(get_number(issue, "pass_us")), "µs"),
               binary_bytes(get_number(issue, "pass_bytes")),
               bytes(get_number(m, "sm_resident_bytes")),
               with_unit(number(get_number(child(m, "completion"), "idle_fence_us")), "µs")});
  }
  return table.empty() ? std::string() : table.html("Issue time by mechanism");
}

std::string groups_line(const json& gpus) {
  if (!gpus.is_array()) return {};
  std::string out;
  for (const json& gpu : gpus) {
    const json& groups = child(gpu, "groups");
    if (!groups.is_array()) continue;
    std::map<std::size_t, int> by_size;
    for (const json& group : groups) ++by_size[group.size()];
    std::string sizes;
    for (const auto& [size, count] : by_size)
      sizes += fmt::format("{}{} of {} SMs", sizes.empty() ? "" : ", ", count, size);
    out += fmt::format("<li>GPU {}: {} groups ({})</li>", escape(get_any(gpu, "gpu")),
                       groups.size(), sizes);
  }
  return out.empty() ? out : "<p>SMs that share one fair slot at the link:</p><ul>" + out + "</ul>";
}

std::string quality_tables(const json& content) {
  std::string out;
  Table quality({"parameter", ">value", ">spread", ">points", "note"});
  const json& rows = child(content, "quality");
  if (rows.is_array())
    for (const json& row : rows) {
      const std::string unit = get_text(row, "unit");
      quality.row({escape(get_text(row, "parameter", "?")),
                   with_unit(number(get_number(row, "value"), 4), unit),
                   with_unit(number(get_number(row, "spread"), 2), unit),
                   number(get_number(row, "points"), 6), escape(get_text(row, "note"))});
    }
  if (!quality.empty()) out += quality.html("How well each parameter is known");
  const json& missing = child(content, "not_determined");
  std::string items;
  if (missing.is_array())
    for (const json& row : missing)
      items += fmt::format("<li>{}: {}</li>", escape(get_text(row, "parameter", "?")),
                           escape(get_text(row, "why")));
  if (!items.empty()) out += "<p>Not determined by these samples:</p><ul>" + items + "</ul>";
  return out;
}

std::string profile_body(const json& content, const std::string& source, Page& page) {
  const json& rate = child(content, "drain_rate_gb_per_s");
  const json& node = child(content, "node");
  Table table({"profile", "node", ">R, one way", ">R, both ways", ">SM clock"});
  table.row({escape(get_text(content, "name", "–")), escape(get_text(node, "name", "–")),
             with_unit(number(get_number(rate, "one_way"), 4), "GB/s"),
             with_unit(number(get_number(rate, "both_ways"), 4), "GB/s"),
             with_unit(number(get_number(node, "sm_clock_ghz"), 4), "GHz")});
  return table.html() + mechanism_table(child(content, "mechanisms")) +
         page.place(capacity_figure(child(content, "mechanisms"), source)) +
         groups_line(child(content, "sm_groups")) + quality_tables(content);
}

}  // namespace

void add_profile(const Document& document, Page& page) {
  const json& rate = child(document.content, "drain_rate_gb_per_s");
  if (get_number(rate, "one_way"))
    page.add_tile({with_unit(number(get_number(rate, "one_way"), 4), "GB/s"),
                   "drain rate R, one way", document.file});
  page.add("profile", "The node's profile",
           error_box(document) + profile_body(document.content, document.file, page));
}

void add_fit(const Document& document, Page& page) {
  const json& points = child(document.content, "points");
  std::string body = error_box(document);
  body += fmt::format("<p>Fitted to {} points.</p>", number(get_number(points, "used"), 7));
  Table aside({"set aside", ">points"});
  const json& rows = child(points, "set_aside");
  if (rows.is_array())
    for (const json& row : rows)
      aside.row({escape(get_text(row, "why", "–")), number(get_number(row, "points"), 7)});
  if (!aside.empty()) body += aside.html();
  if (child(document.content, "profile").is_object())
    body += profile_body(child(document.content, "profile"), document.file, page);
  page.add("fit", "The fit", body);
}

}  // namespace xstage::report
