// Ranks as groups of threads: what the MoE and the attention groups share.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cpu/memory.hpp"
#include "xstage/result.hpp"
#include "xstage/sync/wait.hpp"

namespace xstage::cpu {

/// How long waits may last, and what drills do to a launch.
struct LaunchOptions {
  /// The first launch of a group: a peer may still be loading or compiling.
  std::uint64_t first_limit_ns = std::uint64_t{300} * 1000 * 1000 * 1000;
  std::uint64_t limit_ns = std::uint64_t{60} * 1000 * 1000 * 1000;
  /// A rank that begins this much later than the others; -1: none.
  int late_rank = -1;
  std::uint64_t late_ns = 0;
};

/// The buffers of all ranks, and one thread for each worker in a launch.
class Group {
 public:
  /// Allocates `symmetric_bytes` and `workspace_bytes` for each rank.
  static Result<Group> create(std::int32_t ranks, std::int32_t workers,
                              std::int64_t symmetric_bytes, std::int64_t workspace_bytes);

  std::int32_t ranks() const { return static_cast<std::int32_t>(symmetric_.size()); }
  void* const* symmetric() const { return symmetric_.data(); }
  void* workspace(std::int32_t rank) const {
    return workspaces_[static_cast<std::size_t>(rank)].base();
  }

  /// One worker's part; false when a wait ended early.
  using Work = std::function<bool(const sync::WaitContext&)>;

  /// Runs all workers of all ranks and waits for them. `stop_words[rank]` are the ranks' stop
  /// words. After a launch that failed all buffers are cleared, so that the next one can work.
  Result<bool> launch(const std::vector<std::uint64_t*>& stop_words, const LaunchOptions& options,
                      const Work& work);

  /// Who gave up in the last launch, if any.
  const std::vector<sync::WaitRecord>& waits() const { return waits_; }

 private:
  std::int32_t workers_ = 0;
  std::vector<Pages> symmetric_pages_, workspaces_;
  std::vector<void*> symmetric_;
  std::vector<sync::WaitRecord> waits_;
  std::uint64_t launches_ = 0;  // since the buffers were cleared
};

}  // namespace xstage::cpu
