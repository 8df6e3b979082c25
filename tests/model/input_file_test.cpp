#include "xstage/input_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <sstream>

namespace xstage {
namespace {

TEST(InputFile, OnlyRegularFilesAreOpened) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "xstage_input_file";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto pipe = folder / "pipe", file = folder / "file", link = folder / "link";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::ofstream(file) << "seven";
  std::filesystem::create_symlink(file, link);
  for (const auto& path : {folder, pipe, folder / "none", std::filesystem::path("/dev/null")}) {
    const auto opened = open_input(path, "--samples");
    ASSERT_FALSE(opened.ok()) << path;
    EXPECT_EQ(opened.error().field, "--samples");
    EXPECT_EQ(opened.error().value, path.string());
  }
  for (const auto& path : {file, link}) {
    auto opened = open_input(path, "--samples");
    ASSERT_TRUE(opened.ok()) << path;
    std::string word;
    *opened >> word;
    EXPECT_EQ(word, "seven");
  }
  std::filesystem::remove_all(folder);
}

TEST(InputFile, JsonIsReadUnlessItIsNestedTooDeep) {
  EXPECT_EQ(parse_json("{\"a\": [1, 2]}")->at("a").size(), 2u);
  std::istringstream in("[1]");
  EXPECT_EQ(parse_json(in)->size(), 1u);
  EXPECT_FALSE(parse_json("{not json").has_value());
  EXPECT_FALSE(parse_json("").has_value());
  const auto nested = [](int levels) {
    return std::string(static_cast<std::size_t>(levels), '[') +
           std::string(static_cast<std::size_t>(levels), ']');
  };
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth)).has_value());
  EXPECT_FALSE(parse_json(nested(kMaxJsonDepth + 1)).has_value());
  EXPECT_FALSE(parse_json(nested(1000000)).has_value());
  EXPECT_EQ(json_depth(R"({"[[[[": "\"[[[["})"), 1);  // brackets in strings are text
}

}  // namespace
}  // namespace xstage
