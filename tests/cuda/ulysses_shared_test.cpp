// Four and eight ranks of a layer on fewer GPUs, each with its part of the SMs: exchange, fused
// attention and baselines against the reference in double precision. Skipped without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "cpu/ulysses_data.hpp"
#include "cuda/driver.hpp"
#include "cuda/ulysses/group.hpp"

namespace xstage::ulysses {
namespace {

using layout::TextRows;
using layout::UlyssesConfig;
using schedule::UlyssesOrderKind;

constexpr std::uint64_t kLimitNs = 1'000'000'000;

UlyssesConfig config_of(std::int32_t ranks, std::int64_t batch, std::int64_t rows,
                        std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim) {
  UlyssesConfig c;
  c.ranks = ranks;
  c.batch = batch;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.rows = c.key_rows = rows;
  layout::set_segments(c, layout::sharded(rows, ranks));
  layout::set_key_segments(c, layout::sharded(rows, ranks));
  return c;
}

using Bits = std::vector<std::vector<std::uint16_t>>;

class UlyssesSharedGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    // A queue of the driver for every stream; read when the driver starts.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    const auto api = cuda::system_driver();
    const cuda::NodeState node = cuda::look_around(*api);
    if (const auto why = cuda::why_not_ranks(node, 1))
      GTEST_SKIP() << "needs a GPU: " << why->message();
    gpus_ = static_cast<int>(node.gpus.size());
  }

  /// Ranks a GPU to try with `ranks`: all on one, and spread over two where there are two.
  std::vector<int> shares(int ranks) const {
    std::vector<int> out = {ranks};
    if (gpus_ >= 2) out.push_back(ranks / 2);
    return out;
  }

  /// Right against the reference; the output's bits.
  static Bits expect_right(const UlyssesConfig& config, int ranks_per_gpu,
                           Sequence sequence = Sequence::kLayer, int timed_launches = 0) {
    Bits bits;
    const auto checked = layout::checked(config);
    EXPECT_TRUE(checked.ok()) << checked.error().message();
    auto group = Group::create(config, kLimitNs, ranks_per_gpu);
    EXPECT_TRUE(group.ok()) << group.error().message();
    if (!group.ok()) return bits;
    const auto data = cpu::UlyssesData::random(config, 3);
    std::vector<RankInput> inputs;
    for (const cpu::UlyssesInput& in : data.inputs) inputs.push_back({in.query, in.key, in.value});
    EXPECT_TRUE((*group)->set_inputs(inputs, {}).ok());
    auto outputs = (*group)->run(sequence);
    EXPECT_TRUE(outputs.ok()) << outputs.error().message();
    if (!outputs.ok()) return bits;
    if (timed_launches > 0) {
      // A GPU's queue holds about a thousand launches; more would wait for ranks not launched yet.
      const auto times = (*group)->time(sequence, timed_launches / 10, 10);
      EXPECT_TRUE(times.ok()) << times.error().message();
      auto again = (*group)->run(sequence);
      EXPECT_TRUE(again.ok()) << again.error().message();
      if (!again.ok()) return bits;
      for (std::size_t r = 0; r < outputs->size(); ++r)
        EXPECT_EQ((*outputs)[r].output, (*again)[r].output) << "rank " << r;
    }
    std::vector<cpu::UlyssesOutput> as_cpu;
    for (RankOutput& o : *outputs) {
      bits.push_back(o.output);
      as_cpu.push_back({std::move(o.output), std::move(o.local), std::move(o.log_sum_exp)});
    }
    const cpu::UlyssesErrors errors = cpu::compare_with_reference(data, as_cpu, {}, 17);
    EXPECT_TRUE(errors.within_limits())
        << "relative " << errors.error << " against " << errors.bf16_error
        << ", fused equals local " << errors.fused_equals_local << ", finite " << errors.finite;
    return bits;
  }

  int gpus_ = 0;
};

TEST_F(UlyssesSharedGpu, BothOrdersGiveTheSameBitsAtFourAndEightRanks) {
  for (const int ranks : {4, 8})
    for (const int share : shares(ranks))
      for (const std::int64_t rows : {1024, 1037}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << share << " a GPU, " << rows);
        UlyssesConfig c = config_of(ranks, 1, rows, 2 * ranks, 2 * ranks, 128);
        c.order = UlyssesOrderKind::kRemoteFirst;
        const Bits remote_first = expect_right(c, share);
        c.order = UlyssesOrderKind::kRowMajor;
        EXPECT_EQ(remote_first, expect_right(c, share));
      }
}

TEST_F(UlyssesSharedGpu, BaselinesGiveTheSame) {
  for (const int ranks : {4, 8})
    for (const int share : shares(ranks)) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << share << " a GPU");
      const UlyssesConfig c = config_of(ranks, 2, 333, ranks + 3, ranks + 3, 64);
      const Bits fused = expect_right(c, share);
      EXPECT_EQ(fused, expect_right(c, share, Sequence::kAttentionThenPush));
      EXPECT_EQ(fused, expect_right(c, share, Sequence::kPerDestination));
    }
}

TEST_F(UlyssesSharedGpu, GroupedHeadsAndTextOnAllRanks) {
  for (const int ranks : {4, 8}) {
    const int share = shares(ranks).back();
    expect_right(config_of(ranks, 1, 500, 32, 8, 128), share);
    UlyssesConfig c = config_of(ranks, 1, 677, 2 * ranks, 2 * ranks, 128);
    const auto segments = layout::sharded_with_text({77, TextRows::kBeforeOnAll}, 600, ranks);
    layout::set_segments(c, segments);
    layout::set_key_segments(c, segments);
    expect_right(c, share);
  }
}

TEST_F(UlyssesSharedGpu, HundredsOfLaunchesWithoutAPause) {
  for (const int ranks : {4, 8})
    for (const int share : shares(ranks)) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << share << " a GPU");
      for (const Sequence sequence :
           {Sequence::kLayer, Sequence::kAttentionThenPush, Sequence::kPerDestination})
        expect_right(config_of(ranks, 1, 1037, 2 * ranks, 2 * ranks, 128), share, sequence, 200);
    }
}

// U10: what keeps one rank from the fused output keeps all of them, by name, before any launch.
TEST_F(UlyssesSharedGpu, U10TheDecisionIsJoint) {
  const UlyssesConfig c = config_of(8, 1, 256, 8, 8, 128);
  const auto too_few = Group::create(c, kLimitNs, gpus_ >= 4 ? 1 : 2);
  if (gpus_ < 4) {
    ASSERT_FALSE(too_few.ok());
    EXPECT_EQ(ErrorKind::kUnsupported, too_few.error().kind);
    EXPECT_EQ("--ranks", too_few.error().field);
  }
  const auto uneven = Group::create(c, kLimitNs, 3);
  ASSERT_FALSE(uneven.ok());
  EXPECT_EQ("ranks a GPU", uneven.error().field);
  // A rank without heads has no kernel to launch: nobody falls back to another path alone.
  const auto headless = Group::create(config_of(8, 1, 256, 5, 5, 128), kLimitNs, 8);
  ASSERT_FALSE(headless.ok());
  EXPECT_EQ("--heads", headless.error().field);
  // Ranks whose layers differ are found together, and all get the same error.
  std::vector<UlyssesConfig> of_rank(8, c);
  of_rank[5].output_order = layout::OutputOrder::kHeadsRows;
  EXPECT_FALSE(layout::agreed(of_rank).ok());
}

// Every layer of bench's tables has a layout at four and eight ranks, and fits; no GPU takes part.
TEST(UlyssesSizes, TheTablesFitAtFourAndEightRanks) {
  const struct {
    std::int64_t rows, heads_local, head_dim;
  } shapes[] = {{65536, 4, 128}, {32768, 20, 128}, {7145, 12, 128},
                {6144, 16, 128}, {32760, 20, 128}, {17776, 24, 64}};
  for (const int ranks : {4, 8})
    for (const auto& s : shapes) {
      const UlyssesConfig c =
          config_of(ranks, 1, s.rows, s.heads_local * ranks, s.heads_local * ranks, s.head_dim);
      const auto valid = layout::checked(c);
      ASSERT_TRUE(valid.ok()) << valid.error().message();
      const auto layout = layout::UlyssesLayout::make(c);
      EXPECT_LT(layout.symmetric_bytes + layout.workspace_bytes, 20'000'000'000)
          << ranks << " ranks, " << s.rows;
    }
}

}  // namespace
}  // namespace xstage::ulysses
