// Limits that more than one room must agree on.
#pragma once

#include <cstdint>

namespace xstage {

/// Ranks of a group: the GPUs of the largest NVLink domain there is, 72 in one rack. Simulated
/// nodes and CPU ranks keep to it too, so that what one verb accepts the others do.
inline constexpr std::int32_t kMaxRanks = 72;

}  // namespace xstage
