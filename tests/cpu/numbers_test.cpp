#include "cpu/numbers.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "cpu/reference/numbers.hpp"

namespace xstage::cpu {
namespace {

TEST(Numbers, E4m3ValuesAgreeWithTheReferencesOwn) {
  for (int code = 0; code < 256; ++code) {
    const double expected = reference::e4m3_value(static_cast<std::uint8_t>(code));
    const float value = e4m3_to_float(static_cast<std::uint8_t>(code));
    if (std::isnan(expected))
      EXPECT_TRUE(std::isnan(value));
    else
      EXPECT_EQ(static_cast<double>(value), expected) << code;
  }
}

TEST(Numbers, E4m3RoundTripsEveryCode) {
  for (int code = 0; code < 256; ++code)
    if ((code & 0x7f) != 0x7f) {
      EXPECT_EQ(float_to_e4m3(e4m3_to_float(static_cast<std::uint8_t>(code))), code);
    }
  EXPECT_EQ(float_to_e4m3(std::nanf("")) & 0x7f, 0x7f);
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::infinity()), 0x7e);
  EXPECT_EQ(float_to_e4m3(-1e30f), 0xfe);
}

void expect_e4m3_of(std::uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  if (std::isnan(value)) return;
  const auto got = static_cast<double>(e4m3_to_float(float_to_e4m3(value)));
  ASSERT_EQ(got, reference::to_e4m3(static_cast<double>(value))) << std::hexfloat << value;
}

// Rounding is monotonic, so it is right everywhere if it is right around every point where the
// result changes: the midpoints of neighbouring values, and the values themselves.
TEST(Numbers, E4m3RoundsRightAroundEveryMidpoint) {
  const auto& values = reference::e4m3_values();
  for (std::size_t i = 0; i + 1 < values.size(); ++i)
    for (const double at : {values[i], (values[i] + values[i + 1]) / 2})
      for (int step = -3; step <= 3; ++step)
        for (const std::uint32_t sign : {0u, 0x80000000u}) {
          const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(at));
          if (step < 0 && bits < static_cast<std::uint32_t>(-step)) continue;
          expect_e4m3_of((bits + static_cast<std::uint32_t>(step)) | sign);
        }
  for (std::uint32_t bits = 0; bits < 0x80000000u - 4097u; bits += 4097u) {
    const auto lower =
        static_cast<double>(e4m3_to_float(float_to_e4m3(std::bit_cast<float>(bits))));
    const auto upper =
        static_cast<double>(e4m3_to_float(float_to_e4m3(std::bit_cast<float>(bits + 4097u))));
    if (!std::isnan(upper)) {
      ASSERT_LE(lower, upper);
    }
  }
}

TEST(Numbers, Bf16RoundsToNearestEven) {
  for (std::uint32_t high = 0; high < 0x7f80u; ++high)
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>((high << 16) | low);
      const double expected = reference::to_bf16(static_cast<double>(value));
      const double got = static_cast<double>(bf16_to_float(float_to_bf16(value)));
      // Above the largest finite value the reference keeps the number, bf16 becomes infinite.
      if (std::isinf(got)) {
        EXPECT_EQ(high, 0x7f7fu);
        continue;
      }
      ASSERT_EQ(got, expected) << high << " " << low;
    }
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Numbers, ReferenceReadsEveryBf16) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto value = static_cast<double>(bf16_to_float(static_cast<std::uint16_t>(bits)));
    if (!std::isnan(value)) {
      ASSERT_EQ(reference::bf16_value(static_cast<std::uint16_t>(bits)), value);
    }
  }
}

TEST(Numbers, ScaleOfZerosCanBeDividedBy) {
  EXPECT_GT(scale_of_group(0), 0);
  EXPECT_TRUE(std::isfinite(0 / scale_of_group(0)));
  EXPECT_FLOAT_EQ(scale_of_group(448), 1);
}

}  // namespace
}  // namespace xstage::cpu
