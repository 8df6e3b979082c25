// The fused kernel's measured times: the reader, and what it says of layers that were not measured.
#include "xstage/plan/fused_times.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace xstage::plan {
namespace {

nlohmann::json document() {
  const auto layer = [](const char* name, int hidden, int intermediate, double row_us) {
    return nlohmann::json{
        {"name", name},
        {"hidden", hidden},
        {"intermediate", intermediate},
        {"linear1", {{"expert_us", 1.0}, {"row_us", row_us}}},
        {"linear2", {{"expert_us", 0.5}, {"row_us", row_us / 2}}},
        {"corrections",
         {{{"lead", 0}, {"base_us", 10.0}, {"per_us", 1.1}, {"per_link_us", 0.0}},
          {{"lead", 4}, {"base_us", 0.0}, {"per_us", 2.0}, {"per_link_us", 0.25}},
          {{"lead", 64}, {"base_us", 0.0}, {"per_us", 1.0}, {"per_link_us", 0.0}}}}};
  };
  return {{"format", "xstage.moe-kernel-times/1"},
          {"node", {{"gpu", "a GPU"}}},
          {"fit",
           {{"start",
             {{"landed", {{"base_us", 20.0}, {"per_unit", 0.5}}},
              {"filled", {{"base_us", 3.0}, {"per_read_mb", 0.25}, {"per_written_mb", 0.125}}}}},
            {"slot_sum", {{"base_us", 2.0}, {"per_unit", 0.25}}},
            {"layers", {layer("small", 1024, 512, 1), layer("large", 4096, 2048, 16)}}}}};
}

TEST(FusedTimes, ReadsWhatTheBenchWrites) {
  const auto times = parse_fused_times(document().dump()).value();
  EXPECT_EQ(times.layers.size(), 2u);
  EXPECT_DOUBLE_EQ(times.start.landed_us({7, 100, 40, 80}), 77);
  EXPECT_DOUBLE_EQ(times.start.at({7, 100, 40, 80}), 77 + 3 + 10 + 10);
  EXPECT_EQ(times.node, "a GPU");
}

TEST(FusedTimes, TheShippedFileHoldsTheSevenLayers) {
  for (const char* const name : {"lingbot-video", "qwen3.5-397b", "hy3", "mimo-v2.5", "glm-5",
                                 "deepseek-v4-flash", "deepseek-v4-pro"}) {
    bool found = false;
    for (const FusedLayerTimes& layer : fused_times().layers) found = found || layer.name == name;
    EXPECT_TRUE(found) << name;
  }
}

TEST(FusedTimes, TheWaveHasItsOwnCorrectionAndALeadTheNearestOne) {
  const auto times = parse_fused_times(document().dump()).value();
  const FusedLayerTimes& layer = times.layers.front();
  EXPECT_DOUBLE_EQ(layer.correction(0).at({100, 1000, 1}), 120);
  EXPECT_EQ(layer.correction(1).lead, 4);
  EXPECT_EQ(layer.correction(15).lead, 4);   // 15/4 < 64/15
  EXPECT_EQ(layer.correction(17).lead, 64);  // and here it is the other way round
  EXPECT_DOUBLE_EQ(layer.correction(4).at({100, 40, 1}), 210);
  EXPECT_DOUBLE_EQ(FusedLayerTimes{}.correction(7).at({123, 9, 1}), 123);  // nothing measured
}

TEST(FusedTimes, NearAMeasuredLaunchItsTimeCounts) {
  auto measured = document();
  const auto launch = [](double us, double over) {
    return nlohmann::json{
        {"simulated_us", us}, {"link_us", us / 4}, {"unevenness", 1.5}, {"over_line", over}};
  };
  measured["fit"]["layers"][0]["corrections"][2]["residuals"] = {launch(100, 1.2),
                                                                 launch(1000, 0.9)};
  const auto times = parse_fused_times(measured.dump()).value();
  const FusedCorrection of = times.layers.front().correction(64);
  EXPECT_NEAR(of.at({100, 25, 1.5}) / 100, std::pow(1.2, 1 / 1.3), 1e-3);
  EXPECT_NEAR(of.at({1000, 250, 1.5}) / 1000, std::pow(0.9, 1 / 1.3), 1e-3);
  // Far away in time, on the link or in unevenness the line remains.
  EXPECT_NEAR(of.at({1e5, 2.5e4, 1.5}), 1e5, 1);
  EXPECT_NEAR(of.at({100, 100, 1.5}), 100, 0.1);
  EXPECT_NEAR(of.at({100, 25, 90}), 100, 0.1);
  measured["fit"]["layers"][0]["corrections"][2]["residuals"] =
      nlohmann::json::array({launch(0, 1.2)});
  EXPECT_EQ(parse_fused_times(measured.dump()).error().field, "fit.layers.corrections.residuals");
}

TEST(FusedTimes, ALayerThatWasNotMeasuredScalesWithItsMatrices) {
  const auto times = parse_fused_times(document().dump()).value();
  EXPECT_TRUE(times_of(times, "another name", 4096, 2048).measured);
  const auto assumed = times_of(times, "new", 2048, 1024);
  EXPECT_FALSE(assumed.measured);
  // Both layers take 16 and 1 µs a row for 8 M and 0.5 M weights: the same rate.
  EXPECT_NEAR(assumed.times.linear1.row_us, 4, 1e-9);
  EXPECT_EQ(assumed.times.corrections.size(), 3u);
}

TEST(FusedTimes, NumbersThatNothingCanTakeAreRefusedByName) {
  const auto refused = [](const char* pointer, const nlohmann::json& value, const char* field) {
    auto bad = document();
    bad[nlohmann::json::json_pointer(pointer)] = value;
    const auto times = parse_fused_times(bad.dump());
    ASSERT_FALSE(times.ok()) << pointer << " " << value.dump();
    EXPECT_EQ(times.error().field, field) << value.dump();
    EXPECT_FALSE(times.error().value.empty());
    EXPECT_TRUE(times.error().allowed.starts_with("0 to") ||
                times.error().allowed.starts_with("1 to"))
        << times.error().allowed;
  };
  for (const double value : {-1e9, -1e-3, 1e308}) {
    refused("/fit/start/landed/base_us", value, "fit.start.landed.base_us");
    refused("/fit/start/filled/per_read_mb", value, "fit.start.filled.per_read_mb");
    refused("/fit/slot_sum/per_unit", value, "fit.slot_sum.per_unit");
    refused("/fit/layers/0/linear1/expert_us", value, "fit.layers.linear1.expert_us");
    refused("/fit/layers/1/linear2/row_us", value, "fit.layers.linear2.row_us");
    refused("/fit/layers/0/corrections/1/per_us", value, "fit.layers.corrections.per_us");
  }
  for (const nlohmann::json& value : std::initializer_list<nlohmann::json>{
           -5, 1e30, 1.5, (std::int64_t{1} << 40) + 1, std::uint64_t{18446744073709551615U}, "4"})
    refused("/fit/layers/0/corrections/0/lead", value, "fit.layers.corrections.lead");
  for (const nlohmann::json& value : std::initializer_list<nlohmann::json>{0, -1024, 1e30})
    refused("/fit/layers/0/hidden", value, "fit.layers.hidden");
}

TEST(FusedTimes, WhatIsNoSuchFileIsRefused) {
  EXPECT_EQ(parse_fused_times("{").error().field, "kernel_times");
  auto other = document();
  other["format"] = "xstage.bench/1";
  EXPECT_EQ(parse_fused_times(other.dump()).error().field, "format");
  auto empty = document();
  empty["fit"]["layers"] = nlohmann::json::array();
  EXPECT_EQ(parse_fused_times(empty.dump()).error().field, "fit.layers");
  auto missing = document();
  missing["fit"].erase("start");
  EXPECT_FALSE(parse_fused_times(missing.dump()));
}

}  // namespace
}  // namespace xstage::plan
