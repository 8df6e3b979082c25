#include "report/documents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <optional>
#include <system_error>

#include "xstage/input_file.hpp"

namespace xstage::report {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormatPrefix = "xstage.";
constexpr int kVersion = 1;
constexpr std::array<std::string_view, 11> kKinds{
    "profile", "fit",   "validation", "prediction", "plan",       "simulation",
    "run",     "bench", "doctor",     "summary",    "calibration"};
constexpr std::size_t kProblemsInMessage = 3;

Error unusable(std::string why) { return {ErrorKind::kBadInput, std::move(why), {}, {}, {}}; }

// "xstage.plan/1" -> {"plan", 1}
std::optional<std::pair<std::string, int>> split_format(std::string_view format) {
  const std::size_t slash = format.find('/');
  if (!format.starts_with(kFormatPrefix) || slash == std::string_view::npos) return std::nullopt;
  const std::string_view digits = format.substr(slash + 1);
  int version = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), version);
  if (status != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return std::pair{std::string(format.substr(kFormatPrefix.size(), slash - kFormatPrefix.size())),
                   version};
}

// A parser's message without the library's own prefix and without a copy of the user's bytes.
std::string parse_reason(const json::parse_error& error, std::string_view text) {
  const auto at = std::min<std::size_t>(error.byte == 0 ? 0 : error.byte - 1, text.size());
  const auto line =
      1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  const std::size_t start = text.substr(0, at).rfind('\n');
  const std::size_t column = start == std::string_view::npos ? at + 1 : at - start;
  return fmt::format("not JSON: line {}, column {}", line, column);
}

bool is_timeline(std::string_view head) { return head.find("\"traceEvents\"") < 4096; }

}  // namespace

Result<Document> parse_document(std::string file, std::string_view text) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return unusable("empty file");
  if (const int levels = json_depth(text); levels > kMaxJsonDepth)
    return unusable(fmt::format("nested {} levels deep; allowed: {}", levels, kMaxJsonDepth));
  Document document{std::move(file), "", {}};
  try {
    document.content = json::parse(text);
  } catch (const json::parse_error& error) {
    return unusable(parse_reason(error, text));
  } catch (const json::exception&) {
    return unusable("holds a number too large for a double");
  }
  if (!document.content.is_object()) return unusable("not a JSON object");
  const std::string format = get_text(document.content, "format");
  if (format.empty()) {
    if (child(document.content, "error").is_object())
      return unusable("a failed run: " +
                      get_text(child(document.content, "error"), "message", "no message"));
    return unusable("no \"format\"; not a document of xstage");
  }
  const auto parts = split_format(format);
  if (!parts || std::find(kKinds.begin(), kKinds.end(), parts->first) == kKinds.end())
    return unusable(fmt::format("unknown format '{}'", format));
  if (parts->second != kVersion)
    return unusable(fmt::format("format '{}'; this xstage reads version {}", format, kVersion));
  document.kind = parts->first;
  return document;
}

Result<Collection> read_documents(const fs::path& directory) {
  std::error_code status;
  std::vector<fs::path> paths;
  fs::directory_iterator entries(directory, status);
  for (; !status && entries != fs::directory_iterator(); entries.increment(status))
    if (entries->path().extension() == ".json") paths.push_back(entries->path());
  if (status)
    return bad_input(fmt::format("cannot read the directory: {}", status.message()), "DIR",
                     directory.string(), "a directory with the JSON files of earlier runs");
  std::sort(paths.begin(), paths.end());

  Collection out;
  for (const fs::path& path : paths) {
    const std::string file = path.filename().string();
    // A pipe or device would block; a directory is no document.
    if (!fs::is_regular_file(path, status)) {
      out.problems.push_back({file, "not a regular file"});
      continue;
    }
    const std::uintmax_t size = fs::file_size(path, status);
    std::ifstream in(path, std::ios::binary);
    std::string text(static_cast<std::size_t>(std::min(size, kMaxDocumentBytes)), '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
    if (!in && text.empty() && size != 0) {
      out.problems.push_back({file, "cannot be read"});
      continue;
    }
    if (is_timeline(text)) {
      out.timelines.push_back(file);
      continue;
    }
    if (size > kMaxDocumentBytes) {
      out.problems.push_back({file, fmt::format("{} bytes; allowed: {}", size, kMaxDocumentBytes)});
      continue;
    }
    Result<Document> document = parse_document(file, text);
    if (document)
      out.documents.push_back(std::move(*document));
    else
      out.problems.push_back({file, document.error().what});
  }
  if (!out.documents.empty()) return out;

  std::string what = paths.empty() ? "no JSON files" : "no usable JSON file";
  for (std::size_t i = 0; i < std::min(out.problems.size(), kProblemsInMessage); ++i)
    what +=
        fmt::format("{} {} ({})", i == 0 ? ":" : ",", out.problems[i].file, out.problems[i].why);
  if (out.problems.size() > kProblemsInMessage)
    what += fmt::format(" and {} more", out.problems.size() - kProblemsInMessage);
  return bad_input(what, "DIR", directory.string(),
                   "a directory with the JSON files that other verbs wrote");
}

}  // namespace xstage::report
