// The fused MoE layer on GPUs, for callers whose weights and inputs are in host memory. No CUDA
// types: the command line compiles where there is no CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "xstage/layout/check.hpp"
#include "xstage/result.hpp"

namespace xstage::moe {

/// Weights of all experts, as RankWeights has them for one rank's.
struct HostWeights {
  const void* w1 = nullptr;
  const float* w1_scales = nullptr;
  const void* w2 = nullptr;
  const float* w2_scales = nullptr;
};

struct HostInput {
  std::int64_t tokens = 0;
  const std::uint16_t* x = nullptr;       ///< [tokens][H] bf16
  const std::int32_t* experts = nullptr;  ///< [tokens][k]
  const float* weights = nullptr;         ///< [tokens][k]
};

struct HostOutput {
  std::vector<std::vector<std::uint16_t>> outputs;  ///< [rank][tokens][H] bf16
  double microseconds = 0;  ///< by events around the kernel, the slowest rank
};

/// What lies between the two linears, for each rank's own pairs; zeros for slots that went nowhere.
struct HostMiddle {
  std::vector<std::vector<float>>
      quantised;  ///< [rank][tokens·k][I] as Linear-2 reads it, scales applied
  std::vector<std::vector<float>> largest;  ///< [rank][tokens·k][I/128] largest magnitude of a
                                            ///< group before quantisation; no groups in bf16
};

class HostLayer {
 public:
  virtual ~HostLayer() = default;
  virtual const layout::MoeLayout& layout() const = 0;

  /// One launch on all ranks; buffers are poisoned before it.
  virtual Result<HostOutput> launch(const schedule::MoeSchedule& schedule,
                                    layout::MoeDispatch dispatch) = 0;

  /// Of the last launch.
  virtual Result<HostMiddle> middle() = 0;
};

struct HostOptions {
  std::uint64_t first_limit_ns = 0, limit_ns = 0;  ///< of waits
  /// Rank r on GPU r / ranks_per_gpu, with its part of the SMs: what the ranks compute and how they
  /// talk is that of a GPU each, the times are not. Divides the ranks.
  int ranks_per_gpu = 1;
};

/// Tile sizes and workers of `config` are replaced by the kernel's own.
Result<std::unique_ptr<HostLayer>> open_host_layer(layout::MoeConfig config,
                                                   const HostWeights& weights,
                                                   const std::vector<HostInput>& inputs,
                                                   const HostOptions& options);

}  // namespace xstage::moe
