// A whole layer on GPUs, exchange and fused attention, against the reference in double precision.
// Needs two GPUs; skipped with fewer.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cpu/ulysses_data.hpp"
#include "cuda/driver.hpp"
#include "cuda/ulysses/group.hpp"

namespace xstage::ulysses {
namespace {

using layout::TextRows;
using layout::UlyssesConfig;

UlyssesConfig config_of(std::int64_t batch, std::int64_t rows, std::int64_t heads,
                        std::int64_t kv_heads, std::int64_t head_dim) {
  UlyssesConfig c;
  c.ranks = 2;
  c.batch = batch;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.rows = c.key_rows = rows;
  layout::set_segments(c, layout::sharded(rows, c.ranks));
  layout::set_key_segments(c, layout::sharded(rows, c.ranks));
  return c;
}

class UlyssesLayer : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto api = cuda::system_driver();
    if (const auto why = cuda::why_not_calibrate(cuda::look_around(*api), {0, 1}))
      GTEST_SKIP() << "needs a GPU: " << why->message();
  }

  static void expect_right(const UlyssesConfig& config,
                           const std::vector<std::int64_t>& key_length = {},
                           Sequence sequence = Sequence::kLayer) {
    const auto checked = layout::checked(config);
    ASSERT_TRUE(checked.ok()) << checked.error().message();
    auto group = Group::create(config, 2'000'000'000);
    ASSERT_TRUE(group.ok()) << group.error().message();
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      const auto data = cpu::UlyssesData::random(config, seed);
      std::vector<RankInput> inputs;
      for (const cpu::UlyssesInput& in : data.inputs)
        inputs.push_back({in.query, in.key, in.value});
      ASSERT_TRUE((*group)->set_inputs(inputs, key_length).ok());
      auto outputs = (*group)->run(sequence);
      ASSERT_TRUE(outputs.ok()) << outputs.error().message();
      std::vector<cpu::UlyssesOutput> as_cpu;
      for (RankOutput& o : *outputs) as_cpu.push_back({o.output, o.local, o.log_sum_exp});
      const cpu::UlyssesErrors errors = cpu::compare_with_reference(data, as_cpu, key_length, 7);
      EXPECT_TRUE(errors.within_limits())
          << "seed " << seed << ": relative " << errors.error << " against " << errors.bf16_error
          << ", log-sum-exp " << errors.log_sum_exp << ", fused equals local "
          << errors.fused_equals_local << ", finite " << errors.finite;
    }
  }
};

TEST_F(UlyssesLayer, EvenAndUnevenShards) {
  expect_right(config_of(1, 512, 4, 4, 128));
  expect_right(config_of(2, 333, 6, 6, 64));
}

TEST_F(UlyssesLayer, UnevenHeads) { expect_right(config_of(1, 300, 5, 5, 128)); }

TEST_F(UlyssesLayer, AllGpusOfTheNode) {
  const auto api = cuda::system_driver();
  const auto gpus = std::min<std::size_t>(8, cuda::look_around(*api).gpus.size());
  if (gpus < 3) GTEST_SKIP() << "needs a GPU: more than two of them";
  for (std::int32_t ranks = 3; ranks <= static_cast<std::int32_t>(gpus); ++ranks) {
    UlyssesConfig c = config_of(1, 777, 12, 12, 128);
    c.ranks = ranks;
    layout::set_segments(c, layout::sharded(c.rows, ranks));
    layout::set_key_segments(c, layout::sharded(c.rows, ranks));
    expect_right(c);
    expect_right(c, {}, Sequence::kPerDestination);
  }
}

TEST_F(UlyssesLayer, GroupedHeads) {
  expect_right(config_of(1, 300, 8, 2, 128));
  UlyssesConfig c = config_of(1, 200, 6, 1, 64);  // both ranks read the one key head
  c.replicate_kv_heads = true;
  expect_right(c);
}

TEST_F(UlyssesLayer, Text) {
  for (const TextRows place :
       {TextRows::kBefore, TextRows::kAfter, TextRows::kBeforeOnAll, TextRows::kAfterOnAll}) {
    UlyssesConfig c = config_of(1, 377, 4, 4, 128);
    const auto segments = layout::sharded_with_text({77, place}, 300, c.ranks);
    layout::set_segments(c, segments);
    layout::set_key_segments(c, segments);
    expect_right(c);
  }
}

TEST_F(UlyssesLayer, ReplicatedKeysOfAnotherLength) {
  UlyssesConfig c = config_of(1, 400, 4, 4, 128);
  c.key_rows = 77;
  c.keys_replicated = true;
  c.key_segment_count = 0;
  expect_right(c);
}

TEST_F(UlyssesLayer, KeyLengthsAndScale) {
  UlyssesConfig c = config_of(3, 260, 4, 4, 128);
  c.scale = 0.2f;
  expect_right(c, {0, 260, 100});
}

TEST_F(UlyssesLayer, BaselinesGiveTheSame) {
  for (const Sequence sequence : {Sequence::kAttentionThenPush, Sequence::kPerDestination}) {
    expect_right(config_of(2, 333, 6, 6, 64), {}, sequence);
    UlyssesConfig c = config_of(1, 377, 5, 5, 128);
    const auto segments = layout::sharded_with_text({77, TextRows::kBeforeOnAll}, 300, c.ranks);
    layout::set_segments(c, segments);
    layout::set_key_segments(c, segments);
    expect_right(c, {}, sequence);
  }
}

TEST_F(UlyssesLayer, SpansOfTileStoresAreRecorded) {
  for (const std::int64_t head_dim : {64, 128}) {
    auto group = Group::create(config_of(1, 1152, 4, 4, head_dim), 2'000'000'000);
    ASSERT_TRUE(group.ok()) << group.error().message();
    ASSERT_TRUE((*group)->set_random_inputs(1).ok());
    ASSERT_TRUE((*group)->run().ok());
    const auto spans = (*group)->spans();
    ASSERT_TRUE(spans.ok()) << spans.error().message();
    const auto document = nlohmann::json::parse(*spans);
    EXPECT_EQ("xstage.spans/1", document["format"]);
    EXPECT_EQ(64 * 2 * head_dim, document["bytes"].get<std::int64_t>());
    // 64 rows a burst: 18 of them for each of the two local heads.
    std::size_t bursts = 0;
    for (const auto& block : document["blocks"]) bursts += block["issue_us"].size();
    EXPECT_EQ(36u, bursts);
    ASSERT_TRUE((*group)->run().ok());  // epochs and slots still fit
  }
}

TEST_F(UlyssesLayer, TimesAreTaken) {
  auto group = Group::create(config_of(1, 1024, 4, 4, 128), 2'000'000'000);
  ASSERT_TRUE(group.ok()) << group.error().message();
  ASSERT_TRUE((*group)->set_random_inputs(1).ok());
  ASSERT_TRUE((*group)->run().ok());
  for (const Sequence sequence :
       {Sequence::kInputs, Sequence::kAttention, Sequence::kFused, Sequence::kPush,
        Sequence::kAttentionThenPush, Sequence::kPerDestination, Sequence::kLayer}) {
    const auto times = (*group)->time(sequence, 2, 3);
    ASSERT_TRUE(times.ok()) << times.error().message();
    ASSERT_EQ(2u, times->size());
    for (const auto& round : *times) {
      ASSERT_EQ(2u, round.size());
      for (const ulysses::Taken& taken : round) {
        EXPECT_GT(taken.us, 0);
        // A clock of 0.3 to 3 GHz; a few launches are short beside the stamps' own launch.
        EXPECT_GT(taken.cycles, 300 * taken.us);
        EXPECT_LT(taken.cycles, 3000 * (taken.us + 50));
      }
    }
  }
  ASSERT_TRUE((*group)->run().ok());  // epochs and slots still fit
}

}  // namespace
}  // namespace xstage::ulysses
