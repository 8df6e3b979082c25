#include "report/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "report/assets.hpp"
#include "xstage/version.hpp"

namespace xstage::report {
namespace {

// Reading order of the sections; kinds not listed come last.
constexpr std::array<std::pair<std::string_view, void (*)(const Document&, Page&)>, 10> kSections{{
    {"validation", add_validation},
    {"calibration", add_calibration},
    {"profile", add_profile},
    {"fit", add_fit},
    {"plan", add_plan},
    {"simulation", add_simulation},
    {"run", add_run},
    {"bench", add_bench},
    {"prediction", add_prediction},
    {"doctor", add_doctor},
}};

std::string figure_id(std::size_t index) { return fmt::format("plot-{}", index + 1); }

// A script of the page carries this number, a script that came in through a document could not: it
// is drawn when the page is made. Second lock behind escaping.
std::string nonce() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
}

// JSON inside a script element: '<' is legal only inside strings, so this keeps the value.
std::string script_json(const json& value) {
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

std::string summary_box(const Collection& collection, const Page& page) {
  std::string headline;
  std::string tiles;
  const auto tile = [&](const std::string& value_html, std::string_view label,
                        std::string_view from) {
    tiles += fmt::format(
        "<div class=\"tile\"><div class=\"value\">{}</div><div class=\"label\">{}</div>"
        "<div class=\"from\">{}</div></div>",
        value_html, escape(label), escape(from));
  };
  bool own = false;
  for (const Document& document : collection.documents) {
    if (document.kind != "summary") continue;
    const std::string text = get_text(document.content, "headline");
    if (!text.empty()) headline += fmt::format("<p>{}</p>", escape(text));
    const json& figures = child(document.content, "figures");
    if (!figures.is_array()) continue;
    for (const json& figure : figures) {
      own = true;
      tile(with_unit(escape(get_any(figure, "value")), get_text(figure, "unit")),
           get_text(figure, "label"), get_text(figure, "from", document.file));
    }
  }
  // Without a summary document the sections' own key figures stand in.
  if (!own)
    for (const Tile& t : page.tiles()) tile(t.value, t.label, t.from);
  std::string out = headline;
  if (!tiles.empty()) out += "<div class=\"tiles\">" + tiles + "</div>";
  if (out.empty()) out = fmt::format("<p>{} documents.</p>", collection.documents.size());
  return "<section class=\"summary\" id=\"summary\" aria-label=\"Summary\">" + out + "</section>";
}

std::string problems_box(const Collection& collection) {
  if (collection.problems.empty()) return {};
  std::string items;
  for (const Problem& problem : collection.problems)
    items += fmt::format("<li><code>{}</code>: {}</li>", escape(problem.file), escape(problem.why));
  return "<section class=\"problems\" role=\"alert\"><p>Not shown, since they could not be "
         "used:</p>"
         "<ul>" +
         items + "</ul></section>";
}

std::string files_section(const Collection& collection) {
  Table table({"file", "kind", "made by", "when (UTC)", "from"});
  std::string notes;
  for (const Document& document : collection.documents) {
    const json& provenance = child(document.content, "provenance");
    std::string inputs;
    const json& list = child(provenance, "inputs");
    if (list.is_array())
      for (const json& input : list)
        inputs += fmt::format("{}<span title=\"digest {}\">{}</span>", inputs.empty() ? "" : ", ",
                              escape(get_text(input, "xxh128", "unknown")),
                              escape(get_text(input, "file", "?")));
    table.row({"<code>" + escape(document.file) + "</code>", escape(document.kind),
               escape(fmt::format("{} {} {}", get_text(provenance, "tool", "?"),
                                  get_text(provenance, "version"), get_text(provenance, "verb"))),
               escape(get_text(provenance, "created_utc", "–")), inputs.empty() ? "–" : inputs});
    for (const char* key : {"assumed", "notes"}) {
      const json& texts = child(provenance, key);
      if (!texts.is_array()) continue;
      for (const json& text : texts)
        if (text.is_string())
          notes += fmt::format("<li><code>{}</code>{}: {}</li>", escape(document.file),
                               key == std::string_view("assumed") ? ", assumed" : "",
                               escape(text.get<std::string>()));
    }
  }
  std::string out = "<section id=\"files\"><h2>Files and provenance</h2>" + table.html();
  if (!notes.empty()) out += "<ul class=\"notes\">" + notes + "</ul>";
  if (!collection.timelines.empty()) {
    out += "<p>Timelines for Perfetto:";
    for (const std::string& file : collection.timelines)
      out += fmt::format(" <code>{}</code>", escape(file));
    out += "</p>";
  }
  return out + "</section>";
}

std::string node_line(const Collection& collection) {
  for (const Document& document : collection.documents) {
    const json& node = child(child(document.content, "provenance"), "node");
    if (!node.is_object()) continue;
    std::string out = get_text(node, "name");
    const std::string driver = get_text(node, "driver");
    if (!driver.empty() && out.find(driver) == std::string::npos) out += ", driver " + driver;
    if (get_number(node, "sm_clock_ghz"))
      out += fmt::format(", SM clock {} GHz", number(get_number(node, "sm_clock_ghz"), 4));
    return out;
  }
  // Documents that rest on a profile name its node.
  for (const Document& document : collection.documents)
    for (const std::string& name : {get_text(child(document.content, "node"), "name"),
                                    get_text(child(document.content, "profile"), "node")})
      if (!name.empty()) return name;
  return {};
}

std::string page_title(const Collection& collection, std::string_view fallback) {
  for (const Document& document : collection.documents)
    if (document.kind == "summary" && !get_text(document.content, "title").empty())
      return get_text(document.content, "title");
  return std::string(fallback);
}

}  // namespace

std::string Page::place(Figure figure) {
  if (figure.size() == 0) return {};
  const std::string id = figure_id(figures_.size());
  std::string out = fmt::format(
      "<figure><h4>{}</h4><div class=\"pick\" data-for=\"{}\"></div>"
      "<div class=\"plot{}\" id=\"{}\" role=\"img\" aria-label=\"{}\"></div><figcaption>{}{}"
      "</figcaption></figure>",
      escape(figure.title), id, figure.rows.empty() ? "" : " rows", id, escape(figure.title),
      escape(figure.caption),
      figure.source.empty()
          ? ""
          : fmt::format(" <span class=\"source\">{}</span>", escape(figure.source)));
  figures_.push_back(std::move(figure));
  return out;
}

void Page::add(std::string_view id, std::string_view title, std::string body) {
  const auto found = std::find_if(sections_.begin(), sections_.end(),
                                  [&](const Section& section) { return section.id == id; });
  if (found == sections_.end())
    sections_.push_back({std::string(id), std::string(title), std::move(body)});
  else
    found->body += body;
}

bool Page::has(std::string_view id) const {
  return std::any_of(sections_.begin(), sections_.end(),
                     [&](const Section& section) { return section.id == id; });
}

std::string error_box(const Document& document) {
  const json& error = child(document.content, "error");
  if (!error.is_object()) return {};
  return fmt::format("<p class=\"failed\"><code>{}</code> ended with exit code {}: {}</p>",
                     escape(document.file), escape(get_any(error, "exit_code")),
                     escape(get_text(error, "message")));
}

std::string render(const Collection& collection, std::string_view title, PageCounts* counts) {
  Page page;
  for (const auto& [kind, add] : kSections)
    for (const Document& document : collection.documents)
      if (document.kind == kind) add(document, page);

  const std::string heading = escape(page_title(collection, title));
  const std::string key = nonce();
  const bool plots = !plot_script().empty();
  std::string figures = "[";
  std::size_t points = 0;
  for (const Figure& figure : page.figures()) {
    if (figures.size() > 1) figures += ",";
    figures += script_json(to_json(figure));
    points += figure.size();
  }
  figures += "]";

  std::string out;
  out.reserve(plot_script().size() + figures.size() + (1U << 18));
  out += "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  out += fmt::format(
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "script-src 'nonce-{}'; style-src 'unsafe-inline'; img-src data: blob:\">\n",
      key);
  out +=
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n";
  out += fmt::format("<meta name=\"generator\" content=\"xstage {}\">\n", version());
  out += fmt::format("<title>{} · xstage</title>\n<style>\n", heading);
  out += style_sheet();
  out += "</style>\n</head>\n<body>\n";
  out += fmt::format(
      "<header><p class=\"kicker\">xstage report</p><h1>{}</h1><p class=\"node\">{}"
      "</p></header>\n<main>\n",
      heading, escape(node_line(collection)));
  out += summary_box(collection, page) + problems_box(collection);
  out += "<nav aria-label=\"Sections\">";
  for (const Section& section : page.sections())
    out += fmt::format("<a href=\"#{}\">{}</a>", section.id, escape(section.title));
  out += "<a href=\"#files\">Files and provenance</a></nav>\n";
  if (!plots)
    out +=
        "<p class=\"failed\">This xstage was built without the plotting script, so the plots are "
        "missing; the build's messages say how to get it.</p>\n";
  for (const Section& section : page.sections())
    out += fmt::format("<section id=\"{}\"><h2>{}</h2>{}</section>\n", section.id,
                       escape(section.title), section.body);
  out += files_section(collection);
  out += fmt::format(
      "</main>\n<footer>Written by xstage {}. Everything this page needs is inside "
      "it; it opens without a network.</footer>\n",
      version());
  out += "<script type=\"application/json\" id=\"figures\">" + figures + "</script>\n";
  if (plots) {
    out += fmt::format("<script nonce=\"{}\">", key);
    out += plot_script();
    out += fmt::format("</script>\n<script nonce=\"{}\">\n", key);
    out += page_script();
    out += "</script>\n";
  }
  out += "</body>\n</html>\n";
  if (counts != nullptr) *counts = {plots ? page.figures().size() : 0, plots ? points : 0};
  return out;
}

}  // namespace xstage::report
