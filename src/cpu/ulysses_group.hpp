// Ulysses attention on N ranks of threads, over the layouts, signals and tile orders of the
// kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/group.hpp"
#include "cpu/ulysses_worker.hpp"
#include "xstage/layout/check.hpp"

namespace xstage::cpu {

struct UlyssesLaunchOptions : LaunchOptions {
  int stopped_rank = -1;  ///< drill: this rank stops answering before `stop_before`
  UlyssesStep stop_before = UlyssesStep::kNever;
};

/// What one rank brings: its rows of Q, K and V with all heads, bf16.
struct UlyssesInput {
  layout::TensorView query, key, value;
};

struct UlyssesOutput {
  std::vector<std::uint16_t> output;  ///< the rows it owns, all heads, in the configured order
  std::vector<std::uint16_t> local;   ///< [batch][S][local heads][D]: what it computed
  std::vector<float> log_sum_exp;     ///< [batch][local heads][S]
};

class UlyssesGroup {
 public:
  /// One configuration a rank; they must agree.
  static Result<UlyssesGroup> create(const std::vector<layout::UlyssesConfig>& of_rank);

  const layout::UlyssesLayout& layout() const { return layout_; }

  /// The shape that a rank's query (or key and value) must have.
  layout::TensorView wanted_query(std::int32_t rank) const;
  layout::TensorView wanted_key(std::int32_t rank) const;

  /// `key_length[batch]` keys count in each batch entry; empty: all. Everything is checked before
  /// anything starts.
  Result<std::vector<UlyssesOutput>> launch(const std::vector<UlyssesInput>& inputs,
                                            const std::vector<std::int64_t>& key_length = {},
                                            const UlyssesLaunchOptions& options = {});

  const std::vector<sync::WaitRecord>& waits() const { return group_.waits(); }

  /// Fills everything but signals with NaN patterns.
  void poison();

 private:
  Group group_;
  layout::UlyssesLayout layout_;
};

}  // namespace xstage::cpu
