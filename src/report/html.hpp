// HTML building blocks. Everything that comes from a document passes through escape() or one of the
// functions below, which call it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace xstage::report {

using nlohmann::json;

/// Text as HTML text or attribute value. Bytes that are not UTF-8 become U+FFFD.
std::string escape(std::string_view text);

/// A number with `digits` significant digits and no exponent where a person would write none;
/// an en dash where there is none.
std::string number(std::optional<double> value, int digits = 3);
/// Bytes as B, KB, MB or GB (powers of 1000, as drain rates are).
std::string bytes(std::optional<double> value);
/// Burst sizes as B, KiB or MiB where they divide, since kernels choose them so.
std::string binary_bytes(std::optional<double> value);
/// Microseconds, or nanoseconds below one thousandth of one.
std::string microseconds(std::optional<double> value);
/// A fraction as a percentage.
std::string percent(std::optional<double> fraction);
/// Text as a sentence of its own: a capital first, a full stop last.
std::string sentence(std::string text);
/// Numbers with their unit behind a thin space.
std::string with_unit(const std::string& value, std::string_view unit);

// Reads that never throw: a key of another type counts as absent.
const json& child(const json& object, std::string_view key);
std::optional<double> get_number(const json& object, std::string_view key);
std::optional<bool> get_bool(const json& object, std::string_view key);
std::string get_text(const json& object, std::string_view key, std::string_view otherwise = "");
/// The numbers of an array; anything else in it becomes NaN, which is not drawn.
std::vector<double> get_numbers(const json& object, std::string_view key);
/// A number or text as text: for values whose type differs between documents.
std::string get_any(const json& object, std::string_view key, std::string_view otherwise = "–");

/// A table. Cells are HTML; columns whose heading starts with '>' are right-aligned figures.
class Table {
 public:
  explicit Table(std::vector<std::string> headings) : headings_(std::move(headings)) {}
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  std::string html(std::string_view caption = "") const;

 private:
  std::vector<std::string> headings_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace xstage::report
