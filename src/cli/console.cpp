#include "cli/console.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "cli/interrupt.hpp"

namespace xstage::cli {
namespace {

const char* kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kCheckFailed: return "check_failed";
    case ErrorKind::kBadInput: return "bad_input";
    case ErrorKind::kNoGpu: return "no_gpu";
    case ErrorKind::kUnsupported: return "unsupported";
    case ErrorKind::kTimeout: return "timeout";
    case ErrorKind::kPoorFit: return "poor_fit";
    case ErrorKind::kInterrupted: return "interrupted";
  }
  return "unknown";
}

/// One line, however long the value was and whatever it held: a person reads it, and a script takes
/// the last line of stderr.
std::string message_of(Error error) {
  constexpr std::size_t kMostOfValue = 60;
  error.value = shortened(error.value, kMostOfValue);
  std::string line;
  for (const char c : error.message()) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n')
      line += "\\n";
    else if (byte < 0x20 || byte == 0x7f)
      line += fmt::format("\\x{:02x}", byte);
    else
      line += c;
  }
  return line;
}

}  // namespace

std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  constexpr std::string_view kMark = "…";
  // Never through the middle of a character of several bytes.
  const auto inside = [&](std::size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  std::size_t head = (most - kMark.size()) * 2 / 3;
  std::size_t tail = text.size() - (most - kMark.size() - head);
  for (int i = 0; i < 3 && head > 0 && inside(head); ++i) --head;
  for (int i = 0; i < 3 && inside(tail); ++i) ++tail;
  return std::string(text.substr(0, head)) + std::string(kMark) + std::string(text.substr(tail));
}

nlohmann::json to_json(const Error& error) {
  nlohmann::json out{{"kind", kind_name(error.kind)},
                     {"exit_code", static_cast<int>(error.kind)},
                     {"message", message_of(error)}};
  if (!error.field.empty()) out["field"] = error.field;
  if (!error.value.empty()) out["value"] = error.value;
  if (!error.allowed.empty()) out["allowed"] = error.allowed;
  return out;
}

void Console::text(std::string_view line) const {
  if (!json) fmt::print("{}\n", line);
}

void Console::log(std::string_view line) const { fmt::print(stderr, "{}\n", line); }

void Console::document(const nlohmann::json& value) const {
  // User input may hold bytes that are not UTF-8; they are replaced, so the document stays valid.
  begin_answer();
  if (json) fmt::print("{}\n", value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

int Console::fail(const Error& error) const { return fail(error, nlohmann::json::object()); }

int Console::fail(const Error& failure, nlohmann::json partial) const {
  const Error error = named(failure);
  partial["error"] = to_json(error);
  if (partial.contains("ok")) partial["ok"] = false;  // whatever was right until then
  document(partial);
  std::fflush(stdout);
  log("xstage: " + message_of(error));
  return static_cast<int>(error.kind);
}

}  // namespace xstage::cli
