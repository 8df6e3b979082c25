// Rows that threads prepare while others are measured; under ThreadSanitizer in check.sh --long.
#include "cli/preparation.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

namespace xstage::cli {
namespace {

TEST(InParallel, DoesEveryPieceOnce) {
  std::vector<std::atomic<int>> done(1000);
  in_parallel(done.size(), [&](std::size_t i) { ++done[i]; });
  for (const auto& count : done) EXPECT_EQ(count, 1);
  in_parallel(0, [](std::size_t) { FAIL(); });
}

// On a helper's thread an exception would end the program.
TEST(InParallel, ThrowsWhatAPieceThrew) {
  for (int round = 0; round < 100; ++round)
    EXPECT_THROW(in_parallel(100, [](std::size_t) { throw std::out_of_range("a row lacks it"); }),
                 std::out_of_range);
}

TEST(Preparation, MakesWhatIsWantedAndNothingElse) {
  constexpr std::size_t kCount = 200;
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < kCount; i += 3) wanted.push_back(i);
  std::vector<int> made(kCount);  // each written by one thread, read behind take()
  Preparation<std::vector<int>> prepared(wanted, kCount, [&made](std::size_t i) {
    ++made[i];
    return std::vector<int>(100, static_cast<int>(i));
  });
  for (const std::size_t i : wanted) {
    const auto row = prepared.take(i);
    ASSERT_TRUE(row.ok());
    EXPECT_EQ(*row, std::vector<int>(100, static_cast<int>(i)));
  }
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(made[i], i % 3 == 0 ? 1 : 0) << i;
}

TEST(Preparation, ErrorsAndExceptionsReachTheOneThatTakes) {
  Preparation<int> prepared({0, 1, 2}, 3, [](std::size_t i) -> Result<int> {
    if (i == 0) throw std::runtime_error("thrown");
    if (i == 1) return bad_input("refused", "row", "1", "another");
    return 7;
  });
  EXPECT_EQ(prepared.take(2).value(), 7);
  EXPECT_EQ(prepared.take(1).error().what, "refused");
  EXPECT_THROW((void)prepared.take(0), std::runtime_error);
}

TEST(Preparation, EndsEarlyWhenNobodyWantsMore) {
  constexpr std::size_t kCount = 100000;
  std::vector<std::size_t> wanted(kCount);
  std::iota(wanted.begin(), wanted.end(), std::size_t{0});
  std::atomic<std::size_t> made{0};
  {
    Preparation<std::size_t> prepared(wanted, kCount, [&made](std::size_t i) {
      ++made;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      return i;
    });
    EXPECT_EQ(prepared.take(0).value(), 0U);
  }
  EXPECT_LT(made, kCount);  // a hundred thousand would take seconds
}

}  // namespace
}  // namespace xstage::cli
