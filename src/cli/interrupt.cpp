#include "cli/interrupt.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>

#include "cli/console.hpp"

namespace xstage::cli {
namespace {

// A handler may not allocate or lock, so everything it says is written down before. The texts live
// as long as the process: a signal may come while it ends.
const char* prepared_document = "";
std::size_t document_size = 0;
const char* prepared_line = "";
std::size_t line_size = 0;
std::atomic<bool> answering{false};
std::atomic<int> signals{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void write_all(int descriptor, const char* text, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(descriptor, text, size);
    if (written <= 0) return;  // nobody reads: nothing more can be said
    text += written;
    size -= static_cast<std::size_t>(written);
  }
}

void on_signal(int) {
  constexpr int kExitCode = static_cast<int>(ErrorKind::kInterrupted);
  const bool first = signals.fetch_add(1) == 0;
  if (answering.load()) {
    if (first) return;  // the answer is on its way
    ::_exit(kExitCode);
  }
  // Only one thread speaks; another signal meanwhile must not write the document twice.
  if (!first) return;
  write_all(STDOUT_FILENO, prepared_document, document_size);
  write_all(STDERR_FILENO, prepared_line, line_size);
  ::_exit(kExitCode);
}

}  // namespace

void answer_interrupts(bool json) {
  const Error error{
      ErrorKind::kInterrupted, "interrupted before the answer; no file was written", {}, {}, {}};
  static const std::string document =
      json ? nlohmann::json{{"error", to_json(error)}}.dump(2) + "\n" : std::string();
  static const std::string line = "xstage: " + error.message() + "\n";
  prepared_document = document.data();
  document_size = document.size();
  prepared_line = line.data();
  line_size = line.size();
  for (const int number : {SIGINT, SIGTERM}) {
    struct sigaction now{};
    if (::sigaction(number, nullptr, &now) != 0 || now.sa_handler == SIG_IGN) continue;
    struct sigaction ours{};
    ours.sa_handler = on_signal;
    ours.sa_flags = SA_RESTART;
    ::sigemptyset(&ours.sa_mask);
    (void)::sigaction(number, &ours, nullptr);
  }
}

void begin_answer() { answering.store(true); }

}  // namespace xstage::cli
