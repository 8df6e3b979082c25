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
    const bool has_table = more.front() == "--table";  // and so its layers
    std::vector<std::string> arguments = {"bench", "moe"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto error = expect_failure(has_table ? arguments : bench(more), 2);
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

TEST(BenchMoe, WhatTheKernelHasNoTilesForIsNotPredicted) {
  const std::pair<std::vector<std::string>, const char*> table[] = {
      {{"--hidden", "1152"}, "--hidden"}, {{"--intermediate", "704"}, "--intermediate"}};
  for (const auto& [size, option] : table) {
    auto arguments = bench({"--predict", "--tokens", "64"});
    arguments.insert(arguments.end(), size.begin(), size.end());
    EXPECT_EQ(expect_failure(arguments, 2).value("field", ""), option);
  }
}

TEST(BenchMoe, AFileThatHoldsNoTimesIsNamedByItsOption) {
  const TemporaryDirectory folder;
  for (const char* text : {"", "no JSON", "[]", R"({"format": "xstage.moe-kernel-times/1"})"}) {
    SCOPED_TRACE(text);
    const auto file = folder.write("times.json", text);
    const auto error = expect_failure(bench({"--predict", "--kernel-times", file.string()}), 2);
    EXPECT_EQ(error.value("field", ""), "--kernel-times") << error.dump();
  }
}

TEST(BenchMoe, TheTableOfEightRanksTakesOtherNumbersOfThem) {
  // 128 experts do not divide by 9: the layer is named.
  const auto error =
      expect_failure({"bench", "moe", "--table", "ep8", "--ranks", "9", "--predict"}, 2);
  EXPECT_EQ(error.value("field", ""), "--ranks");
  EXPECT_NE(error.value("message", "").find("lingbot-video"), std::string::npos) << error.dump();
}

TEST(BenchMoe, AFitIsMadeAnewFromMeasuredRows) {
  const TemporaryDirectory folder;
  auto times = nlohmann::json::parse(read_file(XSTAGE_SOURCE_DIR "/data/h200x2/moe_kernel.json"));
  const auto fit = times["fit"];
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& row : times["rows"])
    if (row["layer"]["shape"] == "lingbot-video" && row["layer"]["tokens"] < 7000)
      rows.push_back(row);
  times["rows"] = rows;
  times["fit"] = nullptr;
  const auto file = folder.write("times.json", times.dump());
  const auto made = document(xstage({"bench", "moe", "--refit", file.string(), "--json"}));
  ASSERT_TRUE(made.is_object());
  EXPECT_NEAR(made["fit"]["layers"][0]["linear1"]["row_us"].get<double>(),
              fit["layers"][0]["linear1"]["row_us"].get<double>(), 0.1);
  EXPECT_TRUE(made["provenance"]["fit_made"].contains("created_utc"));
  times["rows"][0].erase("phases_us");
  expect_failure({"bench", "moe", "--refit", folder.write("lacks.json", times.dump()).string()}, 2);
  times["format"] = "xstage.bench/1";
  expect_failure({"bench", "moe", "--refit", folder.write("other.json", times.dump()).string()}, 2);
}

TEST(BenchUlysses, RanksOfATableAreChecked) {
  for (const char* table : {"paper", "models"})
    for (const char* ranks : {"-1", "0", "73"}) {
      SCOPED_TRACE(ranks);
      const auto error =
          expect_failure({"bench", "ulysses", "--table", table, "--ranks", ranks, "--predict"}, 2);
      EXPECT_EQ(error.value("field", ""), "--ranks") << error.dump();
    }
}

TEST(BenchUlysses, PredictionsNeedNoGpu) {
  const auto eight = document(
      xstage({"bench", "ulysses", "--table", "paper", "--ranks", "8", "--predict", "--json"}));
  ASSERT_TRUE(eight.is_object());
  ASSERT_EQ(eight["layers"].size(), 11u);
  for (const auto& layer : eight["layers"]) {
    const auto& p = layer["predicted"];
    EXPECT_EQ(layer["layer"]["ranks"], 8);
    EXPECT_TRUE(p["attention_measured"].get<bool>());
    EXPECT_GT(p["push_over_fused"].get<double>(), 1);
    EXPECT_GT(p["nccl_over_fused"].get<double>(), p["push_over_fused"].get<double>());
    EXPECT_LE(p["residual_range_us"][0].get<double>(), p["residual_us"].get<double>());
    EXPECT_GE(p["residual_range_us"][1].get<double>(), p["residual_us"].get<double>());
  }
  const auto two =
      document(xstage({"bench", "ulysses", "--table", "paper", "--predict", "--json"}));
  EXPECT_LT(two["layers"][0]["predicted"]["push_serial_us"].get<double>(),
            eight["layers"][0]["predicted"]["push_serial_us"].get<double>());
}

TEST(BenchUlysses, NothingIsFittedToWhatNoLaunchCanTake) {
  const TemporaryDirectory folder;
  const std::string results = XSTAGE_SOURCE_DIR "/results/ulysses/";
  const auto paper = nlohmann::json::parse(read_file(results + "paper.json"));
  using Pointer = nlohmann::json::json_pointer;
  for (const auto& [at, value] :
       std::vector<std::pair<const char*, nlohmann::json>>{{"/layer/ranks", 0.5},
                                                           {"/layer/ranks", 0},
                                                           {"/layer/heads", 0},
                                                           {"/layer/seq", std::int64_t{1} << 40},
                                                           {"/layer/head_dim", "128"},
                                                           {"/attention_tflops", 0},
                                                           {"/residual_us", 1e308},
                                                           {"/rows/0/time_us/median", -1},
                                                           {"/serial_less_attention_us", 0}}) {
    SCOPED_TRACE(at);
    auto changed = paper;
    changed["layers"][1][Pointer(at)] = value;
    const auto file = folder.write("changed.json", changed.dump());
    const auto error = expect_failure(
        {"bench", "ulysses", "--fit", file.string(), "--fit", results + "torch.json"}, 2);
    EXPECT_EQ(error.value("field", ""), "--fit") << error.dump();
    EXPECT_FALSE(error.value("allowed", "").empty());
  }
}

TEST(BenchUlysses, TheFitIsThatOfTheResults) {
  const std::string results = XSTAGE_SOURCE_DIR "/results/ulysses/";
  const auto made =
      document(xstage({"bench", "ulysses", "--fit", results + "paper.json", "--fit",
                       results + "models.json", "--fit", results + "torch.json", "--json"}));
  ASSERT_TRUE(made.is_object());
  const auto shipped =
      nlohmann::json::parse(read_file(XSTAGE_SOURCE_DIR "/data/h200x2/ulysses_fused.json"));
  for (const auto& [part, key] : {std::pair{"residual", "base_us"},
                                  {"residual", "attention_share"},
                                  {"push", "base_us"},
                                  {"push", "per_link_us"},
                                  {"nccl", "base_us"},
                                  {"nccl", "per_mb"}})
    EXPECT_NEAR(made["fit"][part][key].get<double>(), shipped["fit"][part][key].get<double>(),
                1e-9 + 1e-6 * shipped["fit"][part][key].get<double>())
        << "make data/h200x2/ulysses_fused.json anew: " << part << "." << key;
  expect_failure({"bench", "ulysses", "--fit", results + "paper.json"}, 2);
  expect_failure({"bench", "ulysses", "--fit", XSTAGE_SOURCE_DIR "/data/published.json"}, 2);
}

TEST(RunMoe, OnGpusWithoutAGpuItSaysWhatIsMissing) {
  const Outcome outcome = xstage({"run", "moe", "--backend", "cuda", "--shape", "lingbot-video",
                                  "--schedule", "auto", "--json"});
  if (outcome.exit_code != 3) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(document(outcome)["error"]["field"], "--backend");
}

}  // namespace
}  // namespace xstage::test
