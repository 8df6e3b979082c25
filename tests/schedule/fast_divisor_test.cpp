#include "xstage/schedule/fast_divisor.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace xstage::schedule {
namespace {

static_assert(FastDivisor(7).quotient(std::uint32_t{48}) == 6);

TEST(FastDivisor, ExhaustiveOverSmallDivisorsAtTheEdges) {
  for (std::uint32_t d = 1; d <= 3000; ++d) {
    const FastDivisor by(d);
    for (std::uint32_t q : {0U, 1U, 2U, 7U, 0xFFFFFFFFU / d - 1, 0xFFFFFFFFU / d})
      for (std::uint32_t r : {0U, d / 2, d - 1}) {
        const std::uint64_t n = std::uint64_t{q} * d + r;
        ASSERT_EQ(by.quotient(n), n / d) << n << " / " << d;
        if (n <= 0xFFFFFFFFU) {
          ASSERT_EQ(by.quotient(static_cast<std::uint32_t>(n)), n / d) << n << " / " << d;
        }
      }
  }
}

TEST(FastDivisor, AgreesWithDivision) {
  EXPECT_TRUE(rc::check("quotient is the quotient", [](std::uint64_t n, std::uint32_t d) {
    d = d % (1U << 31) + 1;
    RC_ASSERT(FastDivisor(d).quotient(n) == n / d);
    const auto low = static_cast<std::uint32_t>(n);
    RC_ASSERT(FastDivisor(d).quotient(low) == low / d);
  }));
}

}  // namespace
}  // namespace xstage::schedule
