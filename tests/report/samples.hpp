// Documents of every kind a report shows, with the texts that a test wants in them.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/documents.hpp"

namespace xstage::report::test {

inline constexpr double kDrainBytesPerUs = 373e3;

/// `text` stands wherever a document holds a name or sentence of its writer.
inline json provenance(const std::string& text) {
  return {{"tool", "xstage"},
          {"version", "0.1.0"},
          {"verb", text},
          {"created_utc", "2026-01-01T00:00:00Z"},
          {"inputs", {{{"file", text}, {"xxh128", text}, {"rows", 3}}}},
          {"node", {{"name", text}, {"gpus", 2}, {"sms", 132}, {"sm_clock_ghz", 1.98}}},
          {"assumed", {text}},
          {"notes", {text}}};
}

inline json layer(const std::string& text) {
  return {{"kind", "moe"},   {"shape", text},  {"hidden", 2048}, {"intermediate", 768},
          {"experts", 128},  {"topk", 8},      {"tokens", 8192}, {"ranks", 2},
          {"weights", text}, {"routing", text}};
}

inline json window_series(double producers, double bytes, const std::string& text) {
  json measured{{"gap_us", json::array()},
                {"period_us", json::array()},
                {"issue_us", json::array()},
                {"issue_p05_us", json::array()},
                {"issue_p95_us", json::array()}};
  for (int i = 0; i < 9; ++i) {
    const double gap = 3.0 * i;
    const double drain = producers * bytes / kDrainBytesPerUs;
    const double issue = std::max(0.45, drain - gap);
    measured["gap_us"].push_back(gap);
    measured["period_us"].push_back(std::max(0.45 + gap, drain));
    measured["issue_us"].push_back(issue);
    measured["issue_p05_us"].push_back(issue * 0.8);
    measured["issue_p95_us"].push_back(issue * 1.3);
  }
  return {{"experiment", "window"}, {"mechanism", text},      {"threads", 256},
          {"direction", "uni"},     {"producers", producers}, {"bytes", bytes},
          {"source", text},         {"x", "gap_us"},          {"y", {"period_us", "issue_us"}},
          {"measured", measured},   {"model", measured}};
}

inline json validation(const std::string& text) {
  const json errors{{"n", 412},
                    {"period", {{"median", 0.0019}, {"p95", 0.0088}}},
                    {"issue_us", {{"median", 0.008}, {"p95", 0.11}}}};
  json series = json::array();
  for (const double producers : {66.0, 132.0})
    for (const double bytes : {16384.0, 32768.0})
      series.push_back(window_series(producers, bytes, text));
  json knee{{"volume_bytes", json::array()}, {"issue_us", json::array()}};
  for (int i = 0; i < 8; ++i) {
    knee["volume_bytes"].push_back(132 * 4096.0 * (1 << i));
    knee["issue_us"].push_back(0.1 + 0.3 * (1 << i));
  }
  series.push_back({{"experiment", "isolated"},
                    {"mechanism", text},
                    {"threads", 256},
                    {"direction", "uni"},
                    {"producers", 132},
                    {"bytes", nullptr},
                    {"source", text},
                    {"x", "volume_bytes"},
                    {"measured", knee},
                    {"model", knee}});
  return {{"format", "xstage.validation/1"},
          {"provenance", provenance(text)},
          {"windowed", errors},
          {"isolated", errors},
          {"by_regime", {{"drain-limited", errors}, {text, errors}}},
          {"by_set", {{{"set", text}, {"n", 0}, {"period", nullptr}, {"issue_us", nullptr}}}},
          {"folds", {{{"left_out", text}, {"n", 60}}}},
          {"laws", {{{"law", text}, {"period", {{"median", 0.47}, {"p95", 0.51}}}}}},
          {"series", series},
          {"sm_shares",
           {{{"source", text},
             {"gpu", 0},
             {"mechanism", text},
             {"producers", 4},
             {"threads", 256},
             {"bytes", 16384},
             {"gap_us", 0},
             {"sm", {0, 1, 2, 3}},
             {"bursts", {60, 60, 60, 90}},
             {"predicted_share", {0.9, 0.9, 0.9, 1.35}}}}}};
}

inline json profile(const std::string& text) {
  const json curve{{"bytes", {4096, 8192, 32768}}, {"us", {0.09, 0.13, 0.46}}};
  const json errors{{"points", 0}, {"median_us", nullptr}, {"p95_us", nullptr}};
  return {
      {"format", "xstage.profile/1"},
      {"name", text},
      {"provenance", {{"tool", text}, {"created_utc", "2026-01-01T00:00:00Z"}, {"files", {text}}}},
      {"node", {{"name", text}, {"gpus", 1}, {"sms", 10}, {"sm_clock_ghz", 1.98}}},
      {"drain", {{"one_way_gb_per_s", 373.0}, {"both_ways_gb_per_s", nullptr}}},
      {"mechanisms",
       {{{"mechanism", "st_v4"},
         {"threads", 256},
         {"chunk_bytes", nullptr},
         {"clock", text},
         {"sm_rate_gb_per_s", 50.7},
         {"isolated_issue", curve},
         {"steady_issue", nullptr},
         {"loop", nullptr},
         {"capacity",
          {{"sm_bytes", 1.6e4},
           {"group_bytes", 1.6e4},
           {"last_pass_max_bytes", 1.1e4},
           {"producers", {4, 10}}}},
         {"undetermined", {text}}}}},
      {"topology",
       {{{"gpu", 0},
         {"groups", {{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9}}},
         {"order", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}}}},
      {"quality",
       {{"windowed_period",
         {{"points", 0}, {"median_fraction", nullptr}, {"p95_fraction", nullptr}}},
        {"windowed_issue", errors},
        {"isolated_issue", errors}}},
      {"notes", {text}}};
}

inline json plan(const std::string& text) {
  return {
      {"format", "xstage.plan/1"},
      {"provenance", provenance(text)},
      {"layer", layer(text)},
      {"phases",
       {{{"phase", text},
         {"tile_bytes", 32768},
         {"producers", 132},
         {"remote_fraction", 0.5},
         {"volume_bytes", 2162688},
         {"natural_gap_us", 3.3},
         {"recovery_gap_us", 5.4},
         {"rate_ok", false},
         {"capacity_ok", true},
         {"regime", text},
         {"stall_per_tile_us", 2.1}}}},
      {"schedules",
       {{{"schedule", "wave"},
         {"lead", nullptr},
         {"time_us", 3093},
         {"stall_us", 540},
         {"method", text}},
        {{"schedule", "interleaved"},
         {"lead", 1},
         {"time_us", 2867},
         {"stall_us", 12},
         {"method", text}}}},
      {"choice", {{"schedule", "interleaved"}, {"lead", 1}, {"mechanism", text}, {"reason", text}}},
      {"warnings", {text}}};
}

inline json simulation(const std::string& text) {
  json runs = json::array();
  for (const char* schedule : {"wave", "interleaved"})
    runs.push_back({{"schedule", schedule},
                    {"lead", nullptr},
                    {"time_us", 30.0},
                    {"stall_us", 3.0},
                    {"stall_fraction", 0.1},
                    {"tiles", 12},
                    {"backlog",
                     {{{"rank", 0},
                       {"time_us", {0, 10, 20, 30}},
                       {"backlog_bytes", {0, 1e6, 2e6, 0}},
                       {"capacity_bytes", 2.2e6}}}},
                    {"timeline",
                     {{"tracks",
                       {{{"rank", 0},
                         {"sm", 0},
                         {"role", text},
                         {"start_us", {0, 9, 12}},
                         {"duration_us", {9, 3, 9}},
                         {"what", {0, 1, 0}}}}},
                      {"names", {"Linear-1", text}},
                      {"shown", text}}}});
  return {{"format", "xstage.simulation/1"},
          {"provenance", provenance(text)},
          {"layer", layer(text)},
          {"runs", runs},
          {"choice", {{"schedule", "interleaved"}, {"lead", 2}, {"reason", text}}}};
}

inline std::vector<json> all_documents(const std::string& text) {
  const json failed{{"kind", "timeout"}, {"exit_code", 5}, {"message", text}};
  return {validation(text),
          profile(text),
          plan(text),
          simulation(text),
          {{"format", "xstage.fit/1"},
           {"provenance", provenance(text)},
           {"points", {{"used", 10}, {"set_aside", {{{"why", text}, {"points", 2}}}}}},
           {"profile", profile(text)}},
          {{"format", "xstage.prediction/1"},
           {"provenance", provenance(text)},
           {"input", {{"producers", 132}, {"bytes", 32768}, {"gap_us", 5}, {"mechanism", text}}},
           {"regime", text},
           {"issue_us", 6.55}},
          {{"format", "xstage.run/1"},
           {"provenance", provenance(text)},
           {"layer", layer(text)},
           {"backend", text},
           {"schedules",
            {{{"schedule", text},
              {"seconds", 1.2},
              {"max_error", 0.1},
              {"bound", 0.2},
              {"bits_digest", text},
              {"ok", true}}}}},
          {{"format", "xstage.bench/1"},
           {"provenance", provenance(text)},
           {"layer", layer(text)},
           {"rows",
            {{{"what", text}, {"baseline_of", text}, {"time_us", {{"median", 3}}}, {"runs", 9}}}}},
          {{"format", "xstage.doctor/1"},
           {"provenance", provenance(text)},
           {"error", failed},
           {"usable", {{text, {{"ok", false}, {"why", text}}}}}},
          {{"format", "xstage.summary/1"},
           {"provenance", provenance(text)},
           {"title", text},
           {"headline", text},
           {"figures",
            {{{"label", text}, {"value", 0.19}, {"unit", text}, {"from", text}},
             {{"label", "b"}, {"value", text}, {"unit", "%"}, {"from", "c"}}}}}};
}

/// All documents as a collection, the file names being `name`0.json, `name`1.json, …
inline Collection collection(const std::string& text, const std::string& name = "document") {
  Collection out;
  for (const json& content : all_documents(text)) {
    const std::string file = name + std::to_string(out.documents.size()) + ".json";
    out.documents.push_back(parse_document(file, content.dump()).value());
  }
  return out;
}

}  // namespace xstage::report::test
