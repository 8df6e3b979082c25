#include "cli/spans_audit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "xstage/input_file.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;

constexpr double kMostUs = 1e15;  // thirty years: sums of times stay finite

Error wrong(const std::string& file, const std::string& key, const std::string& value,
            const std::string& allowed) {
  return bad_input(file + " is no file of spans", key, value, allowed);
}

/// Times of one block: numbers, not negative, in ascending order where they are starts.
Result<std::vector<double>> times(const json& block, const char* key, const std::string& file) {
  if (!block.contains(key) || !block[key].is_array())
    return wrong(file, key, "absent", "an array of times in µs");
  std::vector<double> out;
  for (const json& value : block[key]) {
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= kMostUs))
      return wrong(file, key, value.dump(), "times from 0 to 1e15 us");
    out.push_back(value.get<double>());
  }
  return out;
}

json spread(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double v : values) sum += v;
  const auto at = [&](double q) {
    return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return {{"p05", at(0.05)},
          {"p50", at(0.5)},
          {"mean", sum / static_cast<double>(values.size())},
          {"p95", at(0.95)}};
}

}  // namespace

Result<KernelSpans> read_spans(const std::filesystem::path& path) {
  auto in = open_input(path, "--from-spans");
  if (!in) return in.error();
  return parse_spans(*in, path.filename().string());
}

Result<KernelSpans> parse_spans(std::istream& in, const std::string& file) {
  const json document = parse_json(in).value_or(json());
  if (!document.is_object())
    return wrong(file, "--from-spans", file, "JSON, as SpanCollector::json() writes it");
  if (!document.contains("format") || document["format"] != "xstage.spans/1")
    return wrong(file, "format", document.contains("format") ? document["format"].dump() : "absent",
                 "xstage.spans/1");
  KernelSpans out;
  const std::pair<const char*, std::int64_t> most[] = {{"bytes", std::int64_t{1} << 40},
                                                       {"threads", 1024},
                                                       {"gpu", 1023},
                                                       {"dropped", std::int64_t{1} << 53}};
  for (const auto& [key, limit] : most)
    if (!document.contains(key) || !document[key].is_number_integer() || document[key] < 0 ||
        document[key] > limit)
      return wrong(file, key, document.contains(key) ? document[key].dump() : "absent",
                   fmt::format("a whole number from 0 to {}", limit));
  out.kernel = document.contains("kernel") && document["kernel"].is_string()
                   ? document["kernel"].get<std::string>()
                   : "";
  out.bytes = document["bytes"];
  out.threads = document["threads"];
  out.gpu = document["gpu"];
  out.dropped = document["dropped"];
  if (out.bytes == 0) return wrong(file, "bytes", "0", "the bytes of one burst");
  if (document.contains("both_ways") && document["both_ways"].is_boolean())
    out.both_ways = document["both_ways"];
  const std::string mechanism = document.contains("mechanism") && document["mechanism"].is_string()
                                    ? document["mechanism"].get<std::string>()
                                    : "";
  const auto known = model::mechanism_named(mechanism);
  if (!known) return wrong(file, "mechanism", mechanism, "st_v1, st_v2, st_v4 or tma_bulk");
  out.mechanism = *known;
  if (!document.contains("blocks") || !document["blocks"].is_array())
    return wrong(file, "blocks", "absent", "an array of blocks");
  for (const json& one : document["blocks"]) {
    if (!one.is_object()) return wrong(file, "blocks", one.dump(), "objects");
    KernelSpans::Block block;
    block.sm = one.contains("sm") && one["sm"].is_number_integer() ? one["sm"].get<int>() : -1;
    Result<std::vector<double>> start = times(one, "start_us", file);
    if (!start) return start.error();
    Result<std::vector<double>> issue = times(one, "issue_us", file);
    if (!issue) return issue.error();
    if (start->size() != issue->size())
      return wrong(file, "issue_us", std::to_string(issue->size()) + " entries",
                   std::to_string(start->size()) + ", as start_us");
    if (start->empty()) continue;
    block.start_us = std::move(start).value();
    block.issue_us = std::move(issue).value();
    out.blocks.push_back(std::move(block));
  }
  if (out.blocks.empty()) return wrong(file, "blocks", "[]", "at least one block with a burst");
  return out;
}

Result<json> audit_spans(const KernelSpans& spans, const model::Profile& profile) {
  std::vector<double> issue, gap, period;
  double stalled = 0, total = 0;
  for (const KernelSpans::Block& block : spans.blocks) {
    for (std::size_t i = 0; i < block.start_us.size(); ++i) {
      issue.push_back(block.issue_us[i]);
      if (i + 1 == block.start_us.size()) continue;
      period.push_back(block.start_us[i + 1] - block.start_us[i]);
      gap.push_back(std::max(0.0, period.back() - block.issue_us[i]));
    }
    total += block.start_us.back() + block.issue_us.back() - block.start_us.front();
  }
  const int producers = static_cast<int>(spans.blocks.size());
  const json issue_spread = spread(issue), gap_spread = spread(gap), period_spread = spread(period);
  json out{{"kernel", spans.kernel},
           {"producers", producers},
           {"bytes", spans.bytes},
           {"volume_bytes", producers * spans.bytes},
           {"mechanism", model::name(spans.mechanism)},
           {"threads", spans.threads},
           {"bursts", issue.size()},
           {"dropped", spans.dropped},
           {"issue_us", issue_spread},
           {"gap_us", gap_spread},
           {"period_us", period_spread},
           {"predicted", nullptr},
           {"hints", json::array()}};
  json hints = json::array();
  if (spans.dropped > 0)
    hints.push_back(fmt::format("{} bursts did not fit in the buffer of spans and are not counted",
                                spans.dropped));
  if (gap.empty()) {
    hints.push_back("one burst a block: there is no gap to audit");
    out["hints"] = hints;
    return out;
  }
  model::Workload work;
  work.producers = producers;
  work.bytes = spans.bytes;
  work.gap_us = gap_spread["mean"];
  work.mechanism = spans.mechanism;
  work.threads = spans.threads;
  work.both_ways = spans.both_ways;
  work.gpu = spans.gpu;
  const Result<model::Prediction> predicted = model::predict(profile, work);
  if (!predicted) return predicted.error();
  const model::Prediction& p = *predicted;
  const double mean_issue = issue_spread["mean"];
  for (const double one : issue) stalled += std::max(0.0, one - p.issue0_us);
  const double rate =
      producers * static_cast<double>(spans.bytes) / (period_spread["mean"].get<double>() * 1e3);
  out["stall_us_per_burst"] = std::max(0.0, mean_issue - p.issue0_us);
  out["stall_fraction"] = total > 0 ? stalled / total : 0.0;
  out["rate_gb_per_s"] = rate;
  out["rate_fraction_of_link"] = rate / p.drain_gb_s;
  out["predicted"] = {{"regime", model::name(p.regime)},
                      {"issue_floor_us", p.issue0_us},
                      {"issue_us", p.issue_us},
                      {"period_us", p.period_us},
                      {"recovery_gap_us", p.recovery_gap_us},
                      {"back_pressure_free", p.average_fits && p.burst_fits.value_or(true)}};
  if (p.average_fits)
    hints.push_back(
        fmt::format("the link keeps up: {:.0f} of {:.0f} GB/s; a gap of {:.2f} µs would be enough, "
                    "the kernel has "
                    "{:.2f}",
                    rate, p.drain_gb_s, p.recovery_gap_us, work.gap_us));
  else
    hints.push_back(
        fmt::format("the link is the limit: a burst needs {:.2f} µs to drain and comes every "
                    "{:.2f} µs; only fewer "
                    "bytes or {:.2f} µs more work between bursts help, no order of tiles does",
                    p.drain_us, p.issue0_us + work.gap_us, p.recovery_gap_us - work.gap_us));
  if (p.average_fits && mean_issue > 1.5 * p.issue0_us)
    hints.push_back(
        "yet bursts take longer than an empty X-Stage needs: producers store at the same time; let "
        "them drift apart, or spread the tiles of a phase over time");
  if (model::store_bytes(spans.mechanism) > 0)
    for (const model::MechanismProfile& m : profile.mechanisms)
      if (m.mechanism == spans.mechanism && m.threads == spans.threads && m.loop &&
          m.loop->residue_bytes > 0) {
        hints.push_back(
            fmt::format("behind a burst of ordinary stores the next shared-memory access waits for "
                        "up to {:.1f} KB "
                        "that are still inside the SM; bulk stores leave that path free",
                        m.loop->residue_bytes / 1024));
        break;
      }
  out["hints"] = hints;
  return out;
}

}  // namespace xstage::cli
