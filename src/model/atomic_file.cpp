#include "xstage/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace xstage {
namespace {

namespace fs = std::filesystem;

// Traces run to hundreds of megabytes in short pieces: gather them before each system call.
constexpr std::size_t kBufferBytes = 1U << 20;
constexpr int kTemporaryNameTries = 100;
constexpr mode_t kNewFileMode = 0666;  // less the umask
constexpr mode_t kPermissionBits = 07777;

Error file_error(const fs::path& path, std::string_view action, int code) {
  return {ErrorKind::kBadInput, fmt::format("cannot {}: {}", action, std::strerror(code)), "file",
          path.string(), "a path in a directory that exists, is writable and has room"};
}

// A temporary name that no other process or thread is using; the directory is the target's, since
// rename is atomic only inside one file system.
fs::path temporary_name(const fs::path& target) {
  static std::atomic<unsigned> counter{0};
  return target.parent_path() /
         fmt::format(".{}.{}-{}.tmp", target.filename().string(), ::getpid(), counter++);
}

void sync_directory(const fs::path& directory) {
  // Makes the rename itself survive a crash. Some file systems refuse it; the file is whole anyway.
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  (void)::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

Result<AtomicFile> AtomicFile::open(const fs::path& path) {
  AtomicFile file;
  file.path_ = path;
  if (path.empty()) return file_error(path, "write a file without a name", ENOENT);

  std::error_code ignored;
  file.target_ = fs::weakly_canonical(fs::absolute(path, ignored), ignored);
  if (ignored || !path.has_filename()) file.target_ = path;

  struct stat status{};
  const bool exists = ::stat(file.target_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) return file_error(path, "write", EISDIR);
  if (exists && !S_ISREG(status.st_mode)) {
    // Opened by the name as given: /dev/stdout may stand for a pipe that has no path.
    file.descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file.descriptor_ < 0) return file_error(path, "open", errno);
    return file;
  }
  // A file the user made read-only is not replaced behind his back.
  if (exists && ::access(file.target_.c_str(), W_OK) != 0)
    return file_error(path, "replace", errno);

  for (int tries = 0; tries < kTemporaryNameTries && file.descriptor_ < 0; ++tries) {
    file.temporary_ = temporary_name(file.target_);
    file.descriptor_ =
        ::open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kNewFileMode);
    if (file.descriptor_ < 0 && errno != EEXIST) break;
  }
  if (file.descriptor_ < 0) {
    const int code = errno;
    file.temporary_.clear();
    return file_error(path, "write", code);
  }
  if (exists) (void)::fchmod(file.descriptor_, status.st_mode & kPermissionBits);
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      buffer_(std::move(other.buffer_)),
      size_(other.size_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      error_(std::move(other.error_)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  if (this == &other) return *this;
  discard();
  path_ = std::move(other.path_);
  target_ = std::move(other.target_);
  temporary_ = std::exchange(other.temporary_, {});
  buffer_ = std::move(other.buffer_);
  size_ = other.size_;
  descriptor_ = std::exchange(other.descriptor_, -1);
  error_ = std::move(other.error_);
  return *this;
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::append(std::string_view bytes) {
  if (error_) return;
  buffer_.append(bytes);
  size_ += bytes.size();
  if (buffer_.size() >= kBufferBytes) flush();
}

void AtomicFile::flush() {
  std::string_view rest = buffer_;
  while (!rest.empty() && !error_) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written >= 0)
      rest.remove_prefix(static_cast<std::size_t>(written));
    else if (errno != EINTR)
      fail("write", errno);
  }
  buffer_.clear();
}

void AtomicFile::fail(std::string_view action, int code) {
  if (!error_) error_ = file_error(path_, action, code);
}

Result<std::size_t> AtomicFile::commit() {
  if (descriptor_ < 0 && !error_) fail("write twice", EBADF);
  if (!error_) flush();
  if (!error_ && !temporary_.empty() && ::fsync(descriptor_) != 0) fail("write", errno);
  // Some file systems report a full disk only here.
  if (descriptor_ >= 0 && ::close(std::exchange(descriptor_, -1)) != 0) fail("write", errno);
  if (!error_ && !temporary_.empty()) {
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
      fail("rename the finished file", errno);
    } else {
      temporary_.clear();
      sync_directory(target_.parent_path());
    }
  }
  if (!error_) return size_;
  discard();
  return *error_;
}

void AtomicFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

Result<std::size_t> write_file(const fs::path& path, std::string_view contents) {
  Result<AtomicFile> file = AtomicFile::open(path);
  if (!file) return file.error();
  file->append(contents);
  return file->commit();
}

}  // namespace xstage
