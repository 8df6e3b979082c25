#include "report/html.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <limits>

namespace xstage::report {
namespace {

TEST(Html, EscapesWhatHtmlGivesMeaning) {
  EXPECT_EQ(escape(R"(<a href="x" title='y'>&)"),
            "&lt;a href=&quot;x&quot; title=&#39;y&#39;&gt;&amp;");
}

TEST(Html, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(escape("a\xFFz"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(escape("\xC3"), "\xEF\xBF\xBD");
  EXPECT_EQ(escape("µs ×"), "µs ×");
}

TEST(Html, EscapedTextNeverOpensAnElement) {
  EXPECT_TRUE(rc::check([](const std::string& text) {
    const std::string escaped = escape(text);
    RC_ASSERT(escaped.find_first_of("<>\"'") == std::string::npos);
  }));
}

TEST(Html, NumbersAreWrittenAsAPersonWould) {
  EXPECT_EQ(number(0.0), "0");
  EXPECT_EQ(number(373.0), "373");
  EXPECT_EQ(number(373.4, 4), "373.4");
  EXPECT_EQ(number(0.19), "0.190");
  EXPECT_EQ(number(0.008), "0.00800");
  EXPECT_EQ(number(12345.6), "12346");
  EXPECT_EQ(number(-2.5), "-2.50");
  EXPECT_EQ(number(1e-7), "1e-07");
  EXPECT_EQ(number(std::nullopt), "–");
  EXPECT_EQ(number(std::numeric_limits<double>::infinity()), "–");
}

TEST(Html, NumbersKeepTheirValue) {
  EXPECT_TRUE(rc::check([](double value) {
    const std::string text = number(value, 6);
    RC_ASSERT(std::abs(std::stod(text) - value) <= 1e-5 * std::abs(value) + 1e-300);
  }));
}

TEST(Html, BytesByTheThousandAndBurstsByTheKibi) {
  EXPECT_EQ(bytes(4325376.0), "4.33\u202FMB");
  EXPECT_EQ(bytes(0.0), "0\u202FB");
  EXPECT_EQ(binary_bytes(32768.0), "32\u202FKiB");
  EXPECT_EQ(binary_bytes(2097152.0), "2\u202FMiB");
  EXPECT_EQ(binary_bytes(1000.0), "1000\u202FB");
}

TEST(Html, ReadsNeverThrow) {
  const json object = json::parse(R"({"number": 1, "text": "x", "list": [1, "a", null]})");
  EXPECT_EQ(get_number(object, "text"), std::nullopt);
  EXPECT_EQ(get_number(object, "missing"), std::nullopt);
  EXPECT_EQ(get_number(json(3), "number"), std::nullopt);
  EXPECT_EQ(get_text(object, "number", "–"), "–");
  EXPECT_EQ(get_numbers(object, "number").size(), 0U);
  EXPECT_EQ(get_numbers(object, "list").size(), 3U);
  EXPECT_EQ(get_any(json{{"a", 0.19}}, "a"), "0.19");
  EXPECT_EQ(get_any(json{{"a", 8192}}, "a"), "8192");
}

}  // namespace
}  // namespace xstage::report
