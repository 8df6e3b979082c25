// Reads every include of include/xstage and src and holds it against the table in
// docs/architecture.md, so that the drawing there stays true.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "support/process.hpp"

namespace xstage::test {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = XSTAGE_SOURCE_DIR;

std::string trimmed(const std::string& text) {
  const std::size_t start = text.find_first_not_of(' ');
  return start == std::string::npos ? ""
                                    : text.substr(start, text.find_last_not_of(' ') - start + 1);
}

using Rooms = std::map<std::string, std::set<std::string>>;

// The table under "Who may include whom": room -> rooms it may include.
Rooms allowed_rooms() {
  std::istringstream page(read_file(kSource / "docs/architecture.md"));
  Rooms out;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) inside = line == "## Who may include whom";
    if (!inside || !line.starts_with("| ") || line.starts_with("| ---")) continue;
    std::istringstream cells(line.substr(1));
    std::string room;
    std::string list;
    std::getline(cells, room, '|');
    std::getline(cells, list, '|');
    if (trimmed(room) == "room") continue;
    std::set<std::string>& rooms = out[trimmed(room)];
    std::istringstream names(list);
    for (std::string name; std::getline(names, name, ',');)
      if (!trimmed(name).empty()) rooms.insert(trimmed(name));
  }
  return out;
}

// "xstage/schedule/moe.hpp" -> schedule; "xstage/result.hpp" -> base; "cli/verbs.hpp" -> cli.
std::string room_of(const std::string& header) {
  const fs::path path = header;
  auto part = path.begin();
  const bool is_public = part->string() == "xstage";
  if (is_public) ++part;
  return std::next(part) == path.end() ? (is_public ? "base" : "") : part->string();
}

struct Include {
  fs::path file;
  std::string room;
  std::string header;
};

std::vector<Include> includes() {
  std::vector<Include> out;
  for (const char* root : {"include", "src"})
    for (const auto& entry : fs::recursive_directory_iterator(kSource / root)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".hpp" && extension != ".cpp" && extension != ".cu" && extension != ".cuh")
        continue;
      const fs::path file = fs::relative(entry.path(), kSource / root);
      std::istringstream text(read_file(entry.path()));
      for (std::string line; std::getline(text, line);) {
        if (!line.starts_with("#include \"")) continue;
        std::string header = line.substr(10, line.find('"', 10) - 10);
        // As the compiler does: beside the file first, then below the include paths.
        const fs::path beside = entry.path().parent_path() / header;
        if (fs::exists(beside))
          header = fs::relative(fs::canonical(beside), fs::canonical(kSource / root)).string();
        out.push_back({fs::path(root) / file, room_of(file.string()), header});
      }
    }
  return out;
}

TEST(Includes, FollowTheTableOfTheArchitecture) {
  const Rooms allowed = allowed_rooms();
  const std::vector<Include> all = includes();
  ASSERT_GE(allowed.size(), 10U);
  ASSERT_GE(all.size(), 20U);
  for (const Include& include : all) {
    const std::string target = room_of(include.header);
    SCOPED_TRACE(include.file.string() + " includes \"" + include.header + "\"");
    EXPECT_TRUE(allowed.contains(include.room)) << "no such room in docs/architecture.md";
    if (target == include.room || !allowed.contains(include.room)) continue;
    EXPECT_TRUE(allowed.at(include.room).contains(target))
        << include.room << " may not include " << target;
  }
}

TEST(Includes, TheTablePointsOneWay) {
  const Rooms allowed = allowed_rooms();
  for (const auto& [room, below] : allowed)
    for (const std::string& other : below) {
      EXPECT_TRUE(allowed.contains(other)) << room << " names " << other;
      const bool both = allowed.contains(other) && allowed.at(other).contains(room);
      EXPECT_FALSE(both) << room << " and " << other << " include each other";
    }
  EXPECT_FALSE(allowed.at("cuda").contains("cpu"));
  EXPECT_FALSE(allowed.at("cpu").contains("cuda"));
}

TEST(Includes, PublicHeadersNeedNoCuda) {
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "include")) {
    if (entry.path().extension() != ".hpp") continue;
    const std::string text = read_file(entry.path());
    EXPECT_EQ(text.find("#include <cuda"), std::string::npos) << entry.path();
  }
}

}  // namespace
}  // namespace xstage::test
