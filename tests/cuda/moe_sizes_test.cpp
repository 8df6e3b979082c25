// What the fused layer needs of a GPU's memory at two, four and eight ranks: the layers and sizes
// of the tables fit into 141 GB and into the kernel's limits. No GPU takes part.
#include <gtest/gtest.h>

#include <cstdio>

#include "cuda/moe/layer.hpp"
#include "cuda/moe/timed_layer.hpp"
#include "shapes/shapes.hpp"

namespace xstage::moe {
namespace {

constexpr const char* kSeven[] = {"lingbot-video",  "qwen3.5-397b", "hy3",
                                  "mimo-v2.5",      "glm-5",        "deepseek-v4-flash",
                                  "deepseek-v4-pro"};
constexpr std::int64_t kH200 = 141'000'000'000;

layout::MoeConfig config_of(const shapes::MoeShape& shape, int ranks, std::int64_t tokens,
                            WeightFormat format, int workers) {
  layout::MoeConfig c;
  c.ranks = ranks;
  c.topk = static_cast<std::int32_t>(shape.topk);
  c.experts = shape.experts;
  c.hidden = shape.hidden;
  c.intermediate = shape.intermediate;
  c.capacity = tokens;
  c.format = format;
  return with_tiles(c, workers);
}

TEST(MoeSizes, EveryLayerOfTheTablesFitsAtEveryNumberOfRanks) {
  for (const WeightFormat format : {WeightFormat::kW8A8, WeightFormat::kBf16})
    for (const char* const name : kSeven) {
      const auto shape = shapes::find_moe_shape(name);
      ASSERT_TRUE(shape.ok()) << name;
      std::string line;
      for (const int ranks : {2, 4, 8})
        for (const std::int64_t tokens : {2048, 8192, 16384}) {
          const auto needed = timed_bytes(config_of(*shape, ranks, tokens, format, 132));
          ASSERT_TRUE(needed.ok()) << name << ": " << needed.error().message();
          EXPECT_LT(*needed, kH200) << name << ", " << ranks << " ranks, " << tokens;
          line += "  " + std::to_string(*needed / 100'000'000 / 10.0).substr(0, 5);
        }
      std::printf("%-18s %s GB a rank:%s\n", name, format == WeightFormat::kBf16 ? "bf16" : "w8a8",
                  line.c_str());
    }
}

TEST(MoeSizes, RanksThatShareAGpuRouteThroughFewerBlocks) {
  const auto shape = shapes::find_moe_shape("deepseek-v4-pro");
  ASSERT_TRUE(shape.ok());
  for (const int workers : {66, 33, 16})
    EXPECT_TRUE(check_layer(config_of(*shape, 8, 1024, WeightFormat::kW8A8, workers)).ok());
  // So many tokens a block are refused with both numbers.
  const auto refused = check_layer(config_of(*shape, 8, 1 << 20, WeightFormat::kW8A8, 16));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ("capacity", refused.error().field);
}

}  // namespace
}  // namespace xstage::moe
