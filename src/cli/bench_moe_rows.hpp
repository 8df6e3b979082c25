// Rows of a table of `xstage bench moe` that an interrupted run left in a file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace xstage::cli {

/// What tells a row from the others of its table: its layer, weights, routing, tokens and ranks.
/// The row must have a layer as to_json(MoeLayer) gives it.
std::string key_of_row(const nlohmann::json& row);

/// The rows of `text` that a run for `document` need not measure again: of the same table and
/// kernel, interrupted, and holding all that a summary reads. Anything else gives none; a row that
/// lacks something is measured again.
std::vector<nlohmann::json> rows_to_take_up(std::string_view text, const nlohmann::json& document);

}  // namespace xstage::cli
