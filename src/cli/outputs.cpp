#include "cli/outputs.hpp"

#include <filesystem>

#include "xstage/atomic_file.hpp"

namespace xstage::cli {

void probe_output(const std::string& path) {
  if (path.empty()) return;
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  // Opening a pipe would wait for its reader, and closing it again would tell him that all is said.
  if (std::filesystem::is_other(status)) return;
  const Result<AtomicFile> file = AtomicFile::open(path);
  if (!file) throw Failure(file.error());
}

}  // namespace xstage::cli
