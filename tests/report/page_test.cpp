#include "report/page.hpp"

#include <gtest/gtest.h>

#include <random>

#include "report/assets.hpp"
#include "report/samples.hpp"

namespace xstage::report {
namespace {

// The page without the scripts that this project embeds itself.
std::string without_plot_script(std::string page) {
  const std::size_t at = plot_script().empty() ? std::string::npos : page.find(plot_script());
  if (at != std::string::npos) page.erase(at, plot_script().size());
  return page;
}

std::size_t count(std::string_view text, std::string_view what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos;
       at = text.find(what, at + what.size()))
    ++n;
  return n;
}

TEST(Page, ShowsEveryKind) {
  PageCounts counts;
  const std::string page = without_plot_script(render(test::collection("text"), "demo", &counts));
  for (const char* id : {"validation", "profile", "fit", "plans", "simulation", "runs", "bench",
                         "predictions", "machine", "files"})
    EXPECT_NE(page.find("<section id=\"" + std::string(id) + "\">"), std::string::npos) << id;
  EXPECT_EQ(counts.figures, plot_script().empty() ? 0U : 9U);
  EXPECT_EQ(count(page, "role=\"img\""), 9U);
  EXPECT_NE(page.find("ended with exit code 5"), std::string::npos);
}

TEST(Page, NoTextOfADocumentBecomesMarkup) {
  const std::string evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'";
  const std::string calm = "text";
  auto evil_collection = test::collection(evil, "<b>");
  evil_collection.problems.push_back({evil, evil});
  evil_collection.timelines.push_back(evil);
  auto calm_collection = test::collection(calm);
  calm_collection.problems.push_back({calm, calm});
  calm_collection.timelines.push_back(calm);
  const std::string with = without_plot_script(render(evil_collection, evil));
  const std::string without = without_plot_script(render(calm_collection, calm));
  EXPECT_EQ(with.find("<img"), std::string::npos);
  EXPECT_EQ(with.find("<b>"), std::string::npos);
  EXPECT_EQ(count(with, "<script"), count(without, "<script"));
  EXPECT_EQ(count(with, "</script"), count(without, "</script"));
  EXPECT_EQ(count(with, "<"), count(without, "<"));
}

TEST(Page, FiguresSurviveTheScriptElement) {
  const std::string evil = "</script>µ";
  const std::string page = render(test::collection(evil), "t");
  const std::string open = "<script type=\"application/json\" id=\"figures\">";
  const std::size_t start = page.find(open) + open.size();
  const json figures = json::parse(page.substr(start, page.find("</script>", start) - start));
  ASSERT_EQ(figures.size(), 9U);
  EXPECT_EQ(figures[1]["panels"][0]["group"], evil + ", 256 threads, one way");
}

TEST(Page, NeedsNothingFromOutside) {
  const std::string page = without_plot_script(render(test::collection("text"), "demo"));
  EXPECT_EQ(count(page, "http://"), 0U);
  EXPECT_EQ(count(page, "https://"), 0U);
  EXPECT_EQ(count(page, " src="), 0U);
  EXPECT_EQ(count(page, "@import"), 0U);
}

// Replaces one value somewhere inside by another of any type.
void spoil(json& value, std::mt19937& random) {
  if (value.is_structured() && !value.empty() && random() % 4 != 0) {
    auto at = value.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random() % value.size()));
    spoil(*at, random);
    return;
  }
  const std::vector<json> others{nullptr,        -1,
                                 1e300,          "text",
                                 true,           json::array(),
                                 json::object(), json::array({1, "a", nullptr, json::array()})};
  value = others[random() % others.size()];
}

TEST(Page, DocumentsOfAnyShapeAreShownAsFarAsTheyGo) {
  std::mt19937 random(1);
  const std::vector<json> good = test::all_documents("text");
  for (int round = 0; round < 2000; ++round) {
    json content = good[random() % good.size()];
    const json format = content["format"];
    for (int i = 0; i < 3; ++i) spoil(content, random);
    if (!content.is_object()) continue;
    content["format"] = format;
    Collection collection;
    collection.documents.push_back(parse_document("a.json", content.dump()).value());
    EXPECT_NO_THROW((void)render(collection, "t")) << content.dump();
  }
}

}  // namespace
}  // namespace xstage::report
