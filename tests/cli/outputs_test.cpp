// What happens to files that are there already: one of the same kind is replaced whole, any other
// stays as it is and the verb says so before its work.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/xstage_process.hpp"

namespace xstage::test {
namespace {

const std::string kData = XSTAGE_SOURCE_DIR "/data/h200x2/";
const std::string kProfile = XSTAGE_SOURCE_DIR "/profiles/h200-nv18-x2.json";

struct Writer {
  std::vector<std::string> arguments;
  const char* option;
};

std::vector<Writer> writers() {
  const std::vector<std::string> layer{"--shape", "lingbot-video", "--tokens", "64"};
  const auto with_layer = [&](std::vector<std::string> verb) {
    verb.insert(verb.end(), layer.begin(), layer.end());
    return verb;
  };
  return {{{"fit", "--samples", kData + "window_samples.csv"}, "--out"},
          {{"validate", "--profile", kProfile, "--samples", kData + "window_samples.csv"}, "--out"},
          {with_layer({"plan", "moe", "--profile", kProfile}), "--out"},
          {with_layer({"simulate", "moe", "--profile", kProfile, "--schedule", "wave"}), "--out"},
          {with_layer({"simulate", "moe", "--profile", kProfile, "--schedule", "wave"}), "--trace"},
          {{"simulate", "--burst-loop", "--profile", kProfile}, "--out"},
          {{"run", "moe", "--hidden", "128", "--intermediate", "128", "--experts", "2", "--topk",
            "1", "--tokens", "4", "--runs", "1", "--lead", "1"},
           "--out"},
          {with_layer({"bench", "moe", "--predict"}), "--out"}};
}

TEST(Outputs, PredictionsDoNotReplaceMeasurements) {
  for (const std::string verb : {"moe", "ulysses"}) {
    SCOPED_TRACE(verb);
    const TemporaryDirectory folder;
    const std::string out = (folder.path() / "out.json").string();
    std::vector<std::string> arguments{"bench", verb, "--predict", "--out", out};
    const std::vector<std::string> layer =
        verb == "moe" ? std::vector<std::string>{"--shape", "lingbot-video", "--tokens", "64"}
                      : std::vector<std::string>{"--table", "paper"};
    arguments.insert(arguments.end(), layer.begin(), layer.end());
    const std::string measured = R"({"format": "xstage.bench/1", "node": {}, "rows": []})";
    std::ofstream(out) << measured;
    EXPECT_EQ(expect_failure(arguments, 2).value("field", ""), "--out");
    EXPECT_EQ(read_file(out), measured);
    std::ofstream(out) << R"({"format": "xstage.bench/1", "rows": []})";
    EXPECT_EQ(xstage(arguments).exit_code, 0);
  }
}

TEST(Outputs, OfTheSameKindAreReplacedAndOthersStay) {
  for (const Writer& writer : writers()) {
    SCOPED_TRACE(writer.arguments[0] + " " + writer.option);
    const TemporaryDirectory folder;
    const std::string out = (folder.path() / "out").string();
    std::vector<std::string> arguments = writer.arguments;
    arguments.insert(arguments.end(), {writer.option, out});
    ASSERT_EQ(xstage(arguments).exit_code, 0);
    // More than the digits of its times differ by: what is not replaced whole keeps it.
    const auto first = static_cast<double>(read_file(out).size());
    std::ofstream(out, std::ios::app) << std::string(4096, ' ');
    const Outcome again = xstage(arguments);
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_TRUE(nlohmann::json::accept(read_file(out)));
    EXPECT_NEAR(static_cast<double>(read_file(out).size()), first, 256);
    // Other kinds: a person's notes, samples, a document of another verb, one that names its
    // format only further inside, and one that is cut off before its format.
    for (const std::string& other :
         {std::string("my notes\n"), read_file(kData + "window_samples.csv"),
          std::string(R"({"format": "xstage.other/1"})"),
          std::string(R"({"a": {"format": "xstage.plan/1"}})"), std::string("{\"a\": [1, 2")}) {
      std::ofstream(out) << other;
      const auto error = expect_failure(arguments, 2);
      EXPECT_EQ(error.value("field", ""), writer.option) << error.dump();
      EXPECT_EQ(error.value("value", ""), out);
      EXPECT_EQ(read_file(out), other);
    }
    std::ofstream(out).close();  // what mktemp leaves
    EXPECT_EQ(xstage(arguments).exit_code, 0);
    EXPECT_GT(read_file(out).size(), 0U);
  }
}

TEST(Outputs, OfACalibrationAreCheckedBeforeItToo) {
  const TemporaryDirectory folder;
  const std::string notes = folder.write("S_bursts.csv", "my notes\n").string();
  const std::vector<std::string> verb{"calibrate", "--backend", "sim", "--quick"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), verb.begin(), verb.end());
    return more;
  };
  const auto error = expect_failure(with({"--samples-out", (folder.path() / "S.csv").string()}), 2);
  EXPECT_EQ(error.value("field", ""), "--samples-out");
  EXPECT_EQ(error.value("value", ""), notes);
  EXPECT_EQ(read_file(notes), "my notes\n");
}

TEST(Outputs, TwoInOneFileAreRefused) {
  const TemporaryDirectory folder;
  const std::string out = (folder.path() / "out").string();
  const std::string same = (folder.path() / "." / "out").string();
  const auto timeline = expect_failure({"simulate", "moe", "--profile", kProfile, "--shape",
                                        "lingbot-video", "--out", out, "--trace", same},
                                       2);
  EXPECT_EQ(timeline.value("field", ""), "--trace");
  EXPECT_NE(timeline.value("message", "").find("--out"), std::string::npos);
  const auto samples =
      expect_failure({"calibrate", "--backend", "sim", "--out", out, "--result-out", same}, 2);
  EXPECT_EQ(samples.value("field", ""), "--result-out");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Outputs, APageReplacesAPage) {
  const TemporaryDirectory folder;
  (void)folder.write("profile.json", read_file(kProfile));
  const std::string page = (folder.path() / "page.html").string();
  const std::vector<std::string> arguments{"report", folder.path().string(), "--out", page};
  ASSERT_EQ(xstage(arguments).exit_code, 0);
  EXPECT_EQ(xstage(arguments).exit_code, 0);
  std::ofstream(page) << "<!doctype html><title>mine</title>";
  EXPECT_EQ(expect_failure(arguments, 2).value("field", ""), "--out");
}

}  // namespace
}  // namespace xstage::test
