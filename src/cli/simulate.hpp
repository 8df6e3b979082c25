// The subcommands of xstage simulate.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/verbs.hpp"

namespace xstage::cli {

void add_simulate_moe(CLI::App& simulate, Session& session);
void add_simulate_ulysses(CLI::App& simulate, Session& session);

}  // namespace xstage::cli
