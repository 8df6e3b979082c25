// Attention written straightforwardly in double precision, and how large an error ordinary bf16
// attention makes on the same inputs. Shares no code with the ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace xstage::cpu::reference {

/// One head of one batch entry: rows of head_dim bf16 values by number.
struct AttentionHead {
  std::int64_t head_dim = 0;
  std::int64_t keys = 0;  ///< that count; padded ones behind them do not
  double scale = 1;
  std::function<const std::uint16_t*(std::int64_t)> key, value;
};

struct AttentionRow {
  std::vector<double> exact;  ///< in double precision; zeros without keys
  std::vector<double> bf16;   ///< probabilities and result rounded to bf16, the rest exact
  double log_sum_exp = 0;     ///< -inf without keys
};

AttentionRow attention(const AttentionHead& head, const std::uint16_t* query);

}  // namespace xstage::cpu::reference
