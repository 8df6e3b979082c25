// The protocol under the explorer: clean for 10⁶ steps, and each planted bug is found.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "cpu/exploration.hpp"
#include "support/sanitizers.hpp"

namespace xstage::cpu {
namespace {

// One thread that changes stacks: nothing here for ThreadSanitizer, and it wants no fibres.
constexpr bool kOneThreadOnly = test::kThreadSanitizer;

using Explore = Exploration (*)(std::uint64_t, sync::Fault);

/// Seeds until `steps` steps are made. XSTAGE_EXPLORER_SEED begins elsewhere, for long runs.
void expect_clean(Explore explore, std::uint64_t steps) {
  if (kOneThreadOnly) GTEST_SKIP() << "the explorer is one thread that changes stacks";
  const char* const first = std::getenv("XSTAGE_EXPLORER_SEED");
  std::uint64_t seed = first ? std::strtoull(first, nullptr, 10) : 1, done = 0;
  if (const char* const more = std::getenv("XSTAGE_EXPLORER_STEPS"))
    steps = std::strtoull(more, nullptr, 10);
  std::uint64_t runs = 0;
  for (; done < steps; ++seed, ++runs) {
    const Exploration result = explore(seed, sync::Fault::kNone);
    done += result.steps;
    ASSERT_TRUE(result.good) << "seed " << seed << ": " << result.what << "\n" << result.trace;
  }
  std::cout << done << " steps, " << runs << " seeds\n";
}

/// The bug must be found within `seeds` seeds, with a trace.
void expect_found(Explore explore, sync::Fault fault, std::uint64_t seeds) {
  if (kOneThreadOnly) GTEST_SKIP() << "the explorer is one thread that changes stacks";
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const Exploration result = explore(seed, fault);
    if (result.good) continue;
    EXPECT_FALSE(result.what.empty());
    EXPECT_NE(result.trace.find("of rank"), std::string::npos);
    // The same seed fails again, in the same way.
    const Exploration again = explore(seed, fault);
    EXPECT_EQ(again.what, result.what);
    EXPECT_EQ(again.steps, result.steps);
    std::cout << "seed " << seed << " of " << seeds << ": " << result.what << "\n";
    return;
  }
  ADD_FAILURE() << "not found in " << seeds << " seeds";
}

TEST(Explorer, MoeIsCleanForAMillionSteps) { expect_clean(explore_moe, 1000000); }
TEST(Explorer, UlyssesIsCleanForAMillionSteps) { expect_clean(explore_ulysses, 1000000); }

TEST(Explorer, MoeFindsAMissingRelease) {
  expect_found(explore_moe, sync::Fault::kMissingRelease, 50);
}
TEST(Explorer, MoeFindsEarlySlotReuse) {
  expect_found(explore_moe, sync::Fault::kEarlySlotReuse, 200);
}
TEST(Explorer, MoeFindsALostEpoch) { expect_found(explore_moe, sync::Fault::kLostEpoch, 50); }
TEST(Explorer, MoeFindsAWrongCount) { expect_found(explore_moe, sync::Fault::kWrongCount, 50); }
TEST(Explorer, MoeFindsAFlagBeforeItsData) {
  expect_found(explore_moe, sync::Fault::kFlagBeforeData, 50);
}
TEST(Explorer, UlyssesFindsAMissingRelease) {
  expect_found(explore_ulysses, sync::Fault::kMissingRelease, 50);
}
TEST(Explorer, UlyssesFindsEarlySlotReuse) {
  expect_found(explore_ulysses, sync::Fault::kEarlySlotReuse, 200);
}
TEST(Explorer, UlyssesFindsALostEpoch) {
  expect_found(explore_ulysses, sync::Fault::kLostEpoch, 50);
}
TEST(Explorer, UlyssesFindsAWrongCount) {
  expect_found(explore_ulysses, sync::Fault::kWrongCount, 50);
}
TEST(Explorer, UlyssesFindsAFlagBeforeItsData) {
  expect_found(explore_ulysses, sync::Fault::kFlagBeforeData, 50);
}

}  // namespace
}  // namespace xstage::cpu
