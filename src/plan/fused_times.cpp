#include "xstage/plan/fused_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace xstage::plan {

extern const std::string_view kEmbeddedFusedTimes;

namespace {

using nlohmann::json;

/// A time or a factor: the fit makes none below 0, and of a launch none near 1000 s.
double number_of(const json& from, const char* key, const std::string& path) {
  constexpr double kMost = 1e9;
  const auto value = from.at(key).get<double>();
  if (!(value >= 0 && value <= kMost))  // not a number is refused, too
    throw Failure(bad_input("a measured number is out of range", path + "." + key,
                            fmt::format("{:g}", value), fmt::format("0 to {:g}", kMost)));
  return value;
}

/// A size or a lead: no fraction of one, and nothing that only a double can hold.
std::int64_t whole_of(const json& from, const char* key, const std::string& path,
                      std::int64_t least, std::int64_t most) {
  const json& value = from.at(key);
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                        : value.is_number_integer();
  if (fits && value.get<std::int64_t>() >= least && value.get<std::int64_t>() <= most)
    return value.get<std::int64_t>();
  throw Failure(bad_input("a number is out of range", path + "." + key, value.dump(),
                          fmt::format("{} to {}, a whole number", least, most)));
}

FusedLine line_of(const json& from, const char* key, const char* under) {
  const std::string path = std::string(under) + key;
  return {number_of(from.at(key), "base_us", path), number_of(from.at(key), "per_unit", path)};
}

FusedProducts products_of(const json& layer, const char* key) {
  const std::string path = std::string("fit.layers.") + key;
  return {number_of(layer.at(key), "expert_us", path), number_of(layer.at(key), "row_us", path)};
}

std::vector<FusedResidual> residuals_of(const json& correction) {
  std::vector<FusedResidual> out;
  if (!correction.contains("residuals")) return out;  // as written before there were any
  const std::string path = "fit.layers.corrections.residuals";
  for (const json& r : correction.at("residuals")) {
    out.push_back({{number_of(r, "simulated_us", path), number_of(r, "link_us", path),
                    number_of(r, "unevenness", path)},
                   number_of(r, "over_line", path)});
    const FusedLaunch& launch = out.back().launch;
    if (!(launch.simulated_us > 0 && launch.unevenness > 0 && out.back().over_line > 0))
      throw Failure(bad_input("a residual is not positive", path, r.dump(),
                              "simulated_us, unevenness and over_line above 0"));
  }
  return out;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class Value>
double median_of(const FusedTimes& times, Value&& value) {
  std::vector<double> values;
  for (const FusedLayerTimes& layer : times.layers) values.push_back(value(layer));
  return median(std::move(values));
}

}  // namespace

double FusedCorrection::at(const FusedLaunch& launch) const {
  // Distances at which a measured launch still says something: half as long again, a fifth more of
  // the time on the link, a fullest expert e times as full. The weight of the line's own 1 keeps a
  // few far launches from counting as near ones.
  constexpr double kLogTime = 0.5, kLinkShare = 0.2, kLogUnevenness = 1, kLineWeight = 0.3;
  const auto share = [](const FusedLaunch& l) {
    return l.simulated_us > 0 ? l.link_us / l.simulated_us : 0;
  };
  double weights = kLineWeight, sum = 0;
  for (const FusedResidual& r : residuals) {
    const double time = std::log(launch.simulated_us / r.launch.simulated_us) / kLogTime;
    const double link = (share(launch) - share(r.launch)) / kLinkShare;
    const double uneven = std::log(launch.unevenness / r.launch.unevenness) / kLogUnevenness;
    const double weight = std::exp(-0.5 * (time * time + link * link + uneven * uneven));
    weights += weight;
    sum += weight * std::log(r.over_line);
  }
  return line(launch) * std::exp(sum / weights);
}

FusedCorrection FusedLayerTimes::correction(std::int64_t lead) const {
  FusedCorrection nearest;
  double distance = std::numeric_limits<double>::infinity();
  for (const FusedCorrection& c : corrections) {
    if ((c.lead == 0) != (lead == 0)) continue;
    const double away =
        lead == 0 ? 0 : std::abs(std::log(static_cast<double>(c.lead) / static_cast<double>(lead)));
    if (away >= distance) continue;
    distance = away;
    nearest = c;
  }
  return nearest;
}

Result<FusedTimes> parse_fused_times(std::string_view text) {
  try {
    const json document = json::parse(text);
    if (document.at("format") != "xstage.moe-kernel-times/1")
      return bad_input("not a file of the fused kernel's times", "format",
                       document.at("format").dump(), "xstage.moe-kernel-times/1");
    FusedTimes out;
    out.node = document.at("node").at("gpu").get<std::string>();
    const json& fit = document.at("fit");
    const json& start = fit.at("start");
    out.start.landed = line_of(start, "landed", "fit.start.");
    const json& fill = start.at("filled");
    const std::string of_fill = "fit.start.filled";
    out.start.fill_us = number_of(fill, "base_us", of_fill);
    out.start.per_read_mb = number_of(fill, "per_read_mb", of_fill);
    out.start.per_written_mb = number_of(fill, "per_written_mb", of_fill);
    out.slot_sum = line_of(fit, "slot_sum", "fit.");
    constexpr std::int64_t kMostSize = std::int64_t{1} << 31, kMostLead = std::int64_t{1} << 40;
    const std::string of_layer = "fit.layers", of_correction = "fit.layers.corrections";
    for (const json& layer : fit.at("layers")) {
      out.layers.push_back({layer.at("name").get<std::string>(),
                            whole_of(layer, "hidden", of_layer, 1, kMostSize),
                            whole_of(layer, "intermediate", of_layer, 1, kMostSize),
                            products_of(layer, "linear1"),
                            products_of(layer, "linear2"),
                            {}});
      for (const json& c : layer.at("corrections"))
        out.layers.back().corrections.push_back(
            {whole_of(c, "lead", of_correction, 0, kMostLead),
             number_of(c, "base_us", of_correction), number_of(c, "per_us", of_correction),
             number_of(c, "per_link_us", of_correction), residuals_of(c)});
    }
    if (out.layers.empty())
      return bad_input("no layer was measured", "fit.layers", "[]", "one or more");
    return out;
  } catch (const Failure& failure) {
    return failure.error();
  } catch (const json::exception& error) {
    return bad_input("not a file of the fused kernel's times", "kernel_times", error.what(),
                     "what xstage bench moe --table kernel writes");
  }
}

const FusedTimes& fused_times() {
  static const FusedTimes times = parse_fused_times(kEmbeddedFusedTimes).value();
  return times;
}

FusedLayerChoice times_of(const FusedTimes& times, const std::string& name, std::int64_t hidden,
                          std::int64_t intermediate) {
  const FusedLayerTimes* same = nullptr;
  for (const FusedLayerTimes& layer : times.layers)
    if (layer.hidden == hidden && layer.intermediate == intermediate &&
        (same == nullptr || layer.name == name))
      same = &layer;
  if (same != nullptr)
    return {*same, fmt::format("the kernel's products measured alone for {}", same->name), true};
  // Rates: values of weight an expert reads, and products a row takes, a µs.
  const auto h = static_cast<double>(hidden), i = static_cast<double>(intermediate);
  const auto rate = [&](auto&& part, double FusedProducts::* field) {
    return median_of(times, [&](const FusedLayerTimes& layer) {
      return part(layer).*field /
             (static_cast<double>(layer.hidden) * static_cast<double>(layer.intermediate));
    });
  };
  const auto first = [](const FusedLayerTimes& layer) { return layer.linear1; };
  const auto second = [](const FusedLayerTimes& layer) { return layer.linear2; };
  FusedLayerChoice out;
  out.times.name = name;
  out.times.hidden = hidden;
  out.times.intermediate = intermediate;
  out.times.linear1 = {rate(first, &FusedProducts::expert_us) * h * i,
                       rate(first, &FusedProducts::row_us) * h * i};
  out.times.linear2 = {rate(second, &FusedProducts::expert_us) * h * i,
                       rate(second, &FusedProducts::row_us) * h * i};
  // The median layer's corrections, lead by lead.
  for (const FusedCorrection& one : times.layers.front().corrections) {
    const std::int64_t lead = one.lead;
    const auto of = [&](double FusedCorrection::* field) {
      return median_of(times,
                       [&](const FusedLayerTimes& layer) { return layer.correction(lead).*field; });
    };
    out.times.corrections.push_back({lead,
                                     of(&FusedCorrection::base_us),
                                     of(&FusedCorrection::per_us),
                                     of(&FusedCorrection::per_link_us),
                                     {}});
  }
  out.source = "the median rates of the layers whose products were measured";
  return out;
}

}  // namespace xstage::plan
