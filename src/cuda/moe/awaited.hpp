// What warps of one block wait for from each other, by name. Host and device.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"

namespace xstage::moe {

/// Whether waits inside a block have a limit. Off unless asked for: it costs 1.2 % of a layer.
#ifdef XSTAGE_MOE_WAIT_LIMITS
inline constexpr bool kWaitLimits = true;
#else
inline constexpr bool kWaitLimits = false;
#endif

enum class Awaited : std::uint32_t {
  kNone,
  kStep,         ///< boxes of a step; math warps
  kFreeStep,     ///< room for a step; the loader
  kTask,         ///< the next tile; math and store warps
  kFreeTask,     ///< room for the next tile; the loader
  kStaged,       ///< a warpgroup's result in staging; its store warp
  kFreeStaging,  ///< staging that has been read; math warps
  kOtherHalf,    ///< the second warpgroup's half in memory; the first store warp
  kCount
};

inline constexpr const char* kAwaitedNames[] = {
    "nothing",         "a step of its tile", "room for a step", "its next tile",
    "room for a tile", "a staged result",    "free staging",    "the other half of a tile"};
static_assert(sizeof kAwaitedNames / sizeof *kAwaitedNames ==
              static_cast<std::uint32_t>(Awaited::kCount));

/// One number for a wait and the warp that gave it up; never zero.
XSTAGE_HD constexpr std::uint32_t given_up_code(Awaited what, std::uint32_t warp) {
  return static_cast<std::uint32_t>(what) << 8 | warp;
}

}  // namespace xstage::moe
