// Inputs of a Ulysses layer for every rank, and how far a launch is from the reference.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/ulysses_group.hpp"

namespace xstage::cpu {

/// Q, K and V of the whole sequence, and each rank's rows of them.
struct UlyssesData {
  layout::UlyssesConfig config;
  std::vector<std::uint16_t> query, key, value;    ///< [batch][rows][heads][head_dim]
  std::vector<std::vector<std::uint16_t>> shards;  ///< of each rank: Q, then K, then V
  std::vector<UlyssesInput> inputs;                ///< views of the shards

  /// Standard normal values, times `size`.
  static UlyssesData random(const layout::UlyssesConfig& config, std::uint64_t seed,
                            double size = 1);

  const std::uint16_t* query_row(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    return query.data() + ((batch * config.rows + row) * config.heads + head) * config.head_dim;
  }
  const std::uint16_t* key_row(const std::vector<std::uint16_t>& key_or_value, std::int64_t batch,
                               std::int64_t row, std::int64_t head) const {
    return key_or_value.data() +
           ((batch * config.key_rows + row) * config.kv_heads + head) * config.head_dim;
  }
};

struct UlyssesErrors {
  double error = 0;        ///< relative Frobenius, against double precision
  double bf16_error = 0;   ///< of ordinary bf16 attention on the same inputs
  double largest = 0;      ///< largest absolute error of one value
  double log_sum_exp = 0;  ///< largest absolute error
  std::int64_t rows_checked = 0;
  bool finite = true;
  bool fused_equals_local = true;  ///< wherever a row lands it has the bits that were computed

  /// The rule: at most twice the error of ordinary bf16 attention.
  static constexpr double kFactor = 2;
  bool within_limits() const {
    return finite && fused_equals_local && error <= kFactor * bf16_error + 1e-9 &&
           log_sum_exp <= 1e-3;
  }
};

/// Compares every `row_step`-th row of every head with the reference; all rows with what was
/// computed locally.
UlyssesErrors compare_with_reference(const UlyssesData& data,
                                     const std::vector<UlyssesOutput>& outputs,
                                     const std::vector<std::int64_t>& key_length,
                                     std::int64_t row_step = 1);

}  // namespace xstage::cpu
