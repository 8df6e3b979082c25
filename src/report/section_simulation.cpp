// Simulated schedules: times, backlog over time and timelines.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "report/page.hpp"

namespace xstage::report {
namespace {

std::string run_name(const json& run) {
  std::string out = get_text(run, "schedule", get_text(run, "order", "run"));
  const std::string lead = get_any(run, "lead", "");
  if (!lead.empty()) out += ", lead " + lead;
  return out;
}

Figure backlog_figure(const json& runs, const std::string& source) {
  Figure figure;
  figure.title = "Backlog in the X-Stage over time";
  figure.caption =
      "Bytes issued and not yet drained. At the dashed capacity the next store stalls, and with it "
      "the tile behind it.";
  figure.source = source;
  figure.x_title = "time (µs)";
  figure.y_title = "backlog (MB)";
  figure.from_zero = true;
  std::map<std::string, Panel> by_rank;
  int colour = 0;
  for (const json& run : runs) {
    const json& backlog = child(run, "backlog");
    if (!backlog.is_array()) continue;
    for (const json& rank : backlog) {
      Trace line{Trace::Shape::kLine,
                 run_name(run),
                 colour,
                 static_cast<int>(runs.size()),
                 false,
                 get_numbers(rank, "time_us"),
                 get_numbers(rank, "backlog_bytes"),
                 {},
                 {},
                 {}};
      if (line.x.size() != line.y.size() || line.x.empty()) continue;
      for (double& y : line.y) y /= 1e6;
      if (line.x.back() > figure.x_until) figure.x_until = line.x.back();
      Panel& panel = by_rank["rank " + get_any(rank, "rank")];
      const auto capacity = get_number(rank, "capacity_bytes");
      const bool has_limit =
          std::any_of(panel.traces.begin(), panel.traces.end(),
                      [](const Trace& t) { return t.shape == Trace::Shape::kLimit; });
      if (capacity && !has_limit)
        panel.traces.push_back({Trace::Shape::kLimit,
                                "capacity",
                                0,
                                1,
                                true,
                                {line.x.front(), line.x.back()},
                                {*capacity / 1e6, *capacity / 1e6},
                                {},
                                {},
                                {}});
      panel.traces.push_back(std::move(line));
    }
    ++colour;
  }
  for (auto& [name, panel] : by_rank) {
    panel.key = name;
    figure.panels.push_back(std::move(panel));
  }
  return figure;
}

// One colour a name, the same in every timeline of a document: waiting is grey, a stall red, work
// takes the rest of the scale.
class Colours {
 public:
  explicit Colours(const json& runs) {
    for (const json& run : runs) {
      const json& names = child(child(run, "timeline"), "names");
      if (!names.is_array()) continue;
      for (const json& name : names)
        if (name.is_string() && !is_wait(name) && name != "stall" && !places_.contains(name)) {
          const std::size_t next = places_.size();
          places_[name] = kWork[next % kWork.size()];
        }
    }
  }
  void paint(Trace& trace) const {
    trace.colours = kScale;
    trace.neutral = is_wait(trace.name);
    const auto found = places_.find(trace.name);
    trace.colour = found == places_.end() ? kStall : found->second;
  }

 private:
  static constexpr int kScale = 7;
  static constexpr int kStall = 5;
  static constexpr std::array<int, 6> kWork{0, 1, 3, 4, 6, 2};
  static bool is_wait(const std::string& name) { return name.starts_with("wait"); }
  std::map<std::string, int> places_;
};

Figure timeline_figure(const json& run, const std::string& source, const Colours& colours) {
  const json& timeline = child(run, "timeline");
  Figure figure;
  figure.title = "Timeline: " + run_name(run);
  figure.caption = get_text(timeline, "shown");
  figure.source = source;
  figure.x_title = "time (µs)";
  const json& tracks = child(timeline, "tracks");
  const json& names = child(timeline, "names");
  if (!tracks.is_array() || !names.is_array()) return figure;
  Panel panel;
  for (const json& name : names) {
    Trace trace;
    trace.shape = Trace::Shape::kSpans;
    trace.name = name.is_string() ? name.get<std::string>() : "?";
    colours.paint(trace);
    panel.traces.push_back(std::move(trace));
  }
  for (const json& track : tracks) {
    const auto row = static_cast<double>(figure.rows.size());
    const std::string sm = get_any(track, "sm", "");
    figure.rows.push_back(fmt::format("rank {} · {}{}", get_any(track, "rank"),
                                      sm.empty() ? "" : "SM " + sm + " · ",
                                      get_text(track, "role", "?")));
    const auto start = get_numbers(track, "start_us");
    const auto duration = get_numbers(track, "duration_us");
    const auto what = get_numbers(track, "what");
    const std::size_t spans = std::min({start.size(), duration.size(), what.size()});
    for (std::size_t i = 0; i < spans; ++i) {
      if (!(what[i] >= 0 && what[i] < static_cast<double>(panel.traces.size()))) continue;
      Trace& trace = panel.traces[static_cast<std::size_t>(what[i])];
      trace.x.push_back(start[i]);
      trace.y.push_back(row);
      trace.width.push_back(duration[i]);
      if (start[i] + duration[i] > figure.x_until) figure.x_until = start[i] + duration[i];
    }
  }
  std::erase_if(panel.traces, [](const Trace& trace) { return trace.x.empty(); });
  if (!panel.traces.empty()) figure.panels.push_back(std::move(panel));
  return figure;
}

}  // namespace

void add_simulation(const Document& document, Page& page) {
  const json& content = document.content;
  const json& runs = child(content, "runs");
  std::string body = fmt::format("<h3>{}</h3>", layer_line(child(content, "layer")));
  body += error_box(document);
  const json& choice = child(content, "choice");
  if (choice.is_object()) {
    const std::string lead = get_any(choice, "lead", "");
    body += fmt::format("<p class=\"answer\"><strong>{}</strong>{}. {}</p>",
                        escape(get_text(choice, "schedule", get_text(choice, "order", "–"))),
                        lead.empty() ? "" : " with lead " + escape(lead),
                        escape(sentence(get_text(choice, "reason"))));
  }
  if (runs.is_array()) {
    Table table({"schedule", ">time", ">stalled", ">stalled, share", ">tiles"});
    for (const json& run : runs) {
      const auto share = get_number(run, "stall_fraction");
      table.row({escape(run_name(run)), with_unit(number(get_number(run, "time_us"), 5), "µs"),
                 microseconds(get_number(run, "stall_us")),
                 share ? with_unit(number(*share * 100), "%") : number(share),
                 number(get_number(run, "tiles"), 9)});
    }
    if (!table.empty()) body += table.html("Simulated schedules");
    body += page.place(backlog_figure(runs, document.file));
    // One time axis for all, so that the eye compares lengths.
    const Colours colours(runs);
    std::vector<Figure> timelines;
    double until = 0;
    for (const json& run : runs) {
      timelines.push_back(timeline_figure(run, document.file, colours));
      until = std::max(until, timelines.back().x_until);
    }
    for (Figure& timeline : timelines) {
      timeline.x_until = until;
      body += page.place(std::move(timeline));
    }
  }
  page.add("simulation", "Simulation", body);
}

}  // namespace xstage::report
