// Documents of every kind a report shows (samples.json), with the texts that a test wants in them.
#pragma once

#include <string>
#include <vector>

#include "report/documents.hpp"

namespace xstage::report::test {

/// The documents of samples.json; `text` stands wherever a document holds a name or sentence of its
/// writer, as a value or as a key.
std::vector<json> all_documents(const std::string& text);

/// The same as a collection, the file names being `name`0.json, `name`1.json, …
Collection collection(const std::string& text, const std::string& name = "document");

}  // namespace xstage::report::test
