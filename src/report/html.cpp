#include "report/html.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

namespace xstage::report {
namespace {

constexpr std::string_view kNone = "–";

// Length of the UTF-8 sequence at `at`, 0 when it is not one.
std::size_t sequence_length(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  std::size_t length = 0;
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) length = 2;
  if (lead >= 0xE0 && lead < 0xF0) length = 3;
  if (lead >= 0xF0 && lead < 0xF5) length = 4;
  if (length == 0 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0U) != 0x80U) return 0;
  return length;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = sequence_length(text, at);
    const char c = text[at];
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      ++at;
      continue;
    }
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += text.substr(at, length);
    }
    at += length;
  }
  return out;
}

std::string number(std::optional<double> value, int digits) {
  if (!value || !std::isfinite(*value)) return std::string(kNone);
  const double magnitude = std::abs(*value);
  if (magnitude != 0 && (magnitude >= 1e9 || magnitude < 1e-4))
    return fmt::format("{:.{}g}", *value, digits);
  const int before = magnitude >= 1 ? static_cast<int>(std::log10(magnitude)) + 1 : 1;
  const int leading_zeros =
      magnitude > 0 && magnitude < 1 ? -static_cast<int>(std::ceil(std::log10(magnitude))) : 0;
  int decimals = digits - before;
  if (magnitude < 1) decimals = digits + leading_zeros;
  std::string out = fmt::format("{:.{}f}", *value, decimals < 0 ? 0 : decimals);
  // Whole numbers are written whole; measured ones keep their digits.
  if (*value == std::round(*value) && out.find('.') != std::string::npos) out.erase(out.find('.'));
  return out;
}

std::string bytes(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return std::string(kNone);
  constexpr std::array<std::string_view, 5> units{"B", "KB", "MB", "GB", "TB"};
  double scaled = *value;
  std::size_t unit = 0;
  while (std::abs(scaled) >= 1000 && unit + 1 < units.size()) {
    scaled /= 1000;
    ++unit;
  }
  return with_unit(number(scaled), units[unit]);
}

std::string binary_bytes(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return std::string(kNone);
  constexpr double kKibi = 1024;
  if (*value >= kKibi * kKibi && std::fmod(*value, kKibi * kKibi) == 0)
    return with_unit(number(*value / (kKibi * kKibi), 4), "MiB");
  if (*value >= kKibi && std::fmod(*value, kKibi) == 0)
    return with_unit(number(*value / kKibi, 4), "KiB");
  return with_unit(number(value, 6), "B");
}

std::string microseconds(std::optional<double> value) {
  constexpr double kNanosecond = 1e-3;
  if (value && *value != 0 && std::abs(*value) < kNanosecond)
    return with_unit(number(*value / kNanosecond), "ns");
  return with_unit(number(value), "µs");
}

std::string percent(std::optional<double> fraction) {
  constexpr double kPercent = 100;
  if (!fraction) return number(fraction);
  return with_unit(number(*fraction * kPercent), "%");
}

std::string sentence(std::string text) {
  if (text.empty()) return text;
  if (text.front() >= 'a' && text.front() <= 'z')
    text.front() = static_cast<char>(text.front() - 'a' + 'A');
  if (text.back() != '.') text += '.';
  return text;
}

std::string with_unit(const std::string& value, std::string_view unit) {
  if (value == kNone || unit.empty()) return value;
  // A narrow no-break space keeps figure and unit on one line.
  return value + (unit == "%" || unit == "×" ? "\u2009" : "\u202F") + escape(unit);
}

const json& child(const json& object, std::string_view key) {
  static const json none;
  if (!object.is_object()) return none;
  const auto found = object.find(key);
  return found == object.end() ? none : *found;
}

std::optional<double> get_number(const json& object, std::string_view key) {
  const json& value = child(object, key);
  if (!value.is_number()) return std::nullopt;
  return value.get<double>();
}

std::optional<bool> get_bool(const json& object, std::string_view key) {
  const json& value = child(object, key);
  if (!value.is_boolean()) return std::nullopt;
  return value.get<bool>();
}

std::string get_text(const json& object, std::string_view key, std::string_view otherwise) {
  const json& value = child(object, key);
  return value.is_string() ? value.get<std::string>() : std::string(otherwise);
}

std::vector<double> get_numbers(const json& object, std::string_view key) {
  std::vector<double> out;
  const json& values = child(object, key);
  if (!values.is_array()) return out;
  out.reserve(values.size());
  for (const json& value : values)
    out.push_back(value.is_number() ? value.get<double>()
                                    : std::numeric_limits<double>::quiet_NaN());
  return out;
}

std::string get_any(const json& object, std::string_view key, std::string_view otherwise) {
  const json& value = child(object, key);
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer() || value.is_number_unsigned()) return value.dump();
  if (value.is_number()) {
    std::string text = number(value.get<double>(), 4);
    if (text.find('.') != std::string::npos && text.find('e') == std::string::npos) {
      text.erase(text.find_last_not_of('0') + 1);
      if (text.ends_with('.')) text.pop_back();
    }
    return text;
  }
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return std::string(otherwise);
}

std::string Table::html(std::string_view caption) const {
  std::string out = "<div class=\"scroll\"><table>";
  if (!caption.empty()) out += fmt::format("<caption>{}</caption>", escape(caption));
  out += "<thead><tr>";
  for (const std::string& heading : headings_) {
    const bool figures = heading.starts_with('>');
    out += fmt::format("<th scope=\"col\"{}>{}</th>", figures ? " class=\"figure\"" : "",
                       escape(figures ? heading.substr(1) : heading));
  }
  out += "</tr></thead><tbody>";
  for (const auto& cells : rows_) {
    out += "<tr>";
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const bool figures = i < headings_.size() && headings_[i].starts_with('>');
      out += fmt::format("<td{}>{}</td>", figures ? " class=\"figure\"" : "", cells[i]);
    }
    out += "</tr>";
  }
  return out + "</tbody></table></div>";
}

}  // namespace xstage::report
