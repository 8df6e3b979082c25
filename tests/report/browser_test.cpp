// Opens a report in a real headless browser: nothing on its console, every plot drawn.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "report/assets.hpp"
#include "report/page.hpp"
#include "report/samples.hpp"
#include "support/process.hpp"

namespace xstage::report {
namespace {

namespace fs = std::filesystem;
using xstage::test::Outcome;
using xstage::test::TemporaryDirectory;

std::string find_browser() {
  std::istringstream folders(std::getenv("PATH") == nullptr ? "" : std::getenv("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');)
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
      const fs::path path = fs::path(folder) / name;
      if (::access(path.c_str(), X_OK) == 0) return path.string();
    }
  return {};
}

std::size_t count(std::string_view text, std::string_view what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos;
       at = text.find(what, at + what.size()))
    ++n;
  return n;
}

// What the page said on its console: scripts' errors and refused loads among it.
std::string console_lines(const std::string& log) {
  std::istringstream lines(log);
  std::string out;
  for (std::string line; std::getline(lines, line);)
    if (line.find("CONSOLE") != std::string::npos) out += line + "\n";
  return out;
}

class Browser : public ::testing::Test {
 protected:
  void SetUp() override {
    if (plot_script().empty())
      GTEST_SKIP() << "needs the plotting script: the build could not get it";
    browser_ = find_browser();
    if (browser_.empty()) GTEST_SKIP() << "needs chromium: ./check.sh --long installs it";
  }

  Outcome open(const fs::path& page, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{browser_,
                                       "--headless",
                                       "--no-sandbox",
                                       "--disable-gpu",
                                       "--disable-dev-shm-usage",
                                       "--hide-scrollbars",
                                       "--enable-logging=stderr",
                                       "--v=0",
                                       "--virtual-time-budget=10000",
                                       "--user-data-dir=" + (scratch_.path() / "user").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.push_back("file://" + page.string());
    return xstage::test::run(arguments, std::chrono::seconds(120 * xstage::test::kSlowness));
  }

  fs::path write_page(const Collection& collection, PageCounts* counts = nullptr) const {
    return scratch_.write("report.html", render(collection, "demo", counts));
  }

  TemporaryDirectory scratch_;
  std::string browser_;
};

TEST_F(Browser, DrawsEveryPlotAndSaysNothing) {
  PageCounts counts;
  const fs::path page = write_page(test::collection("text"), &counts);
  const Outcome outcome = open(page, {"--dump-dom"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(console_lines(outcome.err), "");
  EXPECT_EQ(count(outcome.out, "data-drawn=\"" + std::to_string(counts.figures) + "\""), 1U);
  // Each plot has two layers of drawing; lines and points are paths inside the first.
  EXPECT_EQ(count(outcome.out, "<g class=\"cartesianlayer\">"), counts.figures);
  // The panels shown first: knee 8 points; period and issue time 2 x 9 each; 4 SMs; issue time 3;
  // capacity 2.
  EXPECT_GE(count(outcome.out, "class=\"point\""), 8U + 2 * 18U + 4U + 3U + 2U);
  // Model lines: 1, 2 and 2; one dash for the shares; one each of the profile; capacity and two
  // backlogs; two timelines of 2.
  EXPECT_GE(count(outcome.out, "class=\"js-line\""), 1U + 2U + 2U + 1U + 2U + 3U + 4U);
  // Another group of panels can be picked.
  EXPECT_GE(count(outcome.out, "aria-pressed=\"true\""), 2U);
}

TEST_F(Browser, RunsNoScriptOfADocument) {
  const std::string evil =
      "</script><script>document.documentElement.dataset.owned=1</script>"
      "<img src=x onerror=\"document.documentElement.dataset.owned=1\">"
      "<svg onload=document.documentElement.dataset.owned=1>";
  const Outcome outcome = open(write_page(test::collection(evil)), {"--dump-dom"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(console_lines(outcome.err), "");
  EXPECT_EQ(count(outcome.out.substr(0, 500), "data-owned"), 0U);
  EXPECT_EQ(count(outcome.out, "data-drawn"), 1U + count(page_script(), "data-drawn"));
}

TEST_F(Browser, KeepsScreenshots) {
  const fs::path page = write_page(test::collection("text"));
  fs::create_directories(XSTAGE_SCREENSHOTS);
  const struct {
    const char* name;
    const char* size;
    const char* scheme;
  } views[] = {{"wide-light", "--window-size=1400,3000", "1"},
               {"wide-dark", "--window-size=1400,3000", "0"},
               {"phone-light", "--window-size=500,4000", "1"}};
  for (const auto& view : views) {
    const fs::path shot = fs::path(XSTAGE_SCREENSHOTS) / (std::string(view.name) + ".png");
    const Outcome outcome =
        open(page, {"--screenshot=" + shot.string(), view.size,
                    std::string("--blink-settings=preferredColorScheme=") + view.scheme});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(console_lines(outcome.err), "");
    ASSERT_TRUE(fs::exists(shot)) << outcome.err;
    EXPECT_GT(fs::file_size(shot), 30000U);
  }
}

}  // namespace
}  // namespace xstage::report
