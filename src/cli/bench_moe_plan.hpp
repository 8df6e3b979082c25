// What `xstage bench moe` is asked for, and the rows that each of its tables has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/layer_options.hpp"
#include "xstage/layout/moe.hpp"
#include "xstage/result.hpp"

namespace xstage::cli {

struct MoeBenchOptions {
  MoeLayerOptions layer;
  std::string backend = "cuda";
  std::string table;
  std::vector<std::int64_t> leads;
  std::string dispatch = "per-rank";
  int launches = 0;
  bool cold = false;
  bool predict = false;
  bool ranks_given = false;
  std::string cross_validate;  ///< a document whose rows are predicted from its other sizes
  std::string refit;           ///< a document of --table kernel whose fit is made anew
  std::string profile, kernel_times;
  std::string out;
};

/// What a table measures of each row.
struct MoeBenchPlan {
  std::vector<MoeLayer> layers;  ///< of one shape behind each other
  std::vector<std::int64_t> leads;
  std::vector<layout::MoeDispatch> ways = {layout::MoeDispatch::kPerRank};
  int launches = 9;
  bool cold = false;
  int pause_ms = 0;            ///< before each few launches, so that they begin at full clocks
  bool phases_of_all = false;  ///< of every run, not only of one a row
  bool both_ways = false;      ///< what `auto` took also with a token sent once a slot
  bool cublas = false;         ///< beside our products alone
  bool predicted = true;       ///< with `auto`, and the predicted time of every run
  std::string not_predicted;   ///< why not, where a layer is too large
};

/// The error names the option and its value.
Result<MoeBenchPlan> moe_bench_plan(const MoeBenchOptions& options);

/// What a rank of the layer takes on its GPU when it is timed: buffers of the layer, weights,
/// tokens and the results of its products alone.
std::int64_t timed_bytes(const MoeLayer& layer);

}  // namespace xstage::cli
