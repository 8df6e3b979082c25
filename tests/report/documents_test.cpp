#include "report/documents.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "support/process.hpp"

namespace xstage::report {
namespace {

using xstage::test::TemporaryDirectory;

std::string why(std::string_view text) {
  const auto document = parse_document("x.json", text);
  return document ? "" : document.error().what;
}

TEST(Documents, WhatIsNotADocumentIsSaid) {
  EXPECT_EQ(why(R"({"format": "xstage.plan/1"})"), "");
  EXPECT_EQ(why(""), "empty file");
  EXPECT_EQ(why(" \r\n"), "empty file");
  EXPECT_EQ(why("{\n  \"format\": oops}"), "not JSON: line 2, column 13");
  EXPECT_EQ(why("{\"a\": 1e999}"), "holds a number too large for a double");
  EXPECT_EQ(why("[1]"), "not a JSON object");
  EXPECT_EQ(why("{}"), "no \"format\"; not a document of xstage");
  EXPECT_EQ(why(R"({"format": 7})"), "no \"format\"; not a document of xstage");
  EXPECT_EQ(why(R"({"format": "xstage.horse/1"})"), "unknown format 'xstage.horse/1'");
  EXPECT_EQ(why(R"({"format": "xstage.plan"})"), "unknown format 'xstage.plan'");
  EXPECT_EQ(why(R"({"format": "xstage.plan/1x"})"), "unknown format 'xstage.plan/1x'");
  EXPECT_EQ(why(R"({"format": "xstage.plan/2"})"),
            "format 'xstage.plan/2'; this xstage reads version 1");
  EXPECT_EQ(why(R"({"error": {"message": "no driver"}})"), "a failed run: no driver");
}

TEST(Documents, DeepNestingIsRefusedBeforeItIsParsed) {
  EXPECT_EQ(why(std::string(1000000, '[')), "nested 1000000 levels deep; allowed: 64");
  // Brackets inside strings do not count.
  EXPECT_EQ(why(R"({"format": "xstage.plan/1", "a": ")" + std::string(100, '[') + "\"}"), "");
}

TEST(Documents, ReadsWhatIsGoodAndNamesTheRest) {
  const TemporaryDirectory directory;
  directory.write("b.json", R"({"format": "xstage.plan/1"})");
  directory.write("a.json", R"({"format": "xstage.profile/1"})");
  directory.write("broken.json", "{");
  directory.write("notes.txt", "{");
  directory.write("trace.json", R"({"traceEvents": []})");
  std::filesystem::create_directory(directory.path() / "folder.json");
  ASSERT_EQ(::mkfifo((directory.path() / "pipe.json").c_str(), 0600), 0);
  const auto collection = read_documents(directory.path());
  ASSERT_TRUE(collection.ok());
  ASSERT_EQ(collection->documents.size(), 2U);
  EXPECT_EQ(collection->documents[0].kind, "profile");
  EXPECT_EQ(collection->documents[1].file, "b.json");
  ASSERT_EQ(collection->problems.size(), 3U);
  EXPECT_EQ(collection->problems[0].file, "broken.json");
  EXPECT_EQ(collection->problems[1].why, "not a regular file");
  EXPECT_EQ(collection->timelines, std::vector<std::string>{"trace.json"});
}

TEST(Documents, AHugeFileIsNamedAndNotRead) {
  const TemporaryDirectory directory;
  directory.write("a.json", R"({"format": "xstage.profile/1"})");
  directory.write("huge.json", R"({"format": "xstage.profile/1"})");
  std::filesystem::resize_file(directory.path() / "huge.json", kMaxDocumentBytes + 1);
  const auto collection = read_documents(directory.path());
  ASSERT_TRUE(collection.ok());
  ASSERT_EQ(collection->problems.size(), 1U);
  EXPECT_EQ(collection->problems[0].why, "67108865 bytes; allowed: 67108864");
}

TEST(Documents, NothingUsableIsAnError) {
  const TemporaryDirectory directory;
  EXPECT_EQ(read_documents(directory.path()).error().what, "no JSON files");
  directory.write("a.json", "{");
  EXPECT_EQ(read_documents(directory.path()).error().what,
            "no usable JSON file: a.json (not JSON: line 1, column 2)");
  const auto missing = read_documents(directory.path() / "missing");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().kind, ErrorKind::kBadInput);
  EXPECT_NE(missing.error().message().find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace xstage::report
