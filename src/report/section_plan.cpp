// Plans: what a layer's store bursts will do on the node, and the schedule chosen.
#include <fmt/format.h>

#include "report/page.hpp"

namespace xstage::report {
namespace {

std::string verdict(std::optional<bool> ok, std::string_view good, std::string_view bad) {
  if (!ok) return "–";
  return fmt::format("<span class=\"{}\">{}</span>", *ok ? "good" : "bad", *ok ? good : bad);
}

std::string phase_table(const json& phases) {
  Table table({"phase", ">tile", ">producers", ">remote", ">burst V", ">natural gap",
               ">recovery gap G*", "rate", "capacity", "regime", ">stall a tile"});
  if (!phases.is_array()) return {};
  for (const json& p : phases)
    table.row({escape(get_text(p, "phase", "–")), binary_bytes(get_number(p, "tile_bytes")),
               escape(get_any(p, "producers")), percent(get_number(p, "remote_fraction")),
               bytes(get_number(p, "volume_bytes")), microseconds(get_number(p, "natural_gap_us")),
               microseconds(get_number(p, "recovery_gap_us")),
               verdict(get_bool(p, "rate_ok"), "holds", "exceeded"),
               verdict(get_bool(p, "capacity_ok"), "holds", "exceeded"),
               "<span class=\"whole\">" + escape(get_text(p, "regime", "–")) + "</span>",
               microseconds(get_number(p, "stall_per_tile_us"))});
  return table.empty() ? std::string() : table.html("Store bursts by phase and the two conditions");
}

std::string schedule_table(const json& schedules, const json& choice) {
  Table table({"schedule", ">lead", ">time", ">stall", "by"});
  if (!schedules.is_array()) return {};
  for (const json& s : schedules) {
    const std::string name = get_text(s, "schedule", "–");
    const bool chosen =
        name == get_text(choice, "schedule") && get_any(s, "lead") == get_any(choice, "lead");
    table.row({escape(name) + (chosen ? " <span class=\"chosen\">chosen</span>" : ""),
               escape(get_any(s, "lead")), microseconds(get_number(s, "time_us")),
               microseconds(get_number(s, "stall_us")), escape(get_text(s, "method", "–"))});
  }
  return table.empty() ? std::string() : table.html("Schedules");
}

std::string warnings(const json& content) {
  std::string items;
  const json& list = child(content, "warnings");
  if (list.is_array())
    for (const json& warning : list)
      if (warning.is_string())
        items += fmt::format("<li>{}</li>", escape(warning.get<std::string>()));
  return items.empty() ? items : "<ul class=\"notes\">" + items + "</ul>";
}

}  // namespace

std::string layer_line(const json& layer) {
  if (!layer.is_object()) return "layer not named";
  std::string out = escape(get_text(layer, "shape", get_text(layer, "kind", "layer")));
  const auto part = [&](std::string_view key, std::string_view before, std::string_view after) {
    const std::string value = get_any(layer, key, "");
    if (!value.empty()) out += fmt::format(", {}{}{}", before, escape(value), after);
  };
  if (get_number(layer, "seq")) {
    part("batch", "batch ", "");
    part("seq", "sequence ", "");
    part("heads", "", " heads");
    part("head_dim", "head size ", "");
  } else {
    part("hidden", "hidden ", "");
    part("intermediate", "intermediate ", "");
    part("experts", "", " experts");
    part("topk", "top ", "");
    part("tokens", "", " tokens a rank");
  }
  part("ranks", "", " ranks");
  part("weights", "", "");
  part("routing", "", " routing");
  return out;
}

void add_plan(const Document& document, Page& page) {
  const json& content = document.content;
  const bool one = child(content, "chosen").is_object();  // documents before it have only "choice"
  const json& choice = child(content, one ? "chosen" : "choice");
  std::string body = fmt::format("<h3>{}</h3>", layer_line(child(content, "layer")));
  body += error_box(document);
  if (choice.is_object()) {
    const std::string schedule = get_text(choice, "schedule", get_text(choice, "order", "–"));
    const std::string lead = get_any(choice, "lead", "");
    const std::string mechanism = get_text(choice, "mechanism");
    body += fmt::format("<p class=\"answer\"><strong>{}</strong>{}{}. {}</p>", escape(schedule),
                        lead.empty() ? "" : " with lead " + escape(lead),
                        mechanism.empty() ? "" : ", stores by " + escape(mechanism),
                        escape(sentence(get_text(choice, "reason"))));
  }
  body += phase_table(child(content, "phases"));
  body += schedule_table(child(content, "schedules"), choice);
  body += warnings(content);
  page.add("plans", "Plans", body);
}

}  // namespace xstage::report
