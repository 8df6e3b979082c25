#include "xstage/plan/ulysses_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace xstage::plan {

extern const std::string_view kEmbeddedUlyssesTimes;

namespace {

using nlohmann::json;

// NCCL's all-to-all alone on two H200: slope of its time over 16.8 to 83.9 MB sent
// (data/h200x2/peers.json, ulysses_exchange_us).
constexpr double kNcclBytesPerUs = 0.28e6;

double number_of(const json& from, const char* key, const char* path, double most) {
  const auto value = from.at(key).get<double>();
  if (!(value >= 0 && value <= most))
    throw Failure(bad_input("a measured number is out of range", fmt::format("{}.{}", path, key),
                            fmt::format("{:g}", value), fmt::format("0 to {:g}", most)));
  return value;
}

}  // namespace

double UlyssesTimes::nccl(double output_mb, int ranks) const {
  if (ranks < 2) return 0;
  const double beyond = output_mb * 1e6 * (static_cast<double>(ranks - 1) / ranks - 0.5);
  return nccl_us + nccl_per_mb * output_mb + beyond / kNcclBytesPerUs;
}

double UlyssesTimes::tflops(std::int64_t heads_local, std::int64_t seq, std::int64_t head_dim,
                            bool& measured) const {
  std::vector<double> of_size, all;
  for (const AttentionMeasured& a : attention) {
    measured = a.heads_local == heads_local && a.seq == seq && a.head_dim == head_dim;
    if (measured) return a.tflops;
    all.push_back(a.tflops);
    if (a.head_dim == head_dim) of_size.push_back(a.tflops);
  }
  std::vector<double>& some = of_size.empty() ? all : of_size;
  measured = false;
  std::sort(some.begin(), some.end());
  return some[some.size() / 2];
}

Result<UlyssesTimes> parse_ulysses_times(std::string_view text) {
  try {
    const json document = json::parse(text);
    if (document.at("format") != "xstage.ulysses-times/1")
      return bad_input("not a file of times of Ulysses attention", "format",
                       document.at("format").dump(), "xstage.ulysses-times/1");
    constexpr double kMostUs = 1e9, kMostShare = 1e3;
    UlyssesTimes out;
    out.node = document.at("node").at("gpu").get<std::string>();
    const json& fit = document.at("fit");
    const json &residual = fit.at("residual"), &push = fit.at("push"), &nccl = fit.at("nccl");
    out.residual_us = number_of(residual, "base_us", "fit.residual", kMostUs);
    out.residual_share = number_of(residual, "attention_share", "fit.residual", 1);
    out.push_us = number_of(push, "base_us", "fit.push", kMostUs);
    out.push_per_link_us = number_of(push, "per_link_us", "fit.push", kMostShare);
    out.nccl_us = number_of(nccl, "base_us", "fit.nccl", kMostUs);
    out.nccl_per_mb = number_of(nccl, "per_mb", "fit.nccl", kMostUs);
    for (const json& row : fit.at("attention"))
      out.attention.push_back(
          {row.at("heads_local").get<std::int64_t>(), row.at("seq").get<std::int64_t>(),
           row.at("head_dim").get<std::int64_t>(), number_of(row, "tflops", "fit.attention", 1e5)});
    if (out.attention.empty())
      return bad_input("no attention was measured", "fit.attention", "[]", "one shape or more");
    return out;
  } catch (const Failure& failure) {
    return failure.error();
  } catch (const json::exception& error) {
    return bad_input("not a file of times of Ulysses attention", "json", error.what(),
                     "what xstage bench ulysses --fit writes");
  }
}

const UlyssesTimes& ulysses_times() {
  static const UlyssesTimes times = parse_ulysses_times(kEmbeddedUlyssesTimes).value();
  return times;
}

}  // namespace xstage::plan
