// Files and JSON that come from a user: what could block, never end or exhaust the stack is
// refused.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "xstage/result.hpp"

namespace xstage {

/// Opens a file for reading. Refused with `field` and the path: what is not there or not readable,
/// and everything that is no regular file. A pipe without a writer blocks for ever, a device may
/// have no end, and both can be read only once while a document names the digest of its inputs.
Result<std::ifstream> open_input(const std::filesystem::path& path, std::string_view field);

/// Documents nest a few levels; parsing and writing recurse, so deeper ones could end the stack.
inline constexpr int kMaxJsonDepth = 64;

/// The deepest nesting of brackets outside strings. Cheaper than parsing, and done before it.
int json_depth(std::string_view text);

/// The JSON in `text`; nothing where it is none, or nested deeper than kMaxJsonDepth.
std::optional<nlohmann::json> parse_json(std::string_view text);

/// The JSON in the rest of a stream, likewise.
std::optional<nlohmann::json> parse_json(std::istream& in);

}  // namespace xstage
