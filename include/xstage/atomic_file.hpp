// Files that appear whole or not at all.
//
// The text goes to a temporary file in the same directory, is forced to the disk, and takes the
// final name by rename. A reader therefore sees the old file or the new one; a full disk, a missing
// directory or an interruption leaves what was there before.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "xstage/result.hpp"

namespace xstage {

/// A file being written. It takes its name in commit(); destroyed before that, it leaves nothing.
///
/// A symbolic link is followed, so that the link stays and the file behind it is replaced. A target
/// that is not a regular file (a device, a pipe) cannot be replaced by rename and is written
/// directly. Permissions of a file that is replaced are kept.
class AtomicFile {
 public:
  /// Starts to write `path`. Fails with kBadInput when the directory is missing or not writable, or
  /// when `path` is a directory; the error's field is "file" and its value is the path.
  static Result<AtomicFile> open(const std::filesystem::path& path);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends bytes. The first failure (disk full, say) is kept and reported by commit().
  void append(std::string_view bytes);

  /// Makes the file visible under its name. Returns its size in bytes.
  Result<std::size_t> commit();

 private:
  AtomicFile() = default;
  void flush();
  void fail(std::string_view action, int code);
  void discard() noexcept;

  std::filesystem::path path_;       // as asked for, for messages
  std::filesystem::path target_;     // behind symbolic links
  std::filesystem::path temporary_;  // empty: written directly, or already committed
  std::string buffer_;
  std::size_t size_ = 0;
  int descriptor_ = -1;
  std::optional<Error> error_;
};

/// Writes a file whole or not at all. Returns its size in bytes; the error names path and reason.
Result<std::size_t> write_file(const std::filesystem::path& path, std::string_view contents);

}  // namespace xstage
