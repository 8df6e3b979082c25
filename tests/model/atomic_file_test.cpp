#include "xstage/atomic_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace xstage {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "xstage-atomic-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }

  static std::string read(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(directory_))
      out.push_back(entry.path().filename().string());
    return out;
  }

  fs::path directory_;
};

TEST_F(AtomicFileTest, WritesTheBytesAndNothingElse) {
  const fs::path path = directory_ / "profile.json";
  const std::string contents("a\0b\n", 4);
  const auto written = write_file(path, contents);
  ASSERT_TRUE(written.ok()) << written.error().message();
  EXPECT_EQ(*written, contents.size());
  EXPECT_EQ(read(path), contents);
  EXPECT_EQ(names(), std::vector<std::string>{"profile.json"});
}

TEST_F(AtomicFileTest, ReplacesAndKeepsPermissions) {
  const fs::path path = directory_ / "a";
  ASSERT_TRUE(write_file(path, "old").ok());
  ::chmod(path.c_str(), 0640);
  ASSERT_TRUE(write_file(path, "new and longer").ok());
  EXPECT_EQ(read(path), "new and longer");
  struct stat status{};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640U);
}

TEST_F(AtomicFileTest, FollowsASymbolicLink) {
  ASSERT_TRUE(write_file(directory_ / "real", "old").ok());
  fs::create_symlink("real", directory_ / "link");
  ASSERT_TRUE(write_file(directory_ / "link", "new").ok());
  EXPECT_TRUE(fs::is_symlink(directory_ / "link"));
  EXPECT_EQ(read(directory_ / "real"), "new");
}

TEST_F(AtomicFileTest, NothingAppearsBeforeCommit) {
  const fs::path path = directory_ / "a";
  ASSERT_TRUE(write_file(path, "old").ok());
  {
    auto file = AtomicFile::open(path);
    ASSERT_TRUE(file.ok());
    file->append(std::string(3U << 20, 'x'));
    EXPECT_EQ(read(path), "old");
  }
  EXPECT_EQ(read(path), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(AtomicFileTest, ManyAppendsArriveInOrder) {
  auto file = AtomicFile::open(directory_ / "a");
  ASSERT_TRUE(file.ok());
  std::string expected;
  for (int i = 0; i < 400000; ++i) {
    const std::string piece = std::to_string(i) + "\n";
    file->append(piece);
    expected += piece;
  }
  AtomicFile moved = std::move(*file);
  const auto size = moved.commit();
  ASSERT_TRUE(size.ok());
  EXPECT_EQ(*size, expected.size());
  EXPECT_EQ(read(directory_ / "a"), expected);
}

TEST_F(AtomicFileTest, MissingDirectoryNamesPathAndReason) {
  const fs::path path = directory_ / "missing" / "out.json";
  const auto written = write_file(path, "x");
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().kind, ErrorKind::kBadInput);
  EXPECT_EQ(written.error().value, path.string());
  EXPECT_NE(written.error().message().find("No such file or directory"), std::string::npos);
}

TEST_F(AtomicFileTest, ADirectoryOrAnEmptyNameIsRefused) {
  EXPECT_FALSE(write_file(directory_, "x").ok());
  EXPECT_FALSE(write_file(directory_ / "", "x").ok());
  EXPECT_FALSE(write_file("", "x").ok());
  EXPECT_TRUE(fs::is_directory(directory_));
  EXPECT_TRUE(names().empty());
}

TEST_F(AtomicFileTest, FullDeviceIsReported) {
  // A device that always answers "no space left"; it must also survive, not be renamed over.
  const auto written = write_file("/dev/full", "x");
  ASSERT_FALSE(written.ok());
  EXPECT_NE(written.error().message().find("No space left"), std::string::npos);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  EXPECT_TRUE(write_file("/dev/null", "x").ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(AtomicFileTest, OutOfRoomKeepsTheOldFile) {
  const fs::path path = directory_ / "a";
  ASSERT_TRUE(write_file(path, "old").ok());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // A file-size limit fails inside write() exactly as a full disk does, without needing one.
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1U << 20, 1U << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto written = write_file(path, std::string(5U << 20, 'x'));
    ::_exit(!written.ok() && written.error().value == path.string() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(read(path), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(AtomicFileTest, CommitTwiceIsAnError) {
  auto file = AtomicFile::open(directory_ / "a");
  ASSERT_TRUE(file.ok());
  file->append("x");
  ASSERT_TRUE(file->commit().ok());
  EXPECT_FALSE(file->commit().ok());
  EXPECT_EQ(read(directory_ / "a"), "x");
}

}  // namespace
}  // namespace xstage
