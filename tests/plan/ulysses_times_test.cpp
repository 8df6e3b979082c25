// What fused Ulysses attention was measured to cost: the reader, and what it says of other shapes.
#include "xstage/plan/ulysses_times.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace xstage::plan {
namespace {

nlohmann::json document() {
  const auto rate = [](int heads, int seq, int head_dim, double tflops) {
    return nlohmann::json{
        {"heads_local", heads}, {"seq", seq}, {"head_dim", head_dim}, {"tflops", tflops}};
  };
  return {{"format", "xstage.ulysses-times/1"},
          {"node", {{"gpu", "a GPU"}}},
          {"fit",
           {{"residual", {{"base_us", 2.0}, {"attention_share", 0.001}}},
            {"push", {{"base_us", 10.0}, {"per_link_us", 1.5}}},
            {"nccl", {{"base_us", 20.0}, {"per_mb", 4.0}}},
            {"attention",
             {rate(4, 8192, 128, 600), rate(4, 16384, 128, 700), rate(12, 8192, 128, 650),
              rate(24, 8192, 64, 500)}}}}};
}

TEST(UlyssesTimes, ReadsWhatTheFitWrites) {
  const auto times = parse_ulysses_times(document().dump()).value();
  EXPECT_DOUBLE_EQ(times.residual(1000), 3);
  EXPECT_DOUBLE_EQ(times.push(100), 160);
  EXPECT_EQ(times.node, "a GPU");
  bool measured = false;
  EXPECT_EQ(times.tflops(4, 16384, 128, measured), 700);
  EXPECT_TRUE(measured);
  EXPECT_EQ(times.tflops(5, 16384, 128, measured), 650);  // the median of that head size
  EXPECT_FALSE(measured);
  EXPECT_EQ(times.tflops(5, 16384, 64, measured), 500);
  EXPECT_EQ(times.tflops(5, 16384, 96, measured), 650);  // of all four, the upper middle
}

TEST(UlyssesTimes, MoreRanksSendMoreOfTheSameOutput) {
  const auto times = parse_ulysses_times(document().dump()).value();
  EXPECT_EQ(times.nccl(28, 1), 0);
  EXPECT_DOUBLE_EQ(times.nccl(28, 2), 20 + 4 * 28);
  // Three eighths of 28 MB more at 280 GB/s.
  EXPECT_NEAR(times.nccl(28, 8), 20 + 4 * 28 + 37.5, 1e-9);
  EXPECT_LT(times.nccl(28, 4), times.nccl(28, 8));
}

TEST(UlyssesTimes, WhatIsNoneIsNamed) {
  const auto refused = [](const char* pointer, nlohmann::json value, const char* field) {
    nlohmann::json wrong = document();
    wrong[nlohmann::json::json_pointer(pointer)] = std::move(value);
    const auto times = parse_ulysses_times(wrong.dump());
    ASSERT_FALSE(times.ok()) << pointer;
    EXPECT_EQ(times.error().field, field);
  };
  refused("/format", "another", "format");
  refused("/fit/residual/base_us", -1, "fit.residual.base_us");
  refused("/fit/residual/attention_share", 1.5, "fit.residual.attention_share");
  refused("/fit/push/per_link_us", 1e4, "fit.push.per_link_us");
  refused("/fit/nccl/per_mb", 1e10, "fit.nccl.per_mb");
  refused("/fit/attention", nlohmann::json::array(), "fit.attention");
  refused("/fit/push", nlohmann::json::array(), "json");
  EXPECT_FALSE(parse_ulysses_times("{").ok());
}

TEST(UlyssesTimes, TheShippedFileHoldsThePapersShapes) {
  for (const std::int64_t seq : {8192, 16384, 32768, 49152, 65536}) {
    bool measured = false;
    EXPECT_GT(ulysses_times().tflops(4, seq, 128, measured), 500);
    EXPECT_TRUE(measured) << seq;
  }
  EXPECT_GT(ulysses_times().residual_us, 1);
  EXPECT_GT(ulysses_times().residual_share, 0);
}

}  // namespace
}  // namespace xstage::plan
