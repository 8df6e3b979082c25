// What bad input gets, through the whole executable: an error that names the field, its value and
// what is allowed; never a crash, a hang, a NaN, a silently wrong number or a half-written file.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cmath>

#include "cli/xstage_process.hpp"

namespace xstage::test {
namespace {

const std::string kData = XSTAGE_SOURCE_DIR "/data/h200x2/";
const std::string kProfile = XSTAGE_SOURCE_DIR "/profiles/h200-nv18-x2.json";

// Lines of a sample file that `keep` wants, with its comment and header.
template <class Keep>
std::string rows_of(const std::string& file, Keep keep) {
  std::istringstream in(read_file(kData + file));
  std::string out;
  bool header_seen = false;
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string> cells;
    std::istringstream row(line);
    for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
    if (!header_seen || keep(cells)) out += line + "\n";
    header_seen = header_seen || line[0] != '#';
  }
  return out;
}

std::vector<std::string> with(std::vector<std::string> arguments, const std::string& option,
                              const std::string& value) {
  arguments.push_back(option);
  arguments.push_back(value);
  return arguments;
}

const std::vector<std::string> kPredict{"predict", "--profile", kProfile};
const std::vector<std::string> kPoint{"predict", "--profile", kProfile, "--producers",
                                      "132",     "--bytes",   "32768"};

TEST(BadInput, ValuesOfPredictNameFieldValueAndRange) {
  const struct {
    const char* producers;
    const char* bytes;
    const char* gap;
    const char* says;
  } cases[] = {
      {"0", "32768", "5", "producers = 0"},
      {"133", "32768", "5", "producers = 133"},
      {"-1", "32768", "5", "producers"},
      {"99999999999999999999", "32768", "5", "producers"},
      {"many", "32768", "5", "producers = many"},
      {"132", "0", "5", "bytes = 0"},
      {"132", "-16", "5", "bytes = -16"},
      {"132", "17", "5", "bytes = 17"},
      {"132", "1e30", "5", "bytes"},
      {"132", "9223372036854775807", "5", "bytes"},
      {"132", "32768", "-1", "gap-us = -1"},
      {"132", "32768", "nan", "gap-us = nan"},
      {"132", "32768", "inf", "gap-us = inf"},
      {"132", "32768", "1e300", "gap-us"},
      {"132", "32768", "", "gap-us"},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.says);
    const auto error = expect_failure(
        with(with(with(kPredict, "--producers", bad.producers), "--bytes", bad.bytes), "--gap-us",
             bad.gap),
        2);
    EXPECT_NE(error.value("message", "").find(bad.says), std::string::npos)
        << error.value("message", "");
    EXPECT_NE(error.value("message", "").find("allowed: "), std::string::npos);
  }
}

// A pipe that nobody writes to, in place of each file that some verb reads.
TEST(BadInput, PipesAndDevicesAreRefusedAtOnce) {
  const TemporaryDirectory folder;
  const std::string pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string samples = kData + "window_samples.csv";
  for (const std::string& file : {pipe, std::string("/dev/zero")})
    for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
             {"fit", "--samples", file, "--out", folder.path() / "p.json"},
             {"validate", "--profile", kProfile, "--samples", file},
             {"validate", "--profile", kProfile, "--samples", samples, "--schedule-samples", file},
             {"predict", "--profile", file, "--producers", "1", "--bytes", "1024", "--gap-us", "1"},
             {"plan", "moe", "--profile", kProfile, "--from-spans", file},
             {"run", "moe", "--hidden", "128", "--intermediate", "128", "--experts", "2", "--topk",
              "1", "--routing", "file:" + file}}) {
      SCOPED_TRACE(arguments[0] + " " + file);
      const auto error = expect_failure(arguments, 2);
      EXPECT_EQ(error.value("value", ""), file);
      EXPECT_NE(error.value("allowed", "").find("regular file"), std::string::npos);
    }
}

TEST(BadInput, MechanismsAndThreadsOutsideTheProfile) {
  const auto point = with(kPoint, "--gap-us", "5");
  (void)expect_failure(with(point, "--mechanism", "pigeon"), 2);
  (void)expect_failure(with(point, "--threads", "77"), 2);
  (void)expect_failure(with(with(point, "--mechanism", "tma_bulk"), "--threads", "256"), 2);
  (void)expect_failure(with(point, "--gpu", "-1"), 2);
}

// T8: sample files.
TEST(BadInput, SampleFilesAreRefusedWithTheirPlace) {
  const TemporaryDirectory folder;
  const std::string header = rows_of("window_samples.csv", [](const auto&) { return false; });
  const std::string good =
      "window,st_v4,remote,uni,4,256,4096,0,0.0,450.0,6516,0.27,0.27,0.27,0.27,0.08,0.08,0.08,"
      "0.08\n";
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string row = good;
    row.replace(row.find(from), from.size(), to);
    return header + good + row;
  };
  const struct {
    std::string text;
    const char* says;
  } cases[] = {
      {"", "empty"},
      {header, "no samples"},
      {"experiment,mechanism\nwindow,st_v4\n", "missing"},
      {changed("256", "many"), "line 3, column threads"},
      {changed("0.27", "nan"), "line 3, column period_aggregate"},
      {changed("0.0,450.0", "-1.0,450.0"), "line 3, column gap_us"},
      {changed("4096", "0"), "line 3, column bytes"},
      {std::string(1000, '\0'), ""},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.says);
    const std::string path = folder.write("samples.csv", bad.text).string();
    const std::string out = (folder.path() / "profile.json").string();
    for (const auto& arguments :
         {std::vector<std::string>{"fit", "--samples", path, "--out", out},
          std::vector<std::string>{"validate", "--profile", kProfile, "--samples", path}}) {
      const auto error = expect_failure(arguments, 2);
      EXPECT_NE(error.value("message", "").find(bad.says), std::string::npos)
          << error.value("message", "");
    }
    EXPECT_FALSE(std::filesystem::exists(out)) << "a profile from bad samples";
  }
  (void)expect_failure({"fit", "--samples", "/no/such/file.csv"}, 2);
  (void)expect_failure({"fit", "--samples", folder.path().string()}, 2);
}

TEST(BadInput, WindowsLineEndsGiveTheSameProfile) {
  const TemporaryDirectory folder;
  const auto all = [](const auto&) { return true; };
  std::string text = rows_of("window_samples.csv", all);
  const auto plain = folder.write("plain.csv", text);
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2)
    text.insert(at, 1, '\r');
  const auto windows = folder.write("windows.csv", text);
  const auto drain_of = [&](const std::filesystem::path& path) {
    return document(xstage({"fit", "--samples", path.string(), "--json"}))["profile"]["drain"];
  };
  EXPECT_TRUE(drain_of(plain).is_object());
  EXPECT_EQ(drain_of(plain), drain_of(windows));
}

// T9: profiles.
TEST(BadInput, ProfilesOfOtherMakeAreRefused) {
  const TemporaryDirectory folder;
  const nlohmann::json good = nlohmann::json::parse(read_file(kProfile));
  const auto changed = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json copy = good;
    copy[key] = value;
    return copy.dump();
  };
  const struct {
    std::string text;
    const char* says;
  } cases[] = {
      {"", ""},
      {"{", ""},
      {"[]", ""},
      {changed("format", "xstage.profile/0"), "version"},
      {changed("format", "xstage.profile/2"), "xstage.profile/2"},
      {changed("format", "xstage.plan/1"), "xstage.plan/1"},
      {changed("mechanisms", nlohmann::json::array()), "mechanisms"},
      {changed("drain", {{"one_way_gb_per_s", -1}}), "drain.one_way_gb_per_s"},
      {changed("drain", nullptr), "drain"},
      {changed("node", {{"name", "x"}, {"gpus", 2}, {"sms", 0}}), "sms"},
      {std::string(200000, '['), ""},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.says);
    const std::string path = folder.write("profile.json", bad.text).string();
    const auto error = expect_failure(
        {"predict", "--profile", path, "--producers", "132", "--bytes", "32768", "--gap-us", "5"},
        2);
    EXPECT_NE(error.value("message", "").find(bad.says), std::string::npos)
        << error.value("message", "");
    (void)expect_failure({"plan", "moe", "--shape", "lingbot-video", "--profile", path}, 2);
  }
}

// T10: samples without a knee say so instead of inventing a capacity.
TEST(BadInput, SamplesWithoutAKneeLeaveTheCapacityOpen) {
  const TemporaryDirectory folder;
  const auto no_isolated =
      folder.write("window.csv", rows_of("window_samples.csv", [](const auto&) { return true; }));
  const Outcome outcome = xstage({"fit", "--samples", no_isolated.string(), "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json fit = document(outcome);
  EXPECT_GT(fit["not_determined"].size(), 0U);
  for (const auto& mechanism : fit["profile"]["mechanisms"])
    EXPECT_TRUE(mechanism["capacity"].is_null());
  // What rests on the capacity is null as well, not zero.
  const auto profile = folder.write("profile.json", fit["profile"].dump());
  const nlohmann::json predicted =
      document(xstage({"predict", "--profile", profile.string(), "--producers", "132", "--bytes",
                       "32768", "--gap-us", "5", "--json"}));
  EXPECT_TRUE(predicted["isolated"]["capacity_bytes"].is_null());
}

TEST(BadInput, SamplesThatNeverSaturateAreAPoorFit) {
  const TemporaryDirectory folder;
  const auto small = folder.write(
      "small.csv", rows_of("window_samples.csv", [](const auto& row) { return row.at(4) == "4"; }));
  const auto error = expect_failure({"fit", "--samples", small.string()}, 6);
  EXPECT_EQ(error.value("kind", ""), "poor_fit");
}

// T11: one producer count is not extrapolated silently.
TEST(BadInput, OneProducerCountIsSaid) {
  const TemporaryDirectory folder;
  const auto one = folder.write("one.csv", rows_of("remote_store_samples.csv", [](const auto& row) {
                                  return row.at(4) == "132" || row.at(4) == "1";
                                }));
  const auto windowed = folder.write(
      "window.csv", rows_of("window_samples.csv", [](const auto& r) { return r.at(4) == "132"; }));
  const std::string profile = (folder.path() / "profile.json").string();
  const Outcome fitted =
      xstage({"fit", "--samples", one.string(), "--samples", windowed.string(), "--out", profile});
  ASSERT_EQ(fitted.exit_code, 0) << fitted.err;
  const nlohmann::json predicted =
      document(xstage({"predict", "--profile", profile, "--producers", "40", "--bytes", "65536",
                       "--gap-us", "1000", "--json"}));
  EXPECT_GT(predicted["warnings"].size(), 0U) << predicted.dump(1);
}

// T6: files appear whole or not at all, and an old one survives.
TEST(BadInput, WhatCannotBeWrittenIsSaidAndLeavesNothing) {
  const TemporaryDirectory folder;
  const std::string samples = kData + "window_samples.csv";
  const std::vector<std::vector<std::string>> verbs{
      {"fit", "--samples", samples},
      {"validate", "--profile", kProfile, "--samples", samples},
      {"plan", "moe", "--shape", "lingbot-video", "--profile", kProfile}};
  for (const auto& verb : verbs) {
    SCOPED_TRACE(verb[0]);
    EXPECT_NE(expect_failure(with(verb, "--out", "/no/such/folder/x.json"), 2)
                  .value("message", "")
                  .find("/no/such/folder/x.json"),
              std::string::npos);
    EXPECT_NE(expect_failure(with(verb, "--out", "/dev/full"), 2)
                  .value("message", "")
                  .find("No space left"),
              std::string::npos);
    EXPECT_NE(expect_failure(with(verb, "--out", folder.path().string()), 2)
                  .value("message", "")
                  .find("irectory"),
              std::string::npos);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// T13: the environment is in no file.
TEST(BadInput, FilesHoldNothingOfTheEnvironment) {
  const TemporaryDirectory folder;
  const std::string secret = "hunter2-do-not-write";
  std::filesystem::create_directory(folder.path() / secret);
  const std::string inside = (folder.path() / secret / "profile.json").string();
  const std::string out = (folder.path() / "out.json").string();
  std::filesystem::copy_file(kProfile, inside);
  const std::vector<std::vector<std::string>> verbs{
      {"fit", "--samples", kData + "window_samples.csv"},
      {"validate", "--profile", inside, "--samples", kData + "window_samples.csv"},
      {"plan", "moe", "--shape", "lingbot-video", "--profile", inside},
      {"run", "moe", "--hidden", "256", "--intermediate", "128", "--experts", "4", "--topk", "2",
       "--tokens", "8", "--runs", "1", "--lead", "1"}};
  for (auto arguments : verbs) {
    const std::string verb = arguments[0];
    arguments.insert(arguments.begin(),
                     {"env", "USER=" + secret, "LOGNAME=" + secret, "HOSTNAME=" + secret,
                      "TOKEN=" + secret, XSTAGE_EXECUTABLE});
    arguments.insert(arguments.end(), {"--out", out, "--json"});
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << verb << ": " << outcome.err;
    EXPECT_EQ(read_file(out).find(secret), std::string::npos) << verb;
    EXPECT_EQ(outcome.out.find(secret), std::string::npos) << verb;
    EXPECT_GT(read_file(out).size(), 100U) << verb;
    std::filesystem::remove(out);
  }
}

}  // namespace
}  // namespace xstage::test
