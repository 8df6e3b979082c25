// Explorations of the two layers: several launches in a row on small shapes, under a seed.
#pragma once

#include <cstdint>
#include <string>

#include "xstage/sync/policy.hpp"

namespace xstage::cpu {

struct Exploration {
  bool good = true;
  std::string what;   ///< what went wrong: wrong bits of which launch, or who waited for what
  std::string trace;  ///< the last operations, when something went wrong
  std::uint64_t steps = 0;
};

/// One seed of the MoE layer: 2 or 3 ranks, 4 launches with other inputs each (some ranks without
/// tokens, or with all of them at home, so that ranks run ahead), compared with threads' bits.
Exploration explore_moe(std::uint64_t seed, sync::Fault fault = sync::Fault::kNone);

/// The same for Ulysses attention.
Exploration explore_ulysses(std::uint64_t seed, sync::Fault fault = sync::Fault::kNone);

}  // namespace xstage::cpu
