#include <gtest/gtest.h>

#include <algorithm>

#include "cli/xstage_process.hpp"

namespace xstage::test {
namespace {

const std::string kProfile = R"({"format": "xstage.profile/1", "name": "node"})";

TEST(ReportVerb, WritesThePageIntoTheDirectory) {
  const TemporaryDirectory directory;
  directory.write("profile.json", kProfile);
  const Outcome outcome = xstage({"report", directory.path().string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const std::string page = read_file(directory.path() / "report.html");
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
}

TEST(ReportVerb, JsonSaysWhatWasRead) {
  const TemporaryDirectory directory;
  directory.write("profile.json", kProfile);
  directory.write("broken.json", "{");
  const auto out = directory.path() / "page.html";
  const Outcome outcome =
      xstage({"report", directory.path().string(), "--out", out.string(), "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json json = document(outcome);
  EXPECT_EQ(json.value("format", ""), "xstage.report/1");
  EXPECT_EQ(json.value("file", ""), "page.html");
  EXPECT_EQ(json.value("file_bytes", std::size_t{0}), read_file(out).size());
  EXPECT_EQ(json["documents"].size(), 1U);
  EXPECT_EQ(json["problems"][0].value("file", ""), "broken.json");
  EXPECT_NE(outcome.err.find("broken.json"), std::string::npos);
  EXPECT_NE(read_file(out).find("<code>broken.json</code>"), std::string::npos);
}

TEST(ReportVerb, BadInput) {
  const TemporaryDirectory empty;
  const TemporaryDirectory good;
  good.write("profile.json", kProfile);
  const TemporaryDirectory bad;
  bad.write("profile.json", R"({"format": "xstage.profile/99"})");
  const struct {
    std::vector<std::string> arguments;
    const char* says;
  } cases[] = {
      {{"report"}, "DIR"},
      {{"report", "/no/such/directory"}, "/no/such/directory"},
      {{"report", (good.path() / "profile.json").string()}, "directory"},
      {{"report", empty.path().string()}, "no JSON files"},
      {{"report", bad.path().string()}, "xstage.profile/99"},
      {{"report", good.path().string(), "--out", "/no/such/report.html"}, "/no/such/report.html"},
      {{"report", good.path().string(), "--out", empty.path().string()}, "directory"},
      {{"report", good.path().string(), "--out", "/dev/full"}, "No space left"},
      {{"report", good.path().string(), "--out", ""}, "--out = ''"},
  };
  for (const auto& bad_case : cases) {
    SCOPED_TRACE(::testing::PrintToString(bad_case.arguments));
    const auto error = expect_failure(bad_case.arguments, 2);
    std::string message = error.value("message", "");
    std::transform(message.begin(), message.end(), message.begin(), ::tolower);
    std::string says = bad_case.says;
    std::transform(says.begin(), says.end(), says.begin(), ::tolower);
    EXPECT_NE(message.find(says), std::string::npos) << message;
  }
  EXPECT_TRUE(std::filesystem::is_empty(empty.path()));
}

TEST(ReportVerb, AnOldPageSurvivesAFailure) {
  const TemporaryDirectory directory;
  directory.write("report.html", "old");
  directory.write("broken.json", "{");
  EXPECT_EQ(xstage({"report", directory.path().string()}).exit_code, 2);
  EXPECT_EQ(read_file(directory.path() / "report.html"), "old");
}

}  // namespace
}  // namespace xstage::test
