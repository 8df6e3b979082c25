// xstage run: what it prints, and how it ends.
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
      {with(kMoe, {"--weights", "int4"}), "--weights"},
      {with(kMoe, {"--weights", "w4a8"}), "weights"},
      {with(kMoe, {"--routing", "zipf:x"}), "--routing"},
      {with(kMoe, {"--routing", "file:/nonexistent/file"}), "--routing"},
      {with(kMoe, {"--schedule", "fastest"}), "--schedule"},
      {with(kMoe, {"--lead", "0"}), "--lead"},
      {with(kMoe, {"--workers", "0"}), "--workers"},
      {with(kMoe, {"--wait-limit", "0"}), "--wait-limit"},
      {with(kMoe, {"--backend", "tpu"}), "--backend"},
      {with(kMoe, {"--clamp", "-1"}), "activation.clamp"},
      {with(kMoe, {"--capacity", "3"}), "rank 0 tokens"},
      {{"run", "moe", "--hidden", "100", "--intermediate", "128", "--experts", "8", "--topk", "2"},
       "hidden"},
      {{"run", "moe", "--shape", "no-such-model"}, "--shape"},
      {with(kUlysses, {"--ring", "2"}), "ring"},
      {with(kUlysses, {"--text", "50"}), "--text"},
      {with(kUlysses, {"--key-length", "51"}), "key_length[0]"},
      {with(kUlysses, {"--kv-heads", "3"}), "kv_heads"},
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

}  // namespace
}  // namespace xstage::test
