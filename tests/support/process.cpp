#include "support/process.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <utility>

namespace xstage::test {

namespace fs = std::filesystem;

std::string Outcome::last_error_line() const {
  const std::size_t end = err.find_last_not_of('\n');
  if (end == std::string::npos) return {};
  const std::size_t before = err.rfind('\n', end);
  const std::size_t start = before == std::string::npos ? 0 : before + 1;
  return err.substr(start, end - start + 1);
}

namespace {

Outcome run(const std::vector<std::string>& arguments, std::chrono::seconds limit, int signal,
            std::chrono::milliseconds delay) {
  // Files rather than pipes: nothing can fill up while nobody reads.
  const TemporaryDirectory scratch;
  const std::string out = (scratch.path() / "out").string();
  const std::string err = (scratch.path() / "err").string();
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  const auto start = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    ::setpgid(0, 0);
    // A shell starts what it runs in the background with SIGINT ignored.
    (void)std::signal(SIGINT, SIG_DFL);
    ::dup2(::open("/dev/null", O_RDONLY), 0);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), 1);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), 2);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  Outcome outcome;
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(child, &status, WNOHANG)) == 0) {
    if (signal != 0 && std::chrono::steady_clock::now() - start > delay)
      ::kill(child, std::exchange(signal, 0));
    if (std::chrono::steady_clock::now() - start > limit) {
      outcome.timed_out = true;
      ::kill(-child, SIGKILL);
      ended = ::waitpid(child, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (ended == child)
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = read_file(out);
  outcome.err = read_file(err);
  return outcome;
}

}  // namespace

Outcome run(const std::vector<std::string>& arguments, std::chrono::seconds limit) {
  return run(arguments, limit, 0, {});
}

Outcome run_and_signal(const std::vector<std::string>& arguments, int signal,
                       std::chrono::milliseconds delay) {
  return run(arguments, kHangs, signal, delay);
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (fs::temp_directory_path() / "xstage-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path TemporaryDirectory::write(const std::string& name, const std::string& contents) const {
  const fs::path path = path_ / name;
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

}  // namespace xstage::test
