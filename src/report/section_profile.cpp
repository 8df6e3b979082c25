// The parameters of a node, how well they are known, and what a fit could not determine.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "report/page.hpp"
#include "xstage/model/burst_gap.hpp"
#include "xstage/model/profile.hpp"

namespace xstage::report {
namespace {

constexpr double kBytesPerKibi = 1024;
constexpr std::int64_t kStoreBytes = 16;  // bursts are whole 16-byte stores
constexpr int kCurveSteps = 240;
constexpr double kBytesPerMegabyte = 1e6;
// Q depends a little on the burst's last pass of stores; this size fills it for up to 1024 threads.
constexpr std::int64_t kCapacityBurstBytes = 65536;

std::string mechanism_name(const json& m) {
  std::string out =
      fmt::format("{}, {} threads", get_text(m, "mechanism", "?"), get_any(m, "threads"));
  if (get_number(m, "chunk_bytes"))
    out += ", pieces of " + binary_bytes(get_number(m, "chunk_bytes"));
  return out;
}

std::string mechanism_name(const model::MechanismProfile& m) {
  return mechanism_name(json{
      {"mechanism", std::string(model::name(m.mechanism))},
      {"threads", m.threads},
      {"chunk_bytes", m.chunk_bytes > 0 ? json(m.chunk_bytes) : json()},
  });
}

Figure issue_figure(const model::Profile& profile, const std::string& source) {
  Figure figure;
  figure.title = "Issue time of a burst that meets an empty X-Stage (T_iss0)";
  figure.caption =
      "The floor that every burst pays, by mechanism and threads of a block: constant within one "
      "pass of stores, then a step a pass.";
  figure.source = source;
  figure.x_title = "bytes of a burst B (KiB)";
  figure.y_title = "issue time (µs)";
  figure.log_x = figure.log_y = true;
  Panel panel;
  for (const model::MechanismProfile& m : profile.mechanisms) {
    if (m.isolated_issue.empty()) continue;
    Trace points{Trace::Shape::kPoints, mechanism_name(m), 0, 1, false, {}, {}, {}, {}, {}};
    for (const model::CurvePoint& point : m.isolated_issue) {
      points.x.push_back(static_cast<double>(point.bytes) / kBytesPerKibi);
      points.y.push_back(point.us);
    }
    Trace line{Trace::Shape::kLine, "", 0, 1, false, {}, {}, {}, {}, {}};
    const auto first = static_cast<double>(m.isolated_issue.front().bytes);
    const auto last = static_cast<double>(m.isolated_issue.back().bytes);
    for (int i = 0; i <= kCurveSteps; ++i) {
      const double at = first * std::pow(last / first, static_cast<double>(i) / kCurveSteps);
      const auto burst = static_cast<std::int64_t>(at / kStoreBytes) * kStoreBytes;
      line.x.push_back(static_cast<double>(burst) / kBytesPerKibi);
      line.y.push_back(model::staircase_us(m.isolated_issue, burst, m.pass_bytes()));
    }
    line.colour = points.colour = static_cast<int>(panel.traces.size() / 2);
    panel.traces.push_back(std::move(line));
    panel.traces.push_back(std::move(points));
  }
  for (Trace& trace : panel.traces) trace.colours = static_cast<int>(panel.traces.size() / 2);
  if (!panel.traces.empty()) figure.panels.push_back(std::move(panel));
  return figure;
}

Figure capacity_figure(const model::Profile& profile, const std::string& source) {
  Figure figure;
  figure.title = "Outstanding capacity Q against producers";
  figure.caption =
      "What the X-Stage holds before a store stalls: a part of each SM and a part of each group "
      "of SMs that shares a slot at the link. Points: the producer counts that were measured.";
  figure.source = source;
  figure.x_title = "producers K";
  figure.y_title = "capacity Q (MB)";
  figure.from_zero = true;
  Panel panel;
  for (const model::MechanismProfile& m : profile.mechanisms) {
    if (!m.capacity) continue;
    const auto capacity_at = [&](int producers) {
      return model::capacity_bytes(m, *m.capacity, profile.classes(producers),
                                   kCapacityBurstBytes) /
             kBytesPerMegabyte;
    };
    Trace line{Trace::Shape::kLine, "", 0, 1, false, {}, {}, {}, {}, {}};
    for (int producers = 1; producers <= profile.node.sms; ++producers) {
      line.x.push_back(producers);
      line.y.push_back(capacity_at(producers));
    }
    Trace points{Trace::Shape::kPoints, mechanism_name(m), 0, 1, false, {}, {}, {}, {}, {}};
    for (const int producers : m.capacity->producers) {
      if (producers < 1 || producers > profile.node.sms) continue;
      points.x.push_back(producers);
      points.y.push_back(capacity_at(producers));
    }
    line.colour = points.colour = static_cast<int>(panel.traces.size() / 2);
    panel.traces.push_back(std::move(line));
    panel.traces.push_back(std::move(points));
  }
  for (Trace& trace : panel.traces) trace.colours = static_cast<int>(panel.traces.size() / 2);
  if (!panel.traces.empty()) figure.panels.push_back(std::move(panel));
  return figure;
}

std::string mechanism_table(const json& mechanisms) {
  Table table({"mechanism", ">rate of one SM", ">left in the SM (S)", ">gap overhead",
               ">capacity of an SM", ">of a group", "second clock read"});
  if (!mechanisms.is_array()) return {};
  for (const json& m : mechanisms) {
    const json& loop = child(m, "loop");
    const json& capacity = child(m, "capacity");
    table.row(
        {escape(mechanism_name(m)), with_unit(number(get_number(m, "sm_rate_gb_per_s")), "GB/s"),
         bytes(get_number(loop, "residue_bytes")),
         microseconds(get_number(loop, "gap_overhead_us")), bytes(get_number(capacity, "sm_bytes")),
         bytes(get_number(capacity, "group_bytes")), escape(get_text(m, "clock", "–"))});
  }
  return table.empty() ? std::string() : table.html("Ways to store, as they were probed");
}

std::string groups_line(const json& gpus) {
  if (!gpus.is_array()) return {};
  std::string out;
  for (const json& gpu : gpus) {
    const json& groups = child(gpu, "groups");
    if (!groups.is_array() || groups.empty()) continue;
    std::map<std::size_t, int> by_size;
    for (const json& group : groups) ++by_size[group.size()];
    std::string sizes;
    for (const auto& [size, count] : by_size)
      sizes += fmt::format("{}{} of {} SMs", sizes.empty() ? "" : ", ", count, size);
    out += fmt::format("<li>GPU {}: {} groups ({})</li>", escape(get_any(gpu, "gpu")),
                       groups.size(), sizes);
  }
  if (out.empty()) return out;
  return "<p>SMs that share one fair slot at the link:</p><ul>" + out + "</ul>";
}

std::string list(const std::string& heading, const std::string& items) {
  return items.empty() ? items : "<p>" + heading + "</p><ul>" + items + "</ul>";
}

std::string not_determined(const json& mechanisms) {
  std::string items;
  if (!mechanisms.is_array()) return items;
  for (const json& m : mechanisms) {
    const json& texts = child(m, "undetermined");
    if (!texts.is_array()) continue;
    for (const json& text : texts)
      if (text.is_string())
        items += fmt::format("<li>{}: {}</li>", escape(mechanism_name(m)),
                             escape(text.get<std::string>()));
  }
  return list("Not determined by these samples:", items);
}

std::string notes(const json& texts) {
  std::string items;
  if (texts.is_array())
    for (const json& text : texts)
      if (text.is_string()) items += fmt::format("<li>{}</li>", escape(text.get<std::string>()));
  return list("The fit adds:", items);
}

std::string profile_body(const json& content, const std::string& source, Page& page) {
  const json& drain = child(content, "drain");
  const json& node = child(content, "node");
  const json& mechanisms = child(content, "mechanisms");
  Table table({"node", ">SMs", ">SM clock", ">R, one way", ">R, both ways"});
  table.row({escape(get_text(node, "name", "–")), escape(get_any(node, "sms")),
             with_unit(number(get_number(node, "sm_clock_ghz"), 4), "GHz"),
             with_unit(number(get_number(drain, "one_way_gb_per_s"), 4), "GB/s"),
             with_unit(number(get_number(drain, "both_ways_gb_per_s"), 4), "GB/s")});
  std::string plots;
  if (const Result<model::Profile> profile = model::profile_from_json(content))
    plots = "<div class=\"pair\">" + page.place(issue_figure(*profile, source)) +
            page.place(capacity_figure(*profile, source)) + "</div>";
  else
    plots = fmt::format("<p class=\"failed\"><code>{}</code>: {}</p>", escape(source),
                        escape(profile.error().message()));
  return table.html() + mechanism_table(mechanisms) + plots +
         groups_line(child(content, "topology")) + not_determined(mechanisms) +
         notes(child(content, "notes"));
}

}  // namespace

void add_profile(const Document& document, Page& page) {
  const json& drain = child(document.content, "drain");
  if (get_number(drain, "one_way_gb_per_s"))
    page.add_tile({with_unit(number(get_number(drain, "one_way_gb_per_s"), 4), "GB/s"),
                   "drain rate R, one way", document.file});
  page.add("profile", "The node's profile",
           error_box(document) + profile_body(document.content, document.file, page));
}

void add_fit(const Document& document, Page& page) {
  const json& points = child(document.content, "points");
  std::string body = error_box(document);
  body += fmt::format("<p>Fitted to {} samples.</p>", number(get_number(points, "used"), 7));
  Table aside({"set aside", ">samples"});
  const json& rows = child(points, "set_aside");
  if (rows.is_array())
    for (const json& row : rows)
      aside.row({escape(get_text(row, "why", "–")), number(get_number(row, "points"), 7)});
  if (!aside.empty()) body += aside.html();
  const json& profile = child(document.content, "profile");
  // A fit usually lies beside the profile it wrote; then the profile is shown once.
  if (profile.is_object() && !page.has("profile"))
    body += profile_body(profile, document.file, page);
  page.add("fit", "The fit", body);
}

}  // namespace xstage::report
