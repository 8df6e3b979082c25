// Attention on a GPU against the definition in double precision. Skipped where there is no GPU.
#include "ulysses_gpu.cuh"

namespace xstage::ulysses::test {
namespace {

using layout::ScalarType;
using layout::TensorView;

struct Case {
  std::int64_t batch = 1, rows = 1, keys = 1, heads = 1, group = 1, head_dim = 128;
  float scale = 0, amplitude = 1;
  bool heads_first = false;  ///< stored as [batch, heads, rows, head_dim]
  std::vector<std::int32_t> key_lengths = {};
  std::int64_t row_step = 1;
  bool poisoned = false;  ///< keys without weight, and their values, are NaN
  bool half = false;      ///< fp16
};

TensorView view(std::uint16_t* data, const Case& c, std::int64_t rows, std::int64_t heads) {
  TensorView out = TensorView::contiguous(data, c.half ? ScalarType::kFp16 : ScalarType::kBf16,
                                          c.batch, rows, heads, c.head_dim);
  if (c.heads_first) {
    out.stride[1] = c.head_dim;
    out.stride[2] = rows * c.head_dim;
  }
  return out;
}

// bf16 rounds weights and results to 2^-9 each, which is 2.3e-3 in norm for weights that average;
// fp16 to 2^-12.
constexpr double kAllowed = 3.5e-3, kAllowedHalf = kAllowed / 8;

void expect_right(const Case& c) {
  const std::int64_t query_count = c.batch * c.rows * c.heads * c.head_dim;
  const std::int64_t key_count = c.batch * c.keys * (c.heads / c.group) * c.head_dim;
  DeviceArray<std::uint16_t> query(query_count), key(key_count), value(key_count),
      output(query_count);
  DeviceArray<float> lse(c.batch * c.heads * c.rows);
  fill(query.get(), query_count, 1, c.amplitude, c.half);
  fill(key.get(), key_count, 2, c.amplitude, c.half);
  fill(value.get(), key_count, 3, 1, c.half);
  output.set_bytes(0xff);  // not a number
  lse.set_bytes(0xff);
  AttentionInputs in;
  in.query = view(query.get(), c, c.rows, c.heads);
  in.key = view(key.get(), c, c.keys, c.heads / c.group);
  in.value = view(value.get(), c, c.keys, c.heads / c.group);
  in.scale = c.scale;
  in.lse = lse.get();
  DeviceArray<std::int32_t> lengths(c.batch);
  if (!c.key_lengths.empty()) {
    CUDA_OK(cudaMemcpy(lengths.get(), c.key_lengths.data(), c.key_lengths.size() * 4,
                       cudaMemcpyHostToDevice));
    in.key_lengths = lengths.get();
  }
  if (c.poisoned)
    for (std::int64_t b = 0; b < c.batch; ++b) {
      const std::int64_t row = (c.heads / c.group) * c.head_dim;
      const std::int64_t from = (b * c.keys + c.key_lengths[static_cast<std::size_t>(b)]) * row;
      const auto bytes = static_cast<std::size_t>((b + 1) * c.keys * row - from) * 2;
      for (std::uint16_t* data : {key.get(), value.get()})
        CUDA_OK(cudaMemset(data + from, 0xff, bytes));
    }
  const TensorView out = view(output.get(), c, c.rows, c.heads);
  const Result<Attention> attention = Attention::local(in, out);
  ASSERT_TRUE(attention.ok()) << attention.error().message();
  const Result<bool> launched = attention.value().launch(nullptr);
  ASSERT_TRUE(launched.ok()) << launched.error().message();
  CUDA_OK(cudaDeviceSynchronize());
  const Difference found = compare(in, out, c.row_step);
  EXPECT_EQ(0u, found.not_finite);
  EXPECT_EQ(0u, found.wrong_lse);
  EXPECT_LE(std::sqrt(found.error), (c.half ? kAllowedHalf : kAllowed) * std::sqrt(found.norm))
      << "relative error " << std::sqrt(found.error / found.norm);
}

class Attention9 : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    if (gpus() < 1) GTEST_SKIP() << "needs a GPU of compute capability 9.0";
  }
  Case with(Case c) const {
    c.head_dim = GetParam();
    return c;
  }
};

TEST_P(Attention9, WholeTiles) { expect_right(with({.rows = 384, .keys = 640, .heads = 3})); }

TEST_P(Attention9, EveryLengthAroundATile) {
  for (const std::int64_t keys : {1, 15, 16, 17, 127, 128, 129, 143, 144, 145, 287, 288, 289})
    for (const std::int64_t rows : {1, 63, 64, 65, 127, 128, 129, 191, 192, 193})
      expect_right(with({.rows = rows, .keys = keys, .heads = 2}));
}

TEST_P(Attention9, Half) {
  for (const std::int64_t keys : {1, 16, 127, 144, 289, 777})
    expect_right(with({.rows = 193, .keys = keys, .heads = 2, .half = true}));
  expect_right(with({.batch = 3,
                     .rows = 300,
                     .keys = 700,
                     .heads = 4,
                     .group = 2,
                     .amplitude = 4,
                     .heads_first = true,
                     .key_lengths = {0, 333, 700},
                     .half = true}));
}

TEST_P(Attention9, MoreTilesThanBlocks) {
  expect_right(with({.batch = 2, .rows = 1111, .keys = 777, .heads = 20}));
}

TEST_P(Attention9, GroupedHeads) {
  expect_right(with({.batch = 2, .rows = 200, .keys = 300, .heads = 12, .group = 4}));
  expect_right(with({.rows = 200, .keys = 300, .heads = 7, .group = 7}));
}

TEST_P(Attention9, KeyLengths) {
  expect_right(with(
      {.batch = 5, .rows = 300, .keys = 700, .heads = 2, .key_lengths = {0, 1, 700, 333, 480}}));
}

TEST_P(Attention9, WhatLiesBehindTheKeyLengthDoesNotMatter) {
  expect_right(with({.batch = 7,
                     .rows = 300,
                     .keys = 700,
                     .heads = 2,
                     .key_lengths = {0, 1, 700, 333, 480, 144, 127},
                     .poisoned = true}));
}

TEST_P(Attention9, Scale) {
  expect_right(with({.rows = 300, .keys = 500, .heads = 2, .scale = 0.3f}));
}

TEST_P(Attention9, LargeLogits) {
  expect_right(with({.rows = 300, .keys = 1000, .heads = 2, .amplitude = 8}));
}

TEST_P(Attention9, HeadsBeforeRows) {
  expect_right(with({.batch = 2, .rows = 333, .keys = 444, .heads = 3, .heads_first = true}));
}

TEST_P(Attention9, MoreThan2To31Elements) {
  const std::int64_t rows = (std::int64_t{1} << 31) / (16 * GetParam()) + 100;
  std::size_t free = 0, total = 0;
  CUDA_OK(cudaMemGetInfo(&free, &total));
  if (free < (std::size_t{12} << 30)) GTEST_SKIP() << "needs 12 GiB of device memory";
  expect_right(with({.rows = rows, .keys = 192, .heads = 16, .row_step = 9973}));
}

TEST_P(Attention9, CapturedAndReplayed) {
  const Case c = with({.rows = 500, .keys = 500, .heads = 4});
  const std::int64_t count = c.rows * c.heads * c.head_dim;
  DeviceArray<std::uint16_t> query(count), key(count), value(count), output(count);
  AttentionInputs in;
  in.query = view(query.get(), c, c.rows, c.heads);
  in.key = view(key.get(), c, c.rows, c.heads);
  in.value = view(value.get(), c, c.rows, c.heads);
  const TensorView out = view(output.get(), c, c.rows, c.heads);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  const Result<Attention> attention = Attention::local(in, out);  // allocates nothing
  ASSERT_TRUE(attention.ok()) << attention.error().message();
  EXPECT_TRUE(attention.value().launch(stream).ok());
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&replay, graph, 0));
  for (std::uint64_t round = 0; round < 3; ++round) {
    fill(query.get(), count, 3 * round);
    fill(key.get(), count, 3 * round + 1);
    fill(value.get(), count, 3 * round + 2);
    output.set_bytes(0xff);
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaGraphLaunch(replay, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    const Difference found = compare(in, out);
    EXPECT_EQ(0u, found.not_finite);
    EXPECT_LE(std::sqrt(found.error), (c.half ? kAllowedHalf : kAllowed) * std::sqrt(found.norm));
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

INSTANTIATE_TEST_SUITE_P(HeadDim, Attention9, ::testing::Values(64, 128));

// Refusals come before anything is asked of a driver, so they are tested everywhere.
AttentionInputs good_inputs() {
  static std::uint16_t memory[16];  // an address; nothing is read
  AttentionInputs in;
  in.query = in.key = in.value = TensorView::contiguous(memory, ScalarType::kBf16, 2, 8, 4, 128);
  return in;
}

void expect_refused(const AttentionInputs& in, const std::string& field) {
  const Result<Attention> made = Attention::local(in, in.query);
  ASSERT_FALSE(made.ok()) << field;
  EXPECT_EQ(ErrorKind::kBadInput, made.error().kind) << made.error().message();
  EXPECT_EQ(field, made.error().field) << made.error().message();
  EXPECT_FALSE(made.error().allowed.empty());
}

TEST(AttentionInput, ARingIsRefusedForTheFusedOutput) {
  AttentionInputs in = good_inputs();
  RankMemory memory;
  layout::UlyssesConfig config;
  config.ranks = 2;
  config.batch = 2;
  config.heads = config.kv_heads = 8;
  config.rows = config.key_rows = 8;
  config.segment_count = config.key_segment_count = 2;
  config.segments[0] = config.key_segments[0] = {0, 4, 0, 0};
  config.segments[1] = config.key_segments[1] = {4, 8, 1, 0};
  memory.layout = layout::UlyssesLayout::make(config);
  EXPECT_TRUE(Attention::check_fused(in, memory).ok());
  memory.layout.config.ring = 2;
  const Result<bool> refused = Attention::check_fused(in, memory);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ("ring", refused.error().field);
  EXPECT_NE(std::string::npos, refused.error().allowed.find("log-sum-exp"));
  memory.layout.config.ring = 1;
  in.query.shape[2] = 3;
  in.key.shape[2] = in.value.shape[2] = 3;
  EXPECT_EQ("query", Attention::check_fused(in, memory).error().field);
}

TEST(AttentionInput, IsRefusedByName) {
  const auto with = [](auto change) {
    AttentionInputs in = good_inputs();
    change(in);
    return in;
  };
  expect_refused(with([](auto& in) { in.key.type = ScalarType::kFp16; }), "key");
  expect_refused(with([](auto& in) { in.query.shape[1] = 0; }), "query");
  expect_refused(with([](auto& in) { in.value.shape[0] = 3; }), "value");
  expect_refused(with([](auto& in) { in.value.shape[1] = 9; }), "value");
  expect_refused(with([](auto& in) { in.key.shape[2] = in.value.shape[2] = 3; }), "key");
  expect_refused(
      with([](auto& in) { in.query.shape[3] = in.key.shape[3] = in.value.shape[3] = 96; }),
      "head_dim");
  expect_refused(with([](auto& in) { in.scale = -1; }), "scale");
  expect_refused(with([](auto& in) { in.scale = NAN; }), "scale");
  expect_refused(with([](auto& in) { in.query.stride[3] = 2; }), "query.stride[3]");
  expect_refused(with([](auto& in) { in.key.stride[1] = 4 * 128 + 4; }), "key.stride[1]");
  expect_refused(with([](auto& in) { in.value.stride[0] = 0; }), "value.stride[0]");
  expect_refused(with([](auto& in) { in.key.data = static_cast<char*>(in.key.data) + 2; }), "key");
}

}  // namespace
}  // namespace xstage::ulysses::test
