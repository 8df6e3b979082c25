// What `xstage bench moe` and `xstage bench ulysses` share.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/verbs.hpp"
#include "xstage/result.hpp"

namespace xstage::cli {

/// The value below which a share `q` of the values lies; they must not be empty.
double quantile(std::vector<double> values, double q);

/// {"median", "p05", "p95"}
nlohmann::json times_json(const std::vector<double>& us);

/// Fills in the node; the error that stands in the way of `ranks` GPUs.
std::optional<Error> describe_node(int ranks, nlohmann::json& document);

void add_bench_moe(CLI::App& bench, Session& session);

}  // namespace xstage::cli
