// xstage bench moe: what it refuses, and how it ends without GPUs.
#include "xstage_process.hpp"

namespace xstage::test {
namespace {

std::vector<std::string> bench(const std::vector<std::string>& more) {
  std::vector<std::string> out = {"bench", "moe", "--shape", "lingbot-video"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

TEST(BenchMoe, WhatIsNotAllowedIsNamed) {
  const std::pair<std::vector<std::string>, const char*> table[] = {
      {{"--table", "everything"}, "--table"},
      {{"--lead", "0"}, "--lead"},
      {{"--launches", "65"}, "--launches"},
      {{"--launches", "-1"}, "--launches"},
      {{"--dispatch", "by-post"}, "--dispatch"},
      {{"--backend", "cpu"}, "--backend"},
      {{"--ranks", "3"}, "--ranks"},
      {{"--routing", "zipf:"}, "--routing"},
      {{"--tokens", "-5"}, "--tokens"},
      {{"--predict", "--tokens", "1000000"}, "--tokens"},
      {{"--table", "sweep", "--ranks", "0"}, "--ranks"}};
  for (const auto& [more, field] : table) {
    const auto error = expect_failure(bench(more), 2);
    EXPECT_EQ(error.value("field", ""), field) << error.dump();
  }
}

TEST(BenchMoe, AnOutputThatCannotBeWrittenIsSaidBeforeTheWork) {
  const Outcome outcome = xstage(bench({"--out", "/nonexistent/bench.json"}));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.last_error_line().find("/nonexistent/bench.json"), std::string::npos);
}

TEST(BenchMoe, WithoutAGpuItSaysWhatIsMissing) {
  for (const char* const table : {"peers", "sweep", "kernel", "ep8"}) {
    const Outcome outcome = xstage({"bench", "moe", "--table", table, "--json"});
    if (outcome.exit_code != 3) GTEST_SKIP() << "this machine has a GPU";
    EXPECT_EQ(document(outcome)["error"]["exit_code"], 3);
  }
}

TEST(BenchMoe, PredictionsNeedNoGpu) {
  const auto one = document(xstage(bench({"--predict", "--tokens", "512", "--json"})));
  ASSERT_TRUE(one.is_object());
  ASSERT_EQ(one["rows"].size(), 1u);
  EXPECT_GE(one["rows"][0]["runs"].size(), 3u);
  for (const auto& run : one["rows"][0]["runs"]) EXPECT_GT(run["predicted_us"].get<double>(), 10);
  expect_failure({"bench", "moe", "--table", "kernel", "--predict"}, 2);
}

TEST(BenchMoe, TimesThatNothingCanTakeAreNotPredictedFrom) {
  const TemporaryDirectory folder;
  auto times = nlohmann::json::parse(read_file(XSTAGE_SOURCE_DIR "/data/h200x2/moe_kernel.json"));
  times["fit"]["layers"][0]["linear1"]["expert_us"] = -1e9;
  const auto file = folder.write("times.json", times.dump());
  const auto error =
      expect_failure(bench({"--predict", "--tokens", "512", "--kernel-times", file.string()}), 2);
  EXPECT_EQ(error.value("field", ""), "fit.layers.linear1.expert_us");
  EXPECT_EQ(error.value("value", ""), "-1e+09");
  EXPECT_EQ(error.value("allowed", ""), "0 to 1e+09");
}

TEST(RunMoe, OnGpusWithoutAGpuItSaysWhatIsMissing) {
  const Outcome outcome = xstage({"run", "moe", "--backend", "cuda", "--shape", "lingbot-video",
                                  "--schedule", "auto", "--json"});
  if (outcome.exit_code != 3) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(document(outcome)["error"]["field"], "--backend");
}

}  // namespace
}  // namespace xstage::test
