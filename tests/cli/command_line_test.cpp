// What holds for every verb, present and to come: the verbs are read from the help.
#include <gtest/gtest.h>

#include "cli/xstage_process.hpp"

namespace xstage::test {
namespace {

TEST(CommandLine, HelpListsTheVerbs) {
  const Outcome outcome = xstage({"--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  const std::vector<std::string> listed = verbs();
  for (const char* verb : {"doctor", "report"})
    EXPECT_NE(std::find(listed.begin(), listed.end(), verb), listed.end()) << verb;
}

TEST(CommandLine, VersionIsThatOfTheBuild) {
  const Outcome outcome = xstage({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "0.1.0\n");
}

TEST(CommandLine, EveryVerbHasHelpAndJson) {
  for (const std::string& verb : verbs()) {
    const Outcome outcome = xstage({verb, "--help"});
    EXPECT_EQ(outcome.exit_code, 0) << verb;
    EXPECT_EQ(outcome.err, "") << verb;
    // A verb with layers of its own (run moe) has the option in each of them.
    const bool has_json = outcome.out.find("--json") != std::string::npos ||
                          outcome.out.find("Subcommands:") != std::string::npos;
    EXPECT_TRUE(has_json) << verb;
  }
}

TEST(CommandLine, EveryVerbRefusesAnOptionItDoesNotKnow) {
  for (const std::string& verb : verbs()) {
    SCOPED_TRACE(verb);
    const auto error = expect_failure({verb, "--no-such-option"}, 2);
    EXPECT_EQ(error.value("kind", ""), "bad_input");
  }
}

TEST(CommandLine, NoVerbOrAnUnknownOneNamesTheKnownOnes) {
  const auto none = expect_failure({}, 2);
  EXPECT_NE(none.value("message", "").find("report"), std::string::npos);
  const auto unknown = expect_failure({"divine"}, 2);
  EXPECT_NE(unknown.value("message", "").find("divine"), std::string::npos);
  EXPECT_NE(unknown.value("message", "").find("report"), std::string::npos);
}

TEST(CommandLine, AMissingValueNamesTheOption) {
  const Outcome outcome = xstage({"report", ".", "--json", "--out"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.last_error_line().find("--out"), std::string::npos);
  EXPECT_TRUE(document(outcome).contains("error")) << outcome.out;
}

TEST(CommandLine, BytesThatAreNotUtf8StayValidJson) {
  (void)expect_failure({"report", "/no/such/\xFF\xFE"}, 2);
  (void)expect_failure({"\xFF"}, 2);
}

TEST(CommandLine, AFullStandardOutputIsAnError) {
  // "complete and valid" cannot hold for a document that was cut off; the exit code says so.
  const Outcome outcome =
      run({"sh", "-c", std::string(XSTAGE_EXECUTABLE) + " doctor --json > /dev/full"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.last_error_line().find("standard output"), std::string::npos) << outcome.err;
}

TEST(CommandLine, NothingOfTheEnvironmentIsWritten) {
  const std::string secret = "hunter2-do-not-write";
  for (const std::string& verb : verbs())
    for (const char* option : {"--help", "--json", "--no-such-option"}) {
      const Outcome outcome =
          run({"env", "USER=" + secret, "HOME=/home/" + secret, "API_TOKEN=" + secret,
               "HOSTNAME=" + secret, XSTAGE_EXECUTABLE, verb, option});
      EXPECT_EQ((outcome.out + outcome.err).find(secret), std::string::npos) << verb;
    }
}

}  // namespace
}  // namespace xstage::test
