// Runs a program as a person would, and keeps what it said.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "support/sanitizers.hpp"

namespace xstage::test {

struct Outcome {
  int exit_code = -1;  ///< 128 + signal when it was killed
  std::string out;
  std::string err;
  double seconds = 0;
  bool timed_out = false;

  /// The last line of stderr that is not empty.
  std::string last_error_line() const;
};

/// After this a program hangs. validate --folds takes 90 s of a core under AddressSanitizer.
inline constexpr std::chrono::seconds kHangs{kSlowness == 1 ? 60 : 600};

/// Runs `arguments` (the first is the program, looked for in PATH) with an empty standard input and
/// kills it after `limit`.
Outcome run(const std::vector<std::string>& arguments, std::chrono::seconds limit = kHangs);

/// The same, but sends `signal` after `delay`. The program starts with the signals a terminal
/// gives.
Outcome run_and_signal(const std::vector<std::string>& arguments, int signal,
                       std::chrono::milliseconds delay);

/// The whole file; empty when there is none.
std::string read_file(const std::filesystem::path& path);

/// A directory of its own, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }
  /// Writes a file inside and returns its path.
  std::filesystem::path write(const std::string& name, const std::string& contents) const;

 private:
  std::filesystem::path path_;
};

}  // namespace xstage::test
