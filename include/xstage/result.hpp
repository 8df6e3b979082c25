// Errors that say what was wrong: the field, the value it had and what is allowed.
//
// Inside the library a function that can fail returns Result<T>; at the edges (command line,
// bindings) the error travels as the exception Failure.
#pragma once

#include <exception>
#include <string>
#include <utility>
#include <variant>

namespace xstage {

/// What kind of failure it is. The value is the exit code of the command line.
enum class ErrorKind : int {
  kCheckFailed = 1,   ///< a wrong result or a failed check
  kBadInput = 2,      ///< usage, or input that is not allowed
  kNoGpu = 3,         ///< no driver or no GPU where one is needed
  kUnsupported = 4,   ///< too few GPUs, no peer access, MIG, unsupported architecture
  kTimeout = 5,       ///< a wait timed out
  kPoorFit = 6,       ///< a fit too poor to use
  kInterrupted = 130  ///< interrupted by the user
};

/// One failure. `field` is empty where no single field is at fault.
struct Error {
  ErrorKind kind = ErrorKind::kBadInput;
  std::string what;     ///< one sentence, without the parts below
  std::string field;    ///< name of the option, column or key at fault
  std::string value;    ///< the value it had
  std::string allowed;  ///< what is allowed instead

  /// One line: "what (field = value; allowed: …)".
  std::string message() const {
    std::string text = what;
    if (!field.empty()) {
      text += text.empty() ? "" : " (";
      text += field + " = " + (value.empty() ? "''" : value);
      if (!allowed.empty()) text += "; allowed: " + allowed;
      if (!what.empty()) text += ")";
    } else if (!allowed.empty()) {
      text += " (allowed: " + allowed + ")";
    }
    return text;
  }
};

/// The error of a field whose value is not allowed.
inline Error bad_input(std::string what, std::string field, std::string value,
                       std::string allowed) {
  return {ErrorKind::kBadInput, std::move(what), std::move(field), std::move(value),
          std::move(allowed)};
}

/// Error as an exception, for the edges.
class Failure : public std::exception {
 public:
  explicit Failure(Error error) : error_(std::move(error)), text_(error_.message()) {}
  const Error& error() const { return error_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  Error error_;
  std::string text_;
};

/// A value, or the error that stands in its place.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  const Error& error() const { return std::get<1>(state_); }

  /// The value; throws Failure where there is none.
  const T& value() const& {
    if (!ok()) throw Failure(error());
    return std::get<0>(state_);
  }
  T&& value() && {
    if (!ok()) throw Failure(error());
    return std::get<0>(std::move(state_));
  }
  const T& operator*() const& { return std::get<0>(state_); }
  T& operator*() & { return std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }

 private:
  std::variant<T, Error> state_;
};

}  // namespace xstage
