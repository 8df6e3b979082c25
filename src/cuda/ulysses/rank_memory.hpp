// The memory of one rank of a Ulysses layer, and of its peers as this GPU addresses them.
#pragma once

#include <cstdint>

#include "xstage/layout/ulysses.hpp"
#include "xstage/sync/wait.hpp"

namespace xstage::ulysses {

/// Own allocations or pointers from outside (torch symmetric memory, for example): nothing here is
/// owned. Symmetric buffers and the workspace are zero before the first launch.
struct RankMemory {
  layout::UlyssesLayout layout;
  std::int32_t rank = 0;
  void* const* symmetric = nullptr;     ///< [ranks], layout.symmetric_bytes each
  void* workspace = nullptr;            ///< of this rank, layout.workspace_bytes
  sync::WaitRecord* records = nullptr;  ///< [SMs], device or pinned memory
  std::uint64_t limit_ns = 2'000'000'000;
};

}  // namespace xstage::ulysses
