#include "xstage/input_file.hpp"

#include <algorithm>
#include <iterator>

namespace xstage {

Result<std::ifstream> open_input(const std::filesystem::path& path, std::string_view field) {
  constexpr const char* kAllowed = "a readable file";
  const auto refuse = [&](const char* what) {
    return bad_input(what, std::string(field), path.string(), kAllowed);
  };
  std::error_code code;
  const std::filesystem::file_status status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status)) return refuse("cannot read the file: there is none");
  if (std::filesystem::is_directory(status)) return refuse("a folder is no file");
  if (!std::filesystem::is_regular_file(status))
    return bad_input("a pipe or device cannot be read here", std::string(field), path.string(),
                     "a regular file; write what a pipe brings to one first");
  std::ifstream in(path, std::ios::binary);
  if (!in) return refuse("cannot read the file");
  return in;
}

int json_depth(std::string_view text) {
  int now = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++now);
    } else if (c == '}' || c == ']') {
      --now;
    }
  }
  return deepest;
}

std::optional<nlohmann::json> parse_json(std::string_view text) {
  if (json_depth(text) > kMaxJsonDepth) return {};
  nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (document.is_discarded()) return {};
  return document;
}

std::optional<nlohmann::json> parse_json(std::istream& in) {
  const std::string text(std::istreambuf_iterator<char>(in), {});
  return parse_json(std::string_view(text));
}

}  // namespace xstage
