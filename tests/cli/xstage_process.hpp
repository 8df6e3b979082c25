// Runs the executable and checks what holds on every path: with --json, standard output is one
// complete document; without an answer the last line of standard error says what and why.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "support/process.hpp"

namespace xstage::test {

inline Outcome xstage(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), XSTAGE_EXECUTABLE);
  return run(arguments);
}

/// The document on standard output, or null when it is not one whole document.
inline nlohmann::json document(const Outcome& outcome) {
  return nlohmann::json::parse(outcome.out, nullptr, false).is_discarded()
             ? nlohmann::json()
             : nlohmann::json::parse(outcome.out);
}

/// The text with bytes that are not UTF-8 replaced, as in a document.
inline std::string as_json_text(const std::string& text) {
  const auto replace = nlohmann::json::error_handler_t::replace;
  return nlohmann::json::parse(nlohmann::json(text).dump(-1, ' ', false, replace));
}

/// Expects the failure `exit_code`, in text and with --json; returns the JSON error.
inline nlohmann::json expect_failure(const std::vector<std::string>& arguments, int exit_code) {
  const Outcome text = xstage(arguments);
  EXPECT_EQ(text.exit_code, exit_code) << text.err;
  EXPECT_TRUE(text.last_error_line().starts_with("xstage: ")) << text.err;
  EXPECT_FALSE(text.timed_out);

  std::vector<std::string> with_json = arguments;
  with_json.push_back("--json");
  const Outcome machine = xstage(with_json);
  EXPECT_EQ(machine.exit_code, exit_code) << machine.err;
  // Two runs find different amounts of free memory.
  const std::regex free_memory("at most [0-9.]+ GB");
  EXPECT_EQ(std::regex_replace(machine.last_error_line(), free_memory, "GB"),
            std::regex_replace(text.last_error_line(), free_memory, "GB"));
  const nlohmann::json whole = document(machine);
  EXPECT_TRUE(whole.is_object()) << machine.out;
  if (!whole.contains("error")) {
    ADD_FAILURE() << "no error in: " << machine.out;
    return {};
  }
  const nlohmann::json error = whole["error"];
  EXPECT_EQ(error.value("exit_code", -1), exit_code);
  EXPECT_FALSE(error.value("kind", "").empty());
  // The line a person reads and the message a program reads are one, but for bytes that no JSON
  // text can hold.
  EXPECT_EQ("xstage: " + error.value("message", ""), as_json_text(machine.last_error_line()));
  return error;
}

/// The verbs, as the help lists them.
inline std::vector<std::string> verbs() {
  std::istringstream help(xstage({"--help"}).out);
  std::vector<std::string> out;
  bool inside = false;
  for (std::string line; std::getline(help, line);) {
    if (line.starts_with("Subcommands:")) {
      inside = true;
    } else if (inside && line.size() > 2 && line.starts_with("  ") && line[2] != ' ') {
      out.push_back(line.substr(2, line.find(' ', 2) - 2));
    }
  }
  return out;
}

}  // namespace xstage::test
