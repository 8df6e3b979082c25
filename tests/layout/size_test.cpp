#include "xstage/layout/size.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace xstage::layout {
namespace {

RC_GTEST_PROP(Size, ProductsAndSumsAreExactOrInvalid, (std::int64_t a, std::int64_t b)) {
  constexpr std::int64_t kEnd = std::int64_t{1} << 62;
  std::int64_t product = 0;
  const bool fits = a >= 0 && b >= 0 && a < kEnd && b < kEnd &&
                    !__builtin_mul_overflow(a, b, &product) && product < kEnd;
  const Size size = Size(a) * Size(b);
  RC_ASSERT(size.valid() == fits);
  if (fits) RC_ASSERT(size.value() == product);
}

TEST(Size, OverflowStays) {
  const Size huge = Size(std::int64_t{1} << 40) * (std::int64_t{1} << 40);
  EXPECT_FALSE(huge.valid());
  EXPECT_FALSE((huge * 0).valid());
  EXPECT_FALSE((huge + 1).valid());
  EXPECT_EQ(huge.value(), 0);
  EXPECT_EQ(Size(1000).rounded_up(1024).value(), 1024);
  EXPECT_EQ(Size(1024).rounded_up(1024).value(), 1024);
  EXPECT_FALSE(Size((std::int64_t{1} << 62) - 1).rounded_up(1024).valid());
}

TEST(Size, RegionsFollowEachOtherAligned) {
  Regions regions;
  const Region a = regions.add(5), b = regions.add(0), c = regions.add(2000);
  EXPECT_EQ(a.offset, 0);
  EXPECT_EQ(b.offset, 1024);
  EXPECT_EQ(c.offset, 1024);
  EXPECT_EQ(regions.bytes(), 1024 + 2048);
  regions.add(Size(-1));
  EXPECT_FALSE(regions.valid());
}

}  // namespace
}  // namespace xstage::layout
