// The MoE layer on N ranks of threads, over the layouts, signals and schedules of the kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/group.hpp"
#include "cpu/moe_data.hpp"
#include "cpu/moe_worker.hpp"
#include "xstage/layout/check.hpp"

namespace xstage::cpu {

struct MoeLaunchOptions : LaunchOptions {
  bool keep_linear1 = false;  ///< for checks: keeps Linear-1's result before it is quantised
  int stopped_rank = -1;      ///< drill: this rank stops answering before `stop_before`
  MoeStep stop_before = MoeStep::kNever;
};

class MoeGroup {
 public:
  /// One configuration a rank; they must agree.
  static Result<MoeGroup> create(const std::vector<layout::MoeConfig>& of_rank);

  const layout::MoeLayout& layout() const { return layout_; }

  /// Output of every rank, [tokens][H] bf16. Everything is checked before anything starts; an error
  /// leaves the group usable.
  Result<std::vector<std::vector<std::uint16_t>>> launch(const MoeWeights& weights,
                                                         const std::vector<MoeInput>& inputs,
                                                         const MoeLaunchOptions& options = {});

  const std::vector<sync::WaitRecord>& waits() const { return group_.waits(); }

  /// What the last launch had between the two linears, for each rank's own pairs:
  /// [tokens·k][I], zeros for slots that went nowhere.
  struct Middle {
    std::vector<std::vector<float>> linear1;    ///< before quantisation (with keep_linear1)
    std::vector<std::vector<float>> quantised;  ///< as Linear-2 reads it, scales applied
    /// Where `linear1` was not kept: [tokens·k][groups], each group's largest magnitude of it.
    std::vector<std::vector<float>> largest;
  };
  Middle middle(const std::vector<MoeInput>& inputs) const;

  /// Fills everything but flags and counters with NaN patterns: what a launch reads without having
  /// written it shows.
  void poison();

 private:
  Group group_;
  layout::MoeLayout layout_;
  std::vector<std::vector<float>> linear1_;  // of each rank's pool
};

}  // namespace xstage::cpu
