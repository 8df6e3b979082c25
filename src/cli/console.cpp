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

}  // namespace

nlohmann::json to_json(const Error& error) {
  nlohmann::json out{{"kind", kind_name(error.kind)},
                     {"exit_code", static_cast<int>(error.kind)},
                     {"message", error.message()}};
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

int Console::fail(const Error& error, nlohmann::json partial) const {
  partial["error"] = to_json(error);
  document(partial);
  std::fflush(stdout);
  log("xstage: " + error.message());
  return static_cast<int>(error.kind);
}

}  // namespace xstage::cli
