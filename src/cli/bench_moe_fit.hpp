// What `xstage bench moe` does with a table that was measured before; neither needs a GPU.
#pragma once

#include "cli/bench_moe_plan.hpp"
#include "cli/console.hpp"

namespace xstage::cli {

/// --cross-validate FILE: predictions of measured rows that took no part in the fit. The exit code.
int judge_predictions(const Console& console, const MoeBenchOptions& options);

/// --refit FILE: the same rows with the fit that this version makes of them, written to --out.
int refit_times(const Console& console, const MoeBenchOptions& options);

}  // namespace xstage::cli
