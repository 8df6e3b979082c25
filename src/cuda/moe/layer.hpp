// The fused MoE layer on the GPUs of one node: Layer has all ranks in one process, RankLayer is one
// rank, on buffers that the caller brings. A rank has a GPU of its own, or shares it with others of
// its process, each with its part of the SMs as workers (docs/ranks.md, ranks that share a GPU).
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "cuda/moe/fused.hpp"
#include "xstage/layout/check.hpp"
#include "xstage/result.hpp"

namespace xstage::moe {

/// Weights of one rank's experts, in that rank's memory; no preparation is needed. e4m3 with
/// scales, or bf16 without, as the configuration's format says.
struct RankWeights {
  const void* w1 = nullptr;          ///< [E_l][2I][H], gate rows before up rows
  const float* w1_scales = nullptr;  ///< [E_l][2I/128][H/128]
  const void* w2 = nullptr;          ///< [E_l][H][I]
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
inline constexpr int kMarks = 17;

struct Limits {
  std::chrono::nanoseconds first = std::chrono::minutes(5);   ///< waits of the first launch
  std::chrono::nanoseconds later = std::chrono::seconds(30);  ///< waits of every other launch
  /// Waits of warps for others of their block; 0: twice the above, since what another block or rank
  /// holds up comes first.
  std::chrono::nanoseconds in_block{0};
};

/// A layout that the kernel has tiles, shared memory and tensor maps for; the error names the rule
/// that refuses the others.
Result<layout::MoeLayout> check_layer(const layout::MoeConfig& config);

/// The configuration that this kernel wants for a layer: tile sizes, one worker an SM of `gpu`.
layout::MoeConfig with_tiles(layout::MoeConfig config, int sms);

/// Device memory that one rank needs. Both buffers begin at a multiple of kBufferAlignment bytes.
struct BufferBytes {
  std::int64_t symmetric = 0;  ///< read and written by peers; as large on every rank
  std::int64_t workspace = 0;  ///< the rank's own
};
inline constexpr std::int64_t kBufferAlignment = 256;  // what cudaMalloc gives

/// What check_layer() refuses has no size.
Result<BufferBytes> buffer_bytes(const layout::MoeConfig& config);

/// Memory that the caller allocated, and that outlives the layer.
struct RankBuffers {
  std::vector<void*> symmetric;  ///< [P]: every rank's buffer, at its address on this rank's GPU
  void* workspace = nullptr;
};

/// One rank of the layer on buffers from outside: a process a rank (symmetric memory of PyTorch,
/// CUDA IPC), or several ranks in one process. No call here waits for another rank; the caller has
/// a barrier of its own where one is asked for.
class RankLayer {
 public:
  /// `of_rank`: every rank's configuration, gathered, so that all ranks end with the same error
  /// where they differ. Clears this rank's flags: every rank must have been created before the
  /// first launch (barrier). Errors also name a null or misplaced pointer, and the pair of GPUs
  /// without peer access. Weights, like buffers, stay the caller's.
  static Result<RankLayer> create(const std::vector<layout::MoeConfig>& of_rank, std::int32_t rank,
                                  int gpu, const RankBuffers& buffers, const RankWeights& weights,
                                  const Limits& limits = {});

  const layout::MoeLayout& layout() const { return layout_; }
  int gpu() const { return gpu_; }
  void* symmetric() const { return symmetric_[static_cast<std::size_t>(rank_)]; }
  void* workspace() const { return workspace_; }

  /// The order of tiles and the way of dispatch may change from launch to launch, on all ranks
  /// together.
  Result<bool> set_schedule(const schedule::MoeSchedule& schedule, layout::MoeDispatch dispatch);

  /// The error of an input that launch() would refuse.
  Result<bool> check(const RankInput& input) const;

  /// Asynchronous; may be captured into a graph. Every rank must launch.
  Result<bool> launch(const RankInput& input, cudaStream_t stream);

  /// Waits for the launches. The error of a wait that passed its limit says who waited for what.
  /// After an error on any rank: barrier, recover() on every rank, barrier; then launches work
  /// again.
  Result<bool> finish(cudaStream_t stream);

  /// Flags and counters as before the first launch.
  Result<bool> recover();

  /// For tests: everything but flags and counters becomes NaN patterns.
  Result<bool> poison();

 private:
  friend class Layer;
  /// How the last launches ended, once their stream is idle.
  struct Ending {
    bool stopped = false;
    std::optional<Error> error;  ///< of this rank; absent where another one gave up first
    Error others{};              ///< who did, and what this rank had waited for by then
  };
  RankLayer() = default;
  Result<bool> make_maps(const RankWeights& weights);
  Result<Ending> ending() const;
  std::uint32_t* histogram() const;
  sync::WaitRecord* records() const;

  layout::MoeLayout layout_;
  Limits limits_;
  std::int32_t rank_ = 0;
  int gpu_ = 0;
  void* symmetric_[kMaxRanks] = {};
  void* workspace_ = nullptr;
  RankWeights weights_;
  FusedMaps maps_{};
  std::uint64_t launches_ = 0;
};

/// All ranks in one process, in memory of its own.
class Layer {
 public:
  /// One configuration and one GPU a rank; the configurations must agree. Allocates the symmetric
  /// buffers and workspaces. Errors name what differs, or which pair of GPUs has no peer access.
  /// Where a GPU stands more than once, the workers of its ranks must fit on it together, and their
  /// streams must not share a queue of the driver (CUDA_DEVICE_MAX_CONNECTIONS, 8 if it is not
  /// set).
  static Result<Layer> create(const std::vector<layout::MoeConfig>& of_rank,
                              const std::vector<int>& gpus, const std::vector<RankWeights>& weights,
                              const Limits& limits = {});
  Layer(Layer&& other) noexcept { swap(other); }
  Layer& operator=(Layer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Layer();

  const layout::MoeLayout& layout() const { return ranks_.front().layout(); }

  /// As RankLayer's, on every rank.
  Result<bool> set_schedule(const schedule::MoeSchedule& schedule, layout::MoeDispatch dispatch);

  /// Launches every rank on its own stream. Everything is checked first, on all ranks;
  /// asynchronous.
  Result<bool> launch(const std::vector<RankInput>& inputs,
                      const std::vector<cudaStream_t>& streams);

  /// Waits for the launches. The error of a wait that passed its limit says who waited for what;
  /// the layer can be used again.
  Result<bool> finish(const std::vector<cudaStream_t>& streams);

  /// Each rank's error of the last finish() that was not good.
  const std::vector<Error>& endings() const { return endings_; }

  /// For tests, as RankLayer's.
  Result<bool> poison();
  void* symmetric(int rank) const { return ranks_[static_cast<std::size_t>(rank)].symmetric(); }
  void* workspace(int rank) const { return ranks_[static_cast<std::size_t>(rank)].workspace(); }

 private:
  Layer() = default;
  void swap(Layer& other) noexcept {
    std::swap(ranks_, other.ranks_);
    std::swap(memory_, other.memory_);
    std::swap(endings_, other.endings_);
  }

  struct Memory {
    int gpu = 0;
    void* pointer = nullptr;
  };
  std::vector<RankLayer> ranks_;
  std::vector<Memory> memory_;
  std::vector<Error> endings_;
};

}  // namespace xstage::moe
