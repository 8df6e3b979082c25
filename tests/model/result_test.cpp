#include "xstage/result.hpp"

#include <gtest/gtest.h>

namespace xstage {
namespace {

TEST(Error, MessageNamesFieldValueAndRange) {
  const Error error = bad_input("a burst needs bytes", "bytes", "0", "16 to 2^40, multiple of 16");
  EXPECT_EQ(error.message(),
            "a burst needs bytes (bytes = 0; allowed: 16 to 2^40, multiple of 16)");
}

TEST(Result, ThrowsTheErrorItHolds) {
  const Result<int> result = bad_input("no", "field", "x", "y");
  ASSERT_FALSE(result.ok());
  EXPECT_THROW((void)result.value(), Failure);
}

}  // namespace
}  // namespace xstage
