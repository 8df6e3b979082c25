// Where a document comes from: tool, verb, time, inputs. Nothing of the environment.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "xstage/model/profile.hpp"

namespace xstage::cli {

/// UTC, ISO 8601. SOURCE_DATE_EPOCH, when set, stands for now, so that a document can be made again
/// bit for bit.
std::string now_utc();

/// {"tool", "version", "verb", "created_utc", "inputs": [{"file", "xxh128"}]}. Files are named by
/// their last path component.
nlohmann::json provenance(std::string_view verb, const std::vector<std::filesystem::path>& inputs);

/// How other documents refer to a profile: {"name", "node"}.
nlohmann::json reference(const model::Profile& profile);

}  // namespace xstage::cli
