// Audits a kernel from the spans that include/xstage/span.cuh collected in it.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "xstage/model/burst_gap.hpp"

namespace xstage::cli {

/// Store bursts of one kernel, times in µs.
struct KernelSpans {
  std::string kernel;
  model::Mechanism mechanism = model::Mechanism::kStoreV4;
  int threads = 0;
  std::int64_t bytes = 0;  ///< of one burst
  bool both_ways = false;
  int gpu = 0;
  std::int64_t dropped = 0;  ///< bursts that did not fit in the buffer
  struct Block {
    int sm = 0;
    std::vector<double> start_us, issue_us;
  };
  std::vector<Block> blocks;
};

/// Reads xstage.spans/1. Errors name the key and what is allowed; `file` is a name for them.
Result<KernelSpans> read_spans(const std::filesystem::path& path);
Result<KernelSpans> parse_spans(std::istream& in, const std::string& file);

/// What the spans say beside what the profile predicts for the same producers, bytes and gap.
Result<nlohmann::json> audit_spans(const KernelSpans& spans, const model::Profile& profile);

}  // namespace xstage::cli
