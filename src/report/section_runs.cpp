// Short tables: predictions, runs against the reference, benchmarks, what a machine can do.
#include <fmt/format.h>

#include "report/page.hpp"

namespace xstage::report {
namespace {

std::string ok_mark(std::optional<bool> ok, std::string_view good, std::string_view bad) {
  if (!ok) return "–";
  return fmt::format("<span class=\"{}\">{}</span>", *ok ? "good" : "bad", *ok ? good : bad);
}

}  // namespace

void add_prediction(const Document& document, Page& page) {
  const json& c = document.content;
  const json& input = child(c, "input");
  Table table({"file", ">K", ">B", ">gap", "mechanism", "regime", ">issue time", ">overhead",
               ">period", ">recovery gap G*"});
  table.row(
      {escape(document.file), escape(get_any(input, "producers")),
       binary_bytes(get_number(input, "bytes")), microseconds(get_number(input, "gap_us")),
       escape(get_text(input, "mechanism", "–")), escape(get_text(c, "regime", "–")),
       microseconds(get_number(c, "issue_us")), microseconds(get_number(c, "issue_overhead_us")),
       microseconds(get_number(c, "period_us")), microseconds(get_number(c, "recovery_gap_us"))});
  page.add("predictions", "Predictions", error_box(document) + table.html());
}

void add_run(const Document& document, Page& page) {
  const json& c = document.content;
  std::string body = fmt::format("<h3>{}</h3>", layer_line(child(c, "layer")));
  body += error_box(document);
  Table table({"schedule", ">lead", ">time", ">largest error", ">allowed", "bits", "result"});
  const json& schedules = child(c, "schedules");
  if (schedules.is_array())
    for (const json& s : schedules)
      table.row({escape(get_text(s, "schedule", get_text(s, "order", "–"))),
                 escape(get_any(s, "lead")), with_unit(number(get_number(s, "seconds")), "s"),
                 number(get_number(s, "max_error")), number(get_number(s, "bound")),
                 "<code>" + escape(get_text(s, "bits_digest", "–").substr(0, 12)) + "</code>",
                 ok_mark(get_bool(s, "ok"), "agrees", "differs")});
  if (!table.empty())
    body +=
        table.html(fmt::format("{} backend against the reference", get_text(c, "backend", "?")));
  page.add("runs", "Runs with real numbers", body);
}

/// One layer's times: its heading and its table.
std::string bench_layer(const json& layer, const json& rows) {
  Table table({"what", "baseline of", ">median", ">p5", ">p95", ">runs"});
  if (rows.is_array())
    for (const json& row : rows) {
      const json& time = child(row, "time_us");
      table.row({escape(get_text(row, "what", "–")), escape(get_text(row, "baseline_of")),
                 microseconds(get_number(time, "median")), microseconds(get_number(time, "p05")),
                 microseconds(get_number(time, "p95")), escape(get_any(row, "runs"))});
    }
  return fmt::format("<h3>{}</h3>", layer_line(layer)) + (table.empty() ? "" : table.html());
}

void add_bench(const Document& document, Page& page) {
  const json& c = document.content;
  std::string body = error_box(document);
  const json& layers = child(c, "layers");
  if (layers.is_array())
    for (const json& entry : layers)
      body += bench_layer(child(entry, "layer"), child(entry, "rows"));
  else
    body += bench_layer(child(c, "layer"), child(c, "rows"));
  page.add("bench", "Benchmarks", body);
}

void add_doctor(const Document& document, Page& page) {
  const json& usable = child(document.content, "usable");
  Table table({"what", "usable", "why"});
  if (usable.is_object())
    for (const auto& [what, state] : usable.items())
      table.row({escape(what), ok_mark(get_bool(state, "ok"), "yes", "no"),
                 escape(get_text(state, "why"))});
  page.add("machine", "The machine",
           error_box(document) + (table.empty() ? std::string() : table.html()));
}

}  // namespace xstage::report
