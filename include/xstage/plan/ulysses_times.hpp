// What fused Ulysses attention was measured to cost beside attention alone, and what its baselines
// do: made by `xstage bench ulysses --fit`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "xstage/result.hpp"

namespace xstage::plan {

/// Attention alone, as measured for one shape.
struct AttentionMeasured {
  std::int64_t heads_local = 0, seq = 0, head_dim = 0;
  double tflops = 0;
};

/// Fitted to measurements between two ranks. Times in µs, sizes in MB (10^6 bytes).
struct UlyssesTimes {
  std::string node;
  /// Fused less attention: a constant (signals, the last stores' way) and a share of attention
  /// (tiles in another order, stores beside loads).
  double residual_us = 0, residual_share = 0;
  /// Attention and then a push of the output, less attention: a constant, and as often the time of
  /// its bytes at the drain rate.
  double push_us = 0, push_per_link_us = 1;
  /// Attention, permutes and NCCL, less attention, by a rank's output: all of it is permuted twice,
  /// half of it is sent.
  double nccl_us = 0, nccl_per_mb = 0;
  std::vector<AttentionMeasured> attention;

  double residual(double attention_us) const { return residual_us + residual_share * attention_us; }
  double push(double link_us) const { return push_us + push_per_link_us * link_us; }
  /// `output_mb` of a rank, of which all but 1/ranks is sent: what is sent beyond half takes NCCL's
  /// all-to-all the time of its bytes.
  double nccl(double output_mb, int ranks) const;
  /// The rate measured for this shape; else the median of those with this head size, or of all.
  double tflops(std::int64_t heads_local, std::int64_t seq, std::int64_t head_dim,
                bool& measured) const;
};

/// The reader of the file; errors name the field.
Result<UlyssesTimes> parse_ulysses_times(std::string_view json);

/// data/h200x2/ulysses_fused.json.
const UlyssesTimes& ulysses_times();

}  // namespace xstage::plan
