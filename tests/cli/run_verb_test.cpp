// xstage run: what it prints, and how it ends.
#include <csignal>
#include <fstream>

#include "xstage_process.hpp"

namespace xstage::test {
namespace {

std::vector<std::string> with(std::vector<std::string> base, const std::vector<std::string>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

const std::vector<std::string> kMoe = {
    "run",       "moe", "--hidden", "256", "--intermediate", "128",
    "--experts", "8",   "--topk",   "2",   "--tokens",       "12"};
const std::vector<std::string> kUlysses = {"run", "ulysses",    "--heads", "6",       "--seq",
                                           "50",  "--head-dim", "32",      "--ranks", "4"};

TEST(RunVerb, MoeReportsSameBitsAndErrorsWithinTheirLimits) {
  for (const char* const weights : {"w8a8", "bf16"}) {
    const auto run = document(xstage(with(kMoe, {"--weights", weights, "--ranks", "4", "--json"})));
    ASSERT_TRUE(run.is_object());
    EXPECT_EQ(run["format"], "xstage.run/1");
    EXPECT_TRUE(run["ok"].get<bool>());
    EXPECT_TRUE(run["same_bits"].get<bool>());
    EXPECT_EQ(run["schedules"].size(), 4u);  // wave, and leads 1, 4, 16
    for (const auto& schedule : run["schedules"])
      EXPECT_EQ(schedule["bits_digest"], run["schedules"][0]["bits_digest"]);
    EXPECT_LE(run["errors"]["end_to_end"].get<double>(), 1.5e-2);
    EXPECT_EQ(run["errors"]["tokens_checked"], 48);
  }
}

TEST(RunVerb, TheSameSeedGivesTheSameBitsHoweverManyWorkers) {
  const auto digest = [](const std::vector<std::string>& more) {
    return document(
        xstage(with(kMoe, with({"--json", "--no-check"}, more))))["schedules"][0]["bits_digest"];
  };
  EXPECT_EQ(digest({}), digest({"--workers", "1", "--dispatch", "per-slot"}));
  EXPECT_NE(digest({}), digest({"--seed", "2"}));
}

TEST(RunVerb, AutoRunsWhatSimulateChooses) {
  const std::string profile = XSTAGE_SOURCE_DIR "/profiles/h200-nv18-x2.json";
  for (const char* const routing : {"balanced", "zipf:1.5"}) {
    const std::vector<std::string> layer = {"--routing", routing, "--json"};
    const auto run = document(xstage(with(with(kMoe, layer), {"--schedule", "auto"})));
    ASSERT_TRUE(run.is_object());
    EXPECT_TRUE(run["ok"].get<bool>());
    auto simulate = with(kMoe, with(layer, {"--schedule", "auto", "--profile", profile}));
    simulate[0] = "simulate";
    const auto simulated = document(xstage(simulate));
    EXPECT_EQ(run["choice"], simulated["choice"]);
    EXPECT_EQ(run["candidates"], simulated["candidates"]);
    ASSERT_EQ(run["schedules"].size(), 1u);
    for (const char* const key : {"schedule", "lead", "group"})
      EXPECT_EQ(run["schedules"][0][key], run["choice"][key]) << key;
    const auto wave = document(xstage(with(with(kMoe, layer), {"--schedule", "wave"})));
    EXPECT_EQ(run["schedules"][0]["bits_digest"], wave["schedules"][0]["bits_digest"]);
  }
  const Outcome text = xstage(with(kMoe, {"--schedule", "auto", "--no-check", "--runs", "1"}));
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("simulated wave"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("chosen for "), std::string::npos) << text.out;
}

TEST(RunVerb, RanksShareAGpuOnlyWhenAskedToAndOnlyOnGpus) {
  const auto error = [](const std::vector<std::string>& base,
                        const std::vector<std::string>& more) {
    const auto run = document(xstage(with(base, with({"--ranks", "8", "--json"}, more))));
    EXPECT_TRUE(run.contains("error")) << run;
    return run["error"];
  };
  for (auto base : {kMoe, std::vector<std::string>{"run", "ulysses", "--heads", "16", "--seq", "64",
                                                   "--head-dim", "64"}}) {
    const auto on_cpu = error(base, {"--ranks-per-gpu", "4"});
    EXPECT_EQ(on_cpu["field"], "--ranks-per-gpu") << on_cpu;
    const auto uneven = error(base, {"--ranks-per-gpu", "3", "--backend", "cuda"});
    EXPECT_EQ(uneven["field"], "--ranks-per-gpu") << uneven;
    EXPECT_NE(uneven["allowed"].get<std::string>().find("8 ranks"), std::string::npos) << uneven;
    EXPECT_EQ(error(base, {"--ranks-per-gpu", "0", "--backend", "cuda"})["field"],
              "--ranks-per-gpu");
  }
  // Times of a table are those of a GPU a rank: there is no such option.
  for (const char* const what : {"moe", "ulysses"})
    EXPECT_EQ(xstage({"bench", what, "--ranks-per-gpu", "4"}).exit_code, 2);
}

TEST(RunVerb, AsManyRanksRunAsASimulationTakes) {
  const auto run = document(
      xstage({"run", "ulysses", "--heads", "72", "--seq", "72", "--head-dim", "8", "--ranks", "72",
              "--workers", "1", "--runs", "1", "--order", "remote-first", "--json"}));
  ASSERT_TRUE(run.is_object());
  EXPECT_TRUE(run["ok"].get<bool>());
  EXPECT_EQ(run["heads_of_rank"].size(), 72u);
}

TEST(RunVerb, UlyssesWithTextPaddingAndGroupedQueries) {
  const auto run = document(
      xstage(with(kUlysses, {"--text", "9", "--text-place", "before-on-all", "--key-length", "41",
                             "--kv-heads", "3", "--replicate-kv-heads", "--json"})));
  ASSERT_TRUE(run.is_object());
  EXPECT_TRUE(run["ok"].get<bool>());
  EXPECT_TRUE(run["errors"]["fused_equals_local"].get<bool>());
  EXPECT_EQ(run["heads_of_rank"], (nlohmann::json{2, 2, 1, 1}));
}

TEST(RunVerb, ARankThatStopsEndsWithFiveAndWhoWaitedForWhat) {
  // Which worker is the first to give up differs from run to run.
  const Outcome moe = xstage(with(kMoe, {"--stop-rank", "1", "--stop-before", "publish",
                                         "--first-wait-limit", "500", "--json"}));
  EXPECT_EQ(moe.exit_code, 5);
  EXPECT_NE(moe.last_error_line().find("routes of rank 1"), std::string::npos) << moe.err;
  EXPECT_EQ(document(moe)["error"]["kind"], "timeout");
  const auto run =
      document(xstage(with(kUlysses, {"--stop-rank", "2", "--first-wait-limit", "500", "--json"})));
  EXPECT_EQ(run["error"]["exit_code"], 5);
  EXPECT_EQ(run["waits"].size(), 12u);  // all workers of the other three ranks
}

TEST(RunVerb, WhatIsNotAllowedIsNamed) {
  const std::pair<std::vector<std::string>, const char*> table[] = {
      {with(kMoe, {"--ranks", "3"}), "--ranks"},
      {with(kMoe, {"--ranks", "73"}), "--ranks"},
      {{"run", "ulysses", "--heads", "80", "--seq", "80", "--head-dim", "8", "--ranks", "73"},
       "--ranks"},
      {with(kMoe, {"--weights", "int4"}), "--weights"},
      {with(kMoe, {"--weights", "w4a8"}), "--weights"},
      {with(kMoe, {"--routing", "zipf:x"}), "--routing"},
      {with(kMoe, {"--routing", "file:/nonexistent/file"}), "--routing"},
      {with(kMoe, {"--schedule", "fastest"}), "--schedule"},
      {with(kMoe, {"--lead", "0"}), "--lead"},
      {with(kMoe, {"--schedule", "auto", "--lead", "4"}), "--lead"},
      {with(kMoe, {"--schedule", "auto", "--group", "1"}), "--group"},
      {with(kMoe, {"--schedule", "auto", "--profile", "/nonexistent/p.json"}), "--profile"},
      {with(kMoe, {"--schedule", "wave", "--profile", "p.json"}), "--profile"},
      {with(kMoe, {"--workers", "0"}), "--workers"},
      {with(kMoe, {"--wait-limit", "0"}), "--wait-limit"},
      {with(kMoe, {"--backend", "tpu"}), "--backend"},
      {with(kMoe, {"--block-m", "0"}), "--block-m"},
      {with(kMoe, {"--block-m", "-3"}), "--block-m"},
      {with(kMoe, {"--check-every", "-1"}), "--check-every"},
      {with(kMoe, {"--stop-rank", "2"}), "--stop-rank"},
      {with(kMoe, {"--stop-rank", "-2"}), "--stop-rank"},
      {with(kMoe, {"--seed", "-1"}), "--seed"},
      {with(kMoe, {"--seed", "18446744073709551616"}), "--seed"},
      {with(kMoe, {"--max-work", "1000"}), "--max-work"},
      {with(kMoe, {"--max-work", "nan"}), "--max-work"},
      {with(kMoe, {"--routing", "file:/dev/zero"}), "--routing"},
      {{"run", "moe", "--hidden", "128", "--intermediate", "128", "--experts", "8", "--topk", "2",
        "--tokens", "268435456"},
       "memory"},
      {with(kUlysses, {"--scale", "1e30"}), "--scale"},
      {with(kUlysses, {"--scale", "nan"}), "--scale"},
      {with(kUlysses, {"--scale", "1e-20"}), "--scale"},
      {with(kUlysses, {"--stop-rank", "4"}), "--stop-rank"},
      {with(kUlysses, {"--check-every", "-1"}), "--check-every"},
      {with(kUlysses, {"--seed", "-1"}), "--seed"},
      {{"run", "ulysses", "--seq", "1048576", "--heads", "4", "--head-dim", "64"}, "--max-work"},
      {with(kMoe, {"--clamp", "-1"}), "--clamp"},
      {with(kMoe, {"--capacity", "3"}), "--capacity"},
      {with(kMoe, {"--capacity", "-5"}), "--capacity"},
      {{"run", "moe", "--hidden", "100", "--intermediate", "128", "--experts", "8", "--topk", "2"},
       "--hidden"},
      {{"run", "moe", "--shape", "no-such-model"}, "--shape"},
      {with(kUlysses, {"--ring", "2"}), "--ring"},
      {with(kUlysses, {"--text", "50"}), "--text"},
      {with(kUlysses, {"--key-length", "51"}), "--key-length"},
      {with(kUlysses, {"--key-length", "1", "2"}), "--key-length"},
      {with(kUlysses, {"--kv-heads", "3"}), "--kv-heads"},
      {with(kUlysses, {"--kv-heads", "4"}), "--kv-heads"},
      {with(kUlysses, {"--order", "random"}), "--order"}};
  for (const auto& [arguments, field] : table) {
    const auto error = expect_failure(arguments, 2);
    EXPECT_EQ(error.value("field", ""), field) << error.dump();
  }
}

TEST(RunVerb, OutputThatCannotBeWrittenIsAnErrorAndNothingIsLeft) {
  const auto error = expect_failure(
      with(kMoe, {"--no-check", "--runs", "1", "--out", "/nonexistent/run.json"}), 2);
  EXPECT_EQ(error.value("value", ""), "/nonexistent/run.json");
}

TEST(RunVerb, ADocumentWithAnErrorIsNotOk) {
  const Outcome outcome =
      xstage(with(kMoe, {"--no-check", "--runs", "1", "--out", "/dev/full", "--json"}));
  EXPECT_EQ(outcome.exit_code, 2);
  const auto whole = document(outcome);
  ASSERT_TRUE(whole.contains("ok")) << outcome.out;
  EXPECT_FALSE(whole["ok"].get<bool>());
  EXPECT_EQ(whole["error"]["exit_code"], 2);
}

TEST(RunVerb, TheLargestSeedIsASeed) {
  const Outcome outcome =
      xstage(with(kMoe, {"--no-check", "--runs", "1", "--seed", "18446744073709551615", "--json"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(document(outcome)["layer"]["seed"], 18446744073709551615U);
}

// The working set of what is refused here would take minutes; the refusal comes at once.
TEST(RunVerb, AnOutputThatCannotBeWrittenIsSaidBeforeTheWork) {
  const Outcome outcome = xstage({"run", "ulysses", "--seq", "200000", "--heads", "2", "--head-dim",
                                  "32", "--out", "/nonexistent/run.json"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_LT(outcome.seconds, 10 * kSlowness);
  EXPECT_NE(outcome.last_error_line().find("/nonexistent/run.json"), std::string::npos);
}

TEST(RunVerb, ScalesAtTheEndsOfTheRangeAreRight) {
  for (const char* const scale : {"1e-6", "100"}) {
    const Outcome outcome = xstage(with(kUlysses, {"--scale", scale, "--json"}));
    EXPECT_EQ(outcome.exit_code, 0) << scale << ": " << outcome.err;
  }
}

TEST(RunVerb, WeightsAtTheEndOfTheRangeAreRight) {
  const TemporaryDirectory folder;
  std::string lines;
  for (int token = 0; token < 24; ++token) lines += token % 2 ? "1 2 1e6 1\n" : "5 6 0.5 -1e6\n";
  const auto file = folder.write("routing", lines);
  const Outcome outcome = xstage(with(kMoe, {"--routing", "file:" + file.string()}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(RunVerb, WithoutAGpuTheKernelsSayWhatForItIsMissing) {
  const Outcome outcome = xstage(with(kUlysses, {"--backend", "cuda"}));
  if (outcome.exit_code != 3) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_NE(outcome.err.find("no GPU to run the layer on"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("calibrate"), std::string::npos) << outcome.err;
}

TEST(RunVerb, AnInterruptEndsWithAWholeDocumentAndNoFile) {
  const TemporaryDirectory folder;
  const std::string out = (folder.path() / "run.json").string();
  const std::vector<std::string> slow{
      XSTAGE_EXECUTABLE, "run", "ulysses", "--seq", "40000", "--heads", "4",
      "--head-dim",      "64",  "--out",   out};
  for (const int signal : {SIGINT, SIGTERM}) {
    const Outcome text = run_and_signal(slow, signal, std::chrono::milliseconds(700));
    EXPECT_EQ(text.exit_code, 130) << text.err;
    EXPECT_TRUE(text.last_error_line().starts_with("xstage: interrupted")) << text.err;
    const Outcome machine =
        run_and_signal(with(slow, {"--json"}), signal, std::chrono::milliseconds(700));
    EXPECT_EQ(machine.exit_code, 130) << machine.err;
    EXPECT_EQ(machine.last_error_line(), text.last_error_line());
    const auto whole = document(machine);
    ASSERT_TRUE(whole.is_object()) << machine.out;
    EXPECT_EQ(whole["error"]["kind"], "interrupted");
    EXPECT_EQ(whole["error"]["exit_code"], 130);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace xstage::test
