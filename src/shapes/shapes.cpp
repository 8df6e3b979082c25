#include "shapes/shapes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "xstage/input_file.hpp"

namespace xstage::shapes {

extern const std::string_view kEmbeddedMoe;
extern const std::string_view kEmbeddedAttention;

namespace {

using nlohmann::json;

/// One entry of a table, with errors that say where in the table it stands.
class Entry {
 public:
  Entry(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  std::int64_t size(const char* key, std::int64_t most, std::optional<std::int64_t> absent = {}) {
    const auto found = object_.find(key);
    if (found == object_.end()) {
      if (absent) return *absent;
      fail("the shape table lacks a field", key, "absent", range(most));
      return 0;
    }
    return number(*found, key, most, absent ? std::min<std::int64_t>(*absent, 1) : 1);
  }

  std::vector<std::int64_t> sizes(const char* key, std::int64_t most) {
    std::vector<std::int64_t> out;
    const auto found = object_.find(key);
    if (found == object_.end() || !found->is_array() || found->empty()) {
      fail("the shape table lacks a list", key, "absent or no list", "one or more sizes");
      return out;
    }
    for (const json& value : *found) out.push_back(number(value, key, most, 1));
    return out;
  }

  std::string text(const char* key, bool required = false) {
    const auto found = object_.find(key);
    if (found != object_.end() && found->is_string()) {
      std::string out = found->get<std::string>();
      if (!required || !out.empty()) return out;
    }
    if (required || found != object_.end())
      fail("a field of the shape table is no text", key, "absent, empty or no text", "text");
    return {};
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  static std::string range(std::int64_t most) { return fmt::format("1 to {}", most); }

  std::int64_t number(const json& value, const char* key, std::int64_t most, std::int64_t least) {
    // Unsigned numbers above 2^63 would wrap in get<int64_t>.
    if (value.is_number_integer() &&
        (!value.is_number_unsigned() ||
         value.get<std::uint64_t>() <=
             static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))) {
      const auto out = value.get<std::int64_t>();
      if (out >= least && out <= most) return out;
    }
    std::string shown = value.dump(-1, ' ', false, json::error_handler_t::replace);
    fail("a size of the shape table is not allowed", key, shown.substr(0, 64), range(most));
    return 0;
  }

  void fail(const char* what, const char* key, std::string value, std::string allowed) {
    if (!error_) error_ = bad_input(what, where_ + "." + key, std::move(value), std::move(allowed));
  }

  const json& object_;
  std::string where_;
  std::optional<Error> error_;
};

/// The list `key` of the document, as objects.
Result<json> table(std::string_view text, const char* key) {
  const auto parsed = parse_json(text);
  if (!parsed)
    return bad_input("a shape table is not JSON", key, "text that does not parse", "JSON");
  const json& document = *parsed;
  if (!document.is_object() || !document.contains(key) || !document[key].is_array())
    return bad_input("a shape table lacks its list", key, "absent or no list", "a list of objects");
  for (const json& entry : document[key])
    if (!entry.is_object())
      return bad_input("an entry of a shape table is no object", key, entry.type_name(), "objects");
  return document[key];
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// Letters to change, to add or to leave out to get from one text to the other (Levenshtein).
std::size_t distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < to.size(); ++j)
      diagonal = std::exchange(
          row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, diagonal + (from[i] != to[j])}));
  }
  return row.back();
}

/// By name; capitals do not count. A near miss is answered with the name that was meant.
template <class Shape>
Result<Shape> find(const std::vector<Shape>& shapes, std::string_view wanted) {
  constexpr std::size_t kLongestName = 64;  // a longer text is no slip of the finger
  const std::string name = lower(wanted.substr(0, kLongestName));
  std::string names;
  const Shape* nearest = nullptr;
  std::size_t least = std::max<std::size_t>(2, name.size() / 3);
  for (const Shape& shape : shapes) {
    const std::string known = lower(shape.name);
    if (known == name && wanted.size() <= kLongestName) return shape;
    names += (names.empty() ? "" : ", ") + shape.name;
    // "glm5" and "deepseek-v4" too: with letters left out, or only begun.
    const bool begun = name.size() >= 3 && known.starts_with(name);
    const std::size_t away = begun ? 0 : distance(name, known);
    if (away > least || (nearest != nullptr && away == least)) continue;
    least = away;
    nearest = &shape;
  }
  const std::string meant =
      nearest != nullptr ? fmt::format("; did you mean {}?", nearest->name) : "";
  return bad_input("no such shape" + meant, "--shape", std::string(wanted), names);
}

}  // namespace

const char* name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kW8A8: return "w8a8";
    case WeightFormat::kBf16: return "bf16";
    case WeightFormat::kW4A8: return "w4a8";
  }
  return "unknown";
}

Result<WeightFormat> parse_weight_format(std::string_view text) {
  for (const auto format : {WeightFormat::kW8A8, WeightFormat::kBf16, WeightFormat::kW4A8})
    if (text == name(format)) return format;
  return bad_input("no such weight format", "--weights", std::string(text), "w8a8, bf16, w4a8");
}

Result<MoeShape> checked(MoeShape shape) {
  const std::pair<const char*, std::int64_t> sizes[] = {{"--hidden", shape.hidden},
                                                        {"--intermediate", shape.intermediate},
                                                        {"--experts", shape.experts},
                                                        {"--topk", shape.topk}};
  for (const auto& [field, value] : sizes)
    if (value < 1 || value > kMaxSize)
      return bad_input("a size of the layer is not allowed", field, std::to_string(value),
                       fmt::format("1 to {}", kMaxSize));
  if (shape.topk > shape.experts)
    return bad_input("a token cannot go to more experts than there are", "--topk",
                     std::to_string(shape.topk), fmt::format("1 to {}", shape.experts));
  return shape;
}

Result<std::vector<MoeShape>> parse_moe_shapes(std::string_view text) {
  const auto entries = table(text, "layers");
  if (!entries) return entries.error();
  std::vector<MoeShape> out;
  for (const json& object : *entries) {
    Entry entry(object, fmt::format("layers[{}]", out.size()));
    MoeShape shape;
    shape.name = entry.text("name", true);
    shape.kind = entry.text("kind");
    shape.hidden = entry.size("hidden", kMaxSize);
    shape.intermediate = entry.size("intermediate", kMaxSize);
    shape.experts = entry.size("experts", kMaxSize);
    shape.topk = entry.size("topk", kMaxSize);
    shape.shared_experts = entry.size("shared_experts", kMaxSize, 0);
    shape.certainty = entry.text("certainty");
    shape.source = entry.text("source");
    if (entry.error()) return *entry.error();
    auto valid = checked(std::move(shape));
    if (!valid) return valid.error();
    out.push_back(std::move(*valid));
  }
  return out;
}

Result<std::vector<AttentionShape>> parse_attention_shapes(std::string_view text) {
  const auto entries = table(text, "models");
  if (!entries) return entries.error();
  std::vector<AttentionShape> out;
  for (const json& object : *entries) {
    const std::string where = fmt::format("models[{}]", out.size());
    Entry entry(object, where);
    AttentionShape shape;
    shape.name = entry.text("name", true);
    shape.heads = entry.size("heads", kMaxSize, 0);
    shape.heads_local = entry.size("heads_local", kMaxSize, 0);
    shape.kv_heads = entry.size("kv_heads", kMaxSize, 0);
    shape.head_dim = entry.size("head_dim", kMaxSize);
    shape.seq = entry.sizes("seq", kMaxTokens);
    shape.note = entry.text("note");
    if (entry.error()) return *entry.error();
    if ((shape.heads == 0) == (shape.heads_local == 0))
      return bad_input("a model needs its heads, in total or a rank", where + ".heads",
                       std::to_string(shape.heads), "exactly one of heads and heads_local");
    out.push_back(std::move(shape));
  }
  return out;
}

const std::vector<MoeShape>& moe_shapes() {
  static const std::vector<MoeShape> shapes = parse_moe_shapes(kEmbeddedMoe).value();
  return shapes;
}

const std::vector<AttentionShape>& attention_shapes() {
  static const std::vector<AttentionShape> shapes =
      parse_attention_shapes(kEmbeddedAttention).value();
  return shapes;
}

Result<MoeShape> find_moe_shape(std::string_view name) { return find(moe_shapes(), name); }

Result<AttentionShape> find_attention_shape(std::string_view name) {
  return find(attention_shapes(), name);
}

}  // namespace xstage::shapes
