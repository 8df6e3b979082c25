// Documents of the report: read, and drawn if they can be read.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "report/documents.hpp"
#include "report/page.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace xstage::report;
  auto document =
      parse_document("fuzz.json", std::string_view(reinterpret_cast<const char*>(data), size));
  if (!document.ok()) return 0;
  Collection collection;
  collection.documents.push_back(std::move(*document));
  if (render(collection, "fuzz").empty()) std::abort();
  return 0;
}
