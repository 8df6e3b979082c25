// Rates and capacities between all GPUs of a node: every pair, all to one, all to all.
#pragma once

#include <nlohmann/json.hpp>

#include "cuda/probe/prober.hpp"

namespace xstage::probe {

/// {"pairs", "all_to_all", "all_to_one"}, each pattern with a row a source: R and Q of the source
/// and to every peer (Q: what bursts sent beyond R times their duration), and both of all together.
/// All to one needs three GPUs. A pattern that failed carries "error"; the others are measured all
/// the same.
nlohmann::json between_gpus(Prober& prober);

}  // namespace xstage::probe
