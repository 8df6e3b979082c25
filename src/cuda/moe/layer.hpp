// The fused MoE layer on the GPUs of one node, one process, one rank a GPU.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "cuda/moe/fused.hpp"
#include "xstage/layout/check.hpp"
#include "xstage/result.hpp"

namespace xstage::moe {

/// Weights of one rank's experts, in that rank's memory; no preparation is needed.
struct RankWeights {
  const std::uint8_t* w1 = nullptr;  ///< [E_l][2I][H] e4m3, gate rows before up rows
  const float* w1_scales = nullptr;  ///< [E_l][2I/128][H/128]
  const std::uint8_t* w2 = nullptr;  ///< [E_l][H][I] e4m3
  const float* w2_scales = nullptr;  ///< [E_l][H/128][I/128]
};

/// What one rank brings to one launch, in that rank's memory, and where its result goes.
struct RankInput {
  std::int64_t tokens = 0;
  const std::uint16_t* x = nullptr;       ///< [tokens][H] bf16
  const std::int32_t* experts = nullptr;  ///< [tokens][k], -1 for none
  const float* weights = nullptr;         ///< [tokens][k]
  const std::uint16_t* addend = nullptr;  ///< [tokens][H] bf16, or null
  std::uint16_t* out = nullptr;           ///< [tokens][H] bf16
  std::uint64_t* marks = nullptr;         ///< [workers][kMarks] times of each block, or null
};

/// Times that a block can keep of a launch; block.cuh names them.
inline constexpr int kMarks = 10;

struct Limits {
  std::chrono::nanoseconds first = std::chrono::minutes(5);   ///< waits of the first launch
  std::chrono::nanoseconds later = std::chrono::seconds(30);  ///< waits of every other launch
};

/// A layout that the kernel has tiles, shared memory and tensor maps for; the error names the rule
/// that refuses the others.
Result<layout::MoeLayout> check_layer(const layout::MoeConfig& config);

/// The configuration that this kernel wants for a layer: tile sizes, one worker an SM of `gpu`.
layout::MoeConfig with_tiles(layout::MoeConfig config, int sms);

class Layer {
 public:
  /// One configuration and one GPU a rank; the configurations must agree. Allocates the symmetric
  /// buffers and workspaces. Errors name what differs, or which pair of GPUs has no peer access.
  static Result<Layer> create(const std::vector<layout::MoeConfig>& of_rank,
                              const std::vector<int>& gpus, const std::vector<RankWeights>& weights,
                              const Limits& limits = {});
  Layer(Layer&& other) noexcept { swap(other); }
  Layer& operator=(Layer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Layer();

  const layout::MoeLayout& layout() const { return layout_; }

  /// The order of tiles and the way of dispatch may change from launch to launch, on all ranks
  /// together.
  Result<bool> set_schedule(const schedule::MoeSchedule& schedule, layout::MoeDispatch dispatch);

  /// Launches every rank on its own stream. Everything is checked first, on all ranks;
  /// asynchronous.
  Result<bool> launch(const std::vector<RankInput>& inputs,
                      const std::vector<cudaStream_t>& streams);

  /// Waits for the launches. The error of a wait that passed its limit says who waited for what;
  /// the layer can be used again.
  Result<bool> finish(const std::vector<cudaStream_t>& streams);

  /// For tests: everything but flags and counters becomes NaN patterns.
  Result<bool> poison();
  void* symmetric(int rank) const { return ranks_[static_cast<std::size_t>(rank)].symmetric; }
  void* workspace(int rank) const { return ranks_[static_cast<std::size_t>(rank)].workspace; }

 private:
  struct Rank {
    int gpu = 0;
    void* symmetric = nullptr;
    void* workspace = nullptr;
    std::uint32_t* histogram = nullptr;
    sync::WaitRecord* records = nullptr;
    RankWeights weights;
    FusedMaps maps{};
  };
  Layer() = default;
  void swap(Layer& other) noexcept {
    std::swap(layout_, other.layout_);
    std::swap(limits_, other.limits_);
    std::swap(ranks_, other.ranks_);
    std::swap(launches_, other.launches_);
  }
  Result<bool> allocate(const std::vector<RankWeights>& weights);
  Result<bool> clear();

  layout::MoeLayout layout_;
  Limits limits_;
  std::vector<Rank> ranks_;
  std::uint64_t launches_ = 0;
};

}  // namespace xstage::moe
