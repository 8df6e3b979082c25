// What every verb shares: where output goes, and the exit code a verb ends with.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "xstage/result.hpp"

namespace xstage::cli {

/// stdout carries the answer (text, or one JSON document with --json); stderr carries progress,
/// warnings and the last line that says what went wrong.
class Console {
 public:
  bool json = false;
  /// Makes an error of the library one of the command line, whose fields are options.
  std::function<Error(Error)> named = [](Error error) { return error; };

  /// Prints human-readable output; silent with --json.
  void text(std::string_view line) const;
  /// Progress and warnings, always on stderr.
  void log(std::string_view line) const;
  /// Prints the one JSON document of the run; silent without --json.
  void document(const nlohmann::json& value) const;
  /// The document of a run that failed, plus the last line on stderr. Returns the exit code.
  int fail(const Error& error) const;
  /// The same, keeping what the run had already found under its own keys.
  int fail(const Error& error, nlohmann::json partial) const;
};

/// The text, or its two ends with a mark between, when it is longer than `most` bytes.
std::string shortened(std::string_view text, std::size_t most);

/// {"kind": …, "exit_code": …, "message": …, "field": …, "value": …, "allowed": …}
nlohmann::json to_json(const Error& error);

}  // namespace xstage::cli
