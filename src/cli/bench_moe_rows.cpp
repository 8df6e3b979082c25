#include "cli/bench_moe_rows.hpp"

#include <fmt/format.h>

#include <cmath>

#include "xstage/input_file.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;

bool is_text(const json& object, const char* key) {
  return object.contains(key) && object[key].is_string();
}

/// A number that a time or a size can have.
bool is_size(const json& object, const char* key) {
  if (!object.contains(key) || !object[key].is_number()) return false;
  const auto value = object[key].get<double>();
  return value >= 0 && value <= 1e15;
}

bool is_run(const json& run) {
  if (!run.is_object() || !is_text(run, "dispatch") || !run.contains("time_us") ||
      !run["time_us"].is_object())
    return false;
  const json& us = run["time_us"];
  return is_size(us, "p05") && is_size(us, "p95") && is_size(us, "median") &&
         us["median"].get<double>() > 0 &&
         (!run.contains("predicted_us") || is_size(run, "predicted_us"));
}

bool is_row(const json& row) {
  if (!row.is_object() || !row.contains("layer") || !row["layer"].is_object()) return false;
  const json& layer = row["layer"];
  if (!is_text(layer, "shape") || !is_text(layer, "routing") || !is_text(layer, "weights") ||
      !layer.contains("tokens") || !layer["tokens"].is_number_integer() ||
      !is_size(layer, "tokens") || !layer.contains("ranks") ||
      !layer["ranks"].is_number_integer() || !is_size(layer, "ranks"))
    return false;
  if (!row.contains("runs") || !row["runs"].is_array() || row["runs"].empty()) return false;
  for (const json& run : row["runs"])
    if (!is_run(run)) return false;
  return true;
}

}  // namespace

std::string key_of_row(const json& row) {
  const json& layer = row["layer"];
  return fmt::format("{} {} {} {} {}", layer["shape"].get<std::string>(),
                     layer.value("weights", "w8a8"), layer["routing"].get<std::string>(),
                     layer["tokens"].get<std::int64_t>(), layer["ranks"].get<std::int64_t>());
}

std::vector<json> rows_to_take_up(std::string_view text, const json& document) {
  const auto before = parse_json(text);
  // Pointers, since a file that another program wrote may lack either key.
  const json::json_pointer digest("/provenance/kernel_digest");
  const auto absent = [&](const char* key) { return !before->contains(key); };
  if (!before || !before->is_object() || absent("table") || absent("ok") || absent("rows") ||
      (*before)["table"] != document["table"] || (*before)["ok"] != false ||
      !before->contains(digest) || (*before)[digest] != document[digest] ||
      !(*before)["rows"].is_array())
    return {};
  std::vector<json> rows;
  for (const json& row : (*before)["rows"])
    if (is_row(row)) rows.push_back(row);
  return rows;
}

}  // namespace xstage::cli
