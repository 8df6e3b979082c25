// A Ulysses layer on all GPUs of one process: for checks and measurements.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "xstage/layout/tensor_view.hpp"
#include "xstage/layout/ulysses.hpp"
#include "xstage/result.hpp"
#include "xstage/sync/wait.hpp"

namespace xstage::ulysses {

/// A rank's own rows of Q, K and V, all heads, in host memory: contiguous.
struct RankInput {
  layout::TensorView query, key, value;
};

/// What a rank received, and what it computed, in host memory.
struct RankOutput {
  std::vector<std::uint16_t> output;  ///< its rows of all heads, in the configured order
  std::vector<std::uint16_t> local;   ///< [batch][rows][heads of the rank][head_dim]
  std::vector<float> log_sum_exp;     ///< [batch][heads of the rank][rows]
};

/// What can be launched and timed.
enum class Sequence {
  kInputs,             ///< push All-to-All of Q, K and V
  kAttention,          ///< attention, output in the rank's own memory
  kFused,              ///< attention, output to the owners
  kPush,               ///< push All-to-All of the output alone
  kAttentionThenPush,  ///< the serial baseline
  kPerDestination,     ///< attention, one launch a destination, into the owners' buffers
  kLayer               ///< kInputs, then kFused
};

/// What a launch took, on average over the launches of a round.
struct Taken {
  double us = 0;
  double cycles = 0;  ///< of the SMs' clock: under a power limit the clock moves, these do not
};

class Group {
 public:
  virtual ~Group() = default;

  /// Rank r on GPU r / ranks_per_gpu; ranks that share a GPU have a part of its SMs each. What they
  /// compute and how they talk is that of a GPU each, times are not. Their streams must not share a
  /// queue of the driver (CUDA_DEVICE_MAX_CONNECTIONS, 8 if it is not set).
  /// Errors: no GPU, too few, no peer access, a layer that no kernel takes.
  static Result<std::unique_ptr<Group>> create(const layout::UlyssesConfig& config,
                                               std::uint64_t wait_limit_ns, int ranks_per_gpu = 1);

  /// `key_length`: empty, or one of each batch entry, 0 to the key rows.
  virtual Result<bool> set_inputs(const std::vector<RankInput>& inputs,
                                  const std::vector<std::int64_t>& key_length) = 0;
  /// Nearly normal values, generated on the GPUs.
  virtual Result<bool> set_random_inputs(std::uint64_t seed) = 0;

  /// One layer, from inputs to outputs; all of the output is overwritten with NaN before.
  /// `sequence` says how the output comes to its owners: kLayer, kAttentionThenPush or
  /// kPerDestination. kTimeout with the records in waits() when a rank waited too long.
  virtual Result<std::vector<RankOutput>> run(Sequence sequence = Sequence::kLayer) = 0;

  /// `rounds` times `launches` of the sequence on all ranks, released together: [round][rank].
  /// Inputs must have been set, and run() once. No warm-up: ask twice.
  virtual Result<std::vector<std::vector<Taken>>> time(Sequence sequence, int rounds,
                                                       int launches) = 0;

  /// The tile stores of one fused launch on rank 0, as xstage.spans/1 (see xstage/span.cuh), by the
  /// kernel that records them. Inputs must have been set, and run() once.
  virtual Result<std::string> spans() = 0;

  virtual const std::vector<sync::WaitRecord>& waits() const = 0;
  virtual const std::string& gpu_name() const = 0;
  virtual int driver_version() const = 0;
};

}  // namespace xstage::ulysses
