#include "report/samples.hpp"

#include "support/process.hpp"

namespace xstage::report::test {
namespace {

constexpr const char* kPlaceholder = "TEXT";

json with_text(const json& value, const std::string& text) {
  if (value == kPlaceholder) return text;
  json out = value;
  if (value.is_array())
    for (json& inside : out) inside = with_text(inside, text);
  if (value.is_object()) {
    out = json::object();
    for (const auto& [key, inside] : value.items())
      out[key == kPlaceholder ? text : key] = with_text(inside, text);
  }
  return out;
}

}  // namespace

std::vector<json> all_documents(const std::string& text) {
  const json documents = json::parse(
      xstage::test::read_file(std::string(XSTAGE_SOURCE_DIR) + "/tests/report/samples.json"));
  std::vector<json> out;
  for (const json& document : documents) out.push_back(with_text(document, text));
  return out;
}

Collection collection(const std::string& text, const std::string& name) {
  Collection out;
  for (const json& content : all_documents(text)) {
    const std::string file = name + std::to_string(out.documents.size()) + ".json";
    out.documents.push_back(parse_document(file, content.dump()).value());
  }
  return out;
}

}  // namespace xstage::report::test
