// The documents that verbs write: their keys against golden lists, their exit codes, their time.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <set>

#include "cli/xstage_process.hpp"

namespace xstage::test {
namespace {

const std::string kData = XSTAGE_SOURCE_DIR "/data/h200x2/";
const std::string kProfile = XSTAGE_SOURCE_DIR "/profiles/h200-nv18-x2.json";

using Keys = std::map<std::string, std::set<std::string>>;

// "series[].measured.gap_us[]" -> {"number"}. Keys that are names of things (regimes) stay.
void collect(const nlohmann::json& value, const std::string& path, Keys& keys) {
  if (value.is_object()) {
    for (const auto& [key, inside] : value.items())
      collect(inside, path.empty() ? key : path + "." + key, keys);
  } else if (value.is_array()) {
    if (value.empty()) keys[path + "[]"];
    for (const auto& inside : value) collect(inside, path + "[]", keys);
  } else {
    keys[path].insert(value.is_number() ? "number" : value.type_name());
  }
}

std::string lines(const Keys& keys) {
  std::string out;
  for (const auto& [path, types] : keys) {
    out += path;
    for (const std::string& type : types) out += " " + type;
    out += "\n";
  }
  return out;
}

struct Made {
  const char* name;
  std::vector<std::string> arguments;
};

std::vector<Made> made(bool with_folds = false) {
  std::vector<std::string> fit{"fit"};
  std::vector<std::string> validate{"validate", "--profile", kProfile};
  if (with_folds) validate.emplace_back("--folds");
  for (const char* file :
       {"window_samples.csv", "remote_store_samples.csv", "per_sm_bursts.csv", "sm_groups.json"})
    for (auto* arguments : {&fit, &validate}) {
      arguments->push_back("--samples");
      arguments->push_back(kData + file);
    }
  return {
      {"fit", fit},
      {"validation", validate},
      {"prediction",
       {"predict", "--profile", kProfile, "--producers", "132", "--bytes", "32768", "--gap-us",
        "5"}},
      {"plan-moe", {"plan", "moe", "--profile", kProfile, "--shape", "lingbot-video"}},
      {"plan-ulysses",
       {"plan", "ulysses", "--profile", kProfile, "--seq", "8192", "--heads", "24", "--head-dim",
        "128"}},
      {"simulation-moe",
       {"simulate", "moe", "--profile", kProfile, "--shape", "lingbot-video", "--tokens", "1024"}},
      {"simulation-ulysses",
       {"simulate", "ulysses", "--profile", kProfile, "--seq", "8192", "--heads", "8", "--head-dim",
        "128", "--order", "both"}},
      {"simulation-burst-loop", {"simulate", "--burst-loop", "--profile", kProfile}}};
}

// With XSTAGE_UPDATE_GOLDEN set, the lists are written instead of compared.
TEST(Calibration, OfASimulatedNodeOfFourGpusHasAllPatterns) {
  const auto four =
      document(xstage({"calibrate", "--backend", "sim", "--quick", "--gpus", "0,1,2,3", "--json"}));
  ASSERT_TRUE(four.contains("between_gpus")) << four;
  EXPECT_EQ(four["profile"]["node"]["gpus"], 4);
  const auto& found = four["between_gpus"];
  EXPECT_EQ(found["pairs"].size(), 12u);
  ASSERT_EQ(found["all_to_one"].size(), 4u);
  const double rate = found["pairs"][0]["aggregate_gb_per_s"];
  EXPECT_NEAR(found["all_to_one"][0]["aggregate_gb_per_s"].get<double>(), rate, 0.05 * rate);
  EXPECT_NEAR(found["all_to_all"]["aggregate_gb_per_s"].get<double>(), 4 * rate, 0.2 * rate);
  for (const auto& source : found["all_to_all"]["sources"]) EXPECT_EQ(source["peers"].size(), 3u);
  for (const char* const gpus : {"0", "1,0", "0,2"}) {
    const auto refused =
        document(xstage({"calibrate", "--backend", "sim", "--gpus", gpus, "--json"}));
    EXPECT_EQ(refused["error"]["field"], "--gpus") << gpus;
  }
}

TEST(Documents, HaveTheKeysOfTheirFormat) {
  for (const Made& verb : made(true)) {
    SCOPED_TRACE(verb.name);
    std::vector<std::string> arguments = verb.arguments;
    arguments.push_back("--json");
    const Outcome outcome = xstage(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const nlohmann::json whole = document(outcome);
    ASSERT_TRUE(whole.is_object());
    EXPECT_TRUE(whole.value("format", "").starts_with("xstage."));
    EXPECT_EQ(whole["provenance"].value("tool", "").substr(0, 6), "xstage");
    Keys keys;
    collect(whole, "", keys);
    const std::filesystem::path golden = std::filesystem::path(XSTAGE_SOURCE_DIR) /
                                         "tests/cli/golden" / (std::string(verb.name) + ".keys");
    if (std::getenv("XSTAGE_UPDATE_GOLDEN") != nullptr) std::ofstream(golden) << lines(keys);
    EXPECT_EQ(lines(keys), read_file(golden));
  }
}

TEST(Documents, WithOutTheFileIsTheDocument) {
  const TemporaryDirectory folder;
  for (const Made& verb : made()) {
    if (verb.name == std::string("prediction") || verb.name == std::string("fit")) continue;
    const std::string out = (folder.path() / "out.json").string();
    std::vector<std::string> arguments = verb.arguments;
    arguments.insert(arguments.end(), {"--out", out, "--json"});
    const Outcome outcome = xstage(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << verb.name << ": " << outcome.err;
    const nlohmann::json written = nlohmann::json::parse(read_file(out), nullptr, false);
    EXPECT_EQ(written.value("format", ""), document(outcome).value("format", "")) << verb.name;
    std::filesystem::remove(out);  // the next verb's document is of another kind
  }
}

TEST(Documents, ATimeThatWasGivenMakesThemAgainBitForBit) {
  for (const Made& verb : made()) {
    std::vector<std::string> arguments{"env", "SOURCE_DATE_EPOCH=1000000000", XSTAGE_EXECUTABLE};
    arguments.insert(arguments.end(), verb.arguments.begin(), verb.arguments.end());
    arguments.push_back("--json");
    const Outcome first = run(arguments);
    EXPECT_EQ(first.out, run(arguments).out) << verb.name;
    EXPECT_NE(first.out.find("2001-09-09T01:46:40Z"), std::string::npos) << verb.name;
  }
}

TEST(ExitCodes, AWaitThatTimedOutIsFive) {
  const auto error = expect_failure({"run",
                                     "moe",
                                     "--hidden",
                                     "256",
                                     "--intermediate",
                                     "128",
                                     "--experts",
                                     "4",
                                     "--topk",
                                     "2",
                                     "--tokens",
                                     "16",
                                     "--ranks",
                                     "2",
                                     "--workers",
                                     "1",
                                     "--stop-rank",
                                     "1",
                                     "--wait-limit",
                                     "300",
                                     "--first-wait-limit",
                                     "300"},
                                    5);
  EXPECT_EQ(error.value("kind", ""), "timeout");
}

TEST(Speed, APredictionTakesUnderFiveMilliseconds) {
  const double allowed = 0.005 * (kSlowness == 1 ? 1 : 20);
  // Processor time, the best of many: what the program takes, not what else the machine runs.
  const auto spent = [] {
    rusage used{};
    getrusage(RUSAGE_CHILDREN, &used);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
  };
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 400 && best >= allowed; ++i) {
    const double before = spent();
    const Outcome outcome = xstage({"predict", "--profile", kProfile, "--producers", "132",
                                    "--bytes", "32768", "--gap-us", "5", "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    best = std::min(best, spent() - before);
  }
  std::printf("predict: %.1f ms\n", best * 1e3);
  EXPECT_LT(best, allowed);
}

}  // namespace
}  // namespace xstage::test
