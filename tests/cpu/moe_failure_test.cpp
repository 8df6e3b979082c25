// Ranks that are late or stop answering: everybody ends, and it is said who waited for whom.
#include <chrono>

#include "moe_case.hpp"
#include "support/sanitizers.hpp"

namespace xstage::cpu {
namespace {

constexpr std::uint64_t kMillisecond = 1000000 * test::kSlowness;

// M1
TEST(MoeFailure, ALateRankIsWaitedForAndPastTheLimitNamed) {
  const MoeCase layer(MoeCase::small(3), 20);
  const Outputs expected = layer.run();
  auto group = layer.group();
  MoeLaunchOptions options;
  options.late_rank = 1;
  options.late_ns = 1000 * kMillisecond;
  options.limit_ns = 200 * kMillisecond;  // of later launches; the first one is generous
  EXPECT_EQ(group.launch(layer.weights, layer.inputs, options).value(), expected);
  const auto late = group.launch(layer.weights, layer.inputs, options);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().kind, ErrorKind::kTimeout);
  EXPECT_NE(late.error().what.find("for the routes of rank 1"), std::string::npos)
      << late.error().what;
  // The process goes on, and the next call works.
  options.late_rank = -1;
  options.limit_ns = 60000 * kMillisecond;
  EXPECT_EQ(group.launch(layer.weights, layer.inputs, options).value(), expected);
}

// M17, as far as threads can die
TEST(MoeFailure, ARankThatStopsAnywhereEndsTheOthersWithinTheLimit) {
  const MoeCase layer(MoeCase::small(3), 20);
  const Outputs expected = layer.run();
  auto group = layer.group();
  for (const MoeStep step :
       {MoeStep::kBegin, MoeStep::kPublish, MoeStep::kDispatch, MoeStep::kTiles}) {
    MoeLaunchOptions options;
    options.stopped_rank = 2;
    options.stop_before = step;
    options.first_limit_ns = options.limit_ns = 1000 * kMillisecond;
    const auto begin = std::chrono::steady_clock::now();
    const auto result = group.launch(layer.weights, layer.inputs, options);
    const auto elapsed = std::chrono::steady_clock::now() - begin;
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().kind, ErrorKind::kTimeout);
    EXPECT_NE(result.error().what.find("rank 2"), std::string::npos) << result.error().what;
    EXPECT_LT(elapsed, std::chrono::seconds(20 * test::kSlowness));
    int limit = 0, stopped = 0;
    for (const auto& wait : group.waits()) {
      limit += wait.end == sync::WaitEnd::kLimit;
      stopped += wait.end == sync::WaitEnd::kStopped;
    }
    EXPECT_GE(limit, 1);  // the others may be told to stop before their own limit
    EXPECT_EQ(limit + stopped, 2 * layer.config.workers);
    EXPECT_EQ(group.launch(layer.weights, layer.inputs).value(), expected);
  }
}

}  // namespace
}  // namespace xstage::cpu
