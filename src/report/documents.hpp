// The JSON documents of a directory, and what could not be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "report/html.hpp"
#include "xstage/result.hpp"

namespace xstage::report {

/// Larger files are named and left out: no document of docs/formats.md comes near it.
inline constexpr std::uintmax_t kMaxDocumentBytes = 64U << 20;

struct Document {
  std::string file;  ///< last path component
  std::string kind;  ///< "validation" for "xstage.validation/1"
  json content;
};

struct Problem {
  std::string file;
  std::string why;
};

struct Collection {
  std::vector<Document> documents;     ///< by file name
  std::vector<Problem> problems;       ///< files that could not be used, with the reason
  std::vector<std::string> timelines;  ///< Chrome traces, which Perfetto opens
};

/// Reads the *.json files directly inside `directory`. A file that is broken, too large, of an
/// unknown kind or of a newer version becomes a problem. Fails with kBadInput when the directory
/// cannot be read or holds no usable document; the error names the first problems.
Result<Collection> read_documents(const std::filesystem::path& directory);

/// One document from its text; what is wrong with it as the error's `what`.
Result<Document> parse_document(std::string file, std::string_view text);

}  // namespace xstage::report
