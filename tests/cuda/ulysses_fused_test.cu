// The fused output against the local one, bit for bit, wherever it lands. Skipped without a GPU;
// with one GPU its ranks share it, with more they are spread.
#include <cstdlib>
#include <random>

#include "cuda/ptx/clock.cuh"
#include "cuda/ulysses/exchange.hpp"
#include "ulysses_ranks.cuh"

namespace xstage::ulysses::test {
namespace {

using layout::RowSegment;
using layout::ScalarType;
using layout::TensorView;
using layout::UlyssesConfig;
using layout::UlyssesLayout;

UlyssesConfig config_of(std::int32_t ranks, std::int64_t batch, std::int64_t rows,
                        std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                        const std::vector<RowSegment>& segments) {
  UlyssesConfig c;
  c.ranks = ranks;
  c.batch = batch;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.rows = c.key_rows = rows;
  c.replicate_kv_heads = true;
  c.segment_count = static_cast<std::int32_t>(segments.size());
  std::copy(segments.begin(), segments.end(), c.segments);
  return c;
}

/// Consecutive shares, the first ones a row longer.
std::vector<RowSegment> shares(std::int64_t rows, std::int32_t ranks) {
  std::vector<RowSegment> out;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const layout::Share share = layout::share_of(rows, ranks, rank);
    if (share.count > 0) out.push_back({share.begin, share.begin + share.count, rank, 0});
  }
  return out;
}

/// Cuts of random lengths to random destinations, all ranks among them; destination rows in order.
std::vector<RowSegment> random_segments(std::int64_t rows, std::int32_t ranks,
                                        std::mt19937& random) {
  std::vector<RowSegment> out;
  std::vector<std::int64_t> next(static_cast<std::size_t>(ranks), 0);
  const auto below = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
  };
  for (std::int64_t at = 0; at < rows;) {
    std::int64_t length = 1 + below(below(4) == 0 ? 7 : 300);
    if (out.size() + 2 > UlyssesConfig::kMaxSegments || at + length > rows) length = rows - at;
    auto rank = static_cast<std::int32_t>(below(ranks + 1)) - 1;
    const auto level = *std::max_element(next.begin(), next.end());
    if (rank == layout::kAllRanks) {  // needs the same destination row everywhere
      bool even = true;
      for (const std::int64_t n : next) even = even && n == level;
      if (!even) rank = static_cast<std::int32_t>(below(ranks));
    }
    if (rank == layout::kAllRanks) {
      out.push_back({at, at + length, rank, level});
      for (std::int64_t& n : next) n += length;
    } else {
      std::int64_t& n = next[static_cast<std::size_t>(rank)];
      out.push_back({at, at + length, rank, n});
      n += length;
    }
    at += length;
  }
  return out;
}

__global__ void spin(std::uint64_t ns) {
  const std::uint64_t begin = ptx::globaltimer();
  while (ptx::globaltimer() - begin < ns) __nanosleep(1000);
}

/// One layer: inputs and a local result of all heads on each device.
class Layer {
 public:
  Layer(RankGroup& group, const UlyssesConfig& config, std::uint64_t seed)
      : group_(group), layout_(UlyssesLayout::make(config)) {
    const UlyssesConfig& c = layout_.config;
    const std::int64_t query = c.batch * c.rows * c.heads * c.head_dim;
    const std::int64_t key = c.batch * c.key_rows * c.kv_heads * c.head_dim;
    for (std::int32_t device = 0; device < group.devices(); ++device) {
      cudaSetDevice(device);
      for (auto* list : {&query_, &wanted_})
        list->push_back(std::make_unique<DeviceArray<std::uint16_t>>(query));
      for (auto* list : {&key_, &value_})
        list->push_back(std::make_unique<DeviceArray<std::uint16_t>>(key));
      fill(query_.back()->get(), query, seed);
      fill(key_.back()->get(), key, seed + 1);
      fill(value_.back()->get(), key, seed + 2);
    }
    for (std::int32_t rank = 0; rank < c.ranks; ++rank) {
      group.use(rank);
      launches_.push_back(Attention::fused(inputs(rank), group.output(layout_, rank)));
    }
    for (std::int32_t device = 0; device < group.devices(); ++device) {
      cudaSetDevice(device);
      compute_wanted(device);
      different_.push_back(std::make_unique<DeviceArray<unsigned long long>>(1));
      different_.back()->set_bytes(0);
    }
    group.synchronize();
  }

  /// Without heads of its own a rank has nothing to launch, so such layers are not tested here.
  void run(std::int32_t missing = -1) {
    if (::testing::Test::HasFatalFailure()) return;
    for (std::int32_t rank = 0; rank < group_.ranks(); ++rank) {
      if (rank == missing) continue;
      group_.use(rank);
      const auto& launch = launches_[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(launch.ok()) << launch.error().message();
      ASSERT_TRUE(launch.value().launch(group_.stream(rank)).ok());
    }
  }

  /// The baseline: local output, then the push All-to-All; in a graph of its own, or directly.
  void run_with_push(bool captured) {
    const UlyssesConfig& c = layout_.config;
    for (std::int32_t rank = 0; rank < group_.ranks(); ++rank) {
      group_.use(rank);
      const AttentionInputs in = inputs(rank);
      local_.push_back(std::make_unique<DeviceArray<std::uint16_t>>(
          c.batch * c.rows * in.query.shape[2] * c.head_dim));
      const TensorView out = TensorView::contiguous(local_.back()->get(), ScalarType::kBf16,
                                                    c.batch, c.rows, in.query.shape[2], c.head_dim);
      const Result<Attention> local = Attention::local(in, out);
      ASSERT_TRUE(local.ok()) << local.error().message();
      const Result<Exchange> push = Exchange::output(group_.output(layout_, rank), out);
      ASSERT_TRUE(push.ok()) << push.error().message();
      const cudaStream_t stream = group_.stream(rank);
      if (captured) CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      ASSERT_TRUE(local.value().launch(stream).ok());
      ASSERT_TRUE(push.value().launch(stream).ok());
      if (!captured) continue;
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t replay = nullptr;
      CUDA_OK(cudaStreamEndCapture(stream, &graph));
      CUDA_OK(cudaGraphInstantiate(&replay, graph, 0));
      cudaGraphDestroy(graph);
      CUDA_OK(cudaGraphLaunch(replay, stream));
      cudaGraphExecDestroy(replay);  // when it has run
    }
  }

  cudaGraphExec_t captured(std::int32_t rank, int launches) {
    group_.use(rank);
    const cudaStream_t stream = group_.stream(rank);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t out = nullptr;
    EXPECT_EQ(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; ++i)
      EXPECT_TRUE(launches_[static_cast<std::size_t>(rank)].value().launch(stream).ok());
    EXPECT_EQ(cudaSuccess, cudaStreamEndCapture(stream, &graph));
    EXPECT_EQ(cudaSuccess, cudaGraphInstantiate(&out, graph, 0));
    EXPECT_EQ(cudaSuccess, cudaGraphUpload(out, stream));
    cudaGraphDestroy(graph);
    return out;
  }

  void poison(int slot) {
    for (std::int32_t rank = 0; rank < group_.ranks(); ++rank) {
      group_.use(rank);
      cudaMemsetAsync(layout_.output_row(group_.symmetric(rank), slot, 1, 0, 0, 0), 0xff,
                      static_cast<std::size_t>(layout_.output_slot) * 2, group_.stream(rank));
    }
    group_.synchronize();
  }

  std::int64_t slot_bytes() const { return layout_.output_slot * 2; }
  void* slot(std::int32_t rank, int slot) const {
    return layout_.output_row(group_.symmetric(rank), slot, 1, 0, 0, 0);
  }

  /// All ranks, or the ones from `first_rank` on.
  void expect_right(int slot, std::int32_t first_rank = 0) {
    const UlyssesConfig& c = layout_.config;
    group_.expect_no_stop(layout_);
    for (std::int32_t rank = first_rank; rank < group_.ranks(); ++rank) {
      group_.use(rank);
      unsigned long long* const different =
          different_[static_cast<std::size_t>(rank % group_.devices())]->get();
      const std::int64_t received = layout::rows_received(c.segments, c.segment_count, rank);
      const auto* const wanted = wanted_[static_cast<std::size_t>(rank % group_.devices())]->get();
      const std::int64_t units = c.head_dim / 8;
      const bool heads_first = c.output_order == layout::OutputOrder::kHeadsRows;
      for (std::int32_t i = 0; i < c.segment_count; ++i) {
        const RowSegment& s = c.segments[i];
        if (s.rank != rank && s.rank != layout::kAllRanks) continue;
        for (std::int64_t b = 0; b < c.batch; ++b)
          count_different<<<dim3(static_cast<unsigned>(s.end - s.begin),
                                 static_cast<unsigned>(c.heads)),
                            32, 0, group_.stream(rank)>>>(
              reinterpret_cast<const uint4*>(
                  layout_.output_row(group_.symmetric(rank), slot, received, b, s.row, 0)),
              reinterpret_cast<const uint4*>(wanted +
                                             (b * c.rows + s.begin) * c.heads * c.head_dim),
              heads_first ? units : c.heads * units, heads_first ? received * units : units,
              c.heads * units, units, static_cast<int>(units), different);
      }
    }
    group_.synchronize();
    for (std::int32_t device = 0; device < group_.devices(); ++device) {
      cudaSetDevice(device);
      unsigned long long count = 1;
      ASSERT_EQ(cudaSuccess, cudaMemcpy(&count, different_[static_cast<std::size_t>(device)]->get(),
                                        sizeof count, cudaMemcpyDeviceToHost));
      EXPECT_EQ(0u, count) << "16-byte units of device " << device;
    }
  }

 private:
  AttentionInputs inputs(std::int32_t rank) const {
    const UlyssesConfig& c = layout_.config;
    const layout::HeadShare own = layout::heads_of(c.heads, c.kv_heads, c.ranks, rank);
    const auto device = static_cast<std::size_t>(rank % group_.devices());
    const auto part = [&](std::uint16_t* data, std::int64_t rows, std::int64_t heads,
                          const layout::Share& share) {
      TensorView out = TensorView::contiguous(data + share.begin * c.head_dim, ScalarType::kBf16,
                                              c.batch, rows, heads, c.head_dim);
      out.shape[2] = share.count;
      return out;
    };
    AttentionInputs in;
    in.query = part(query_[device]->get(), c.rows, c.heads, own.query);
    in.key = part(key_[device]->get(), c.key_rows, c.kv_heads, own.key);
    in.value = part(value_[device]->get(), c.key_rows, c.kv_heads, own.key);
    return in;
  }

  /// All heads on one device, in the parts that ranks have (a part of a group of query heads reads
  /// other key heads than the whole would suggest).
  void compute_wanted(std::int32_t device) {
    const UlyssesConfig& c = layout_.config;
    for (std::int32_t rank = 0; rank < c.ranks; ++rank) {
      AttentionInputs in = inputs(rank);
      const layout::HeadShare own = layout::heads_of(c.heads, c.kv_heads, c.ranks, rank);
      const auto d = static_cast<std::size_t>(device);
      in.query.data = query_[d]->get() + own.query.begin * c.head_dim;
      in.key.data = key_[d]->get() + own.key.begin * c.head_dim;
      in.value.data = value_[d]->get() + own.key.begin * c.head_dim;
      TensorView out = in.query;
      out.data = wanted_[d]->get() + own.query.begin * c.head_dim;
      const Result<Attention> local = Attention::local(in, out);
      ASSERT_TRUE(local.ok()) << local.error().message();
      ASSERT_TRUE(local.value().launch(nullptr).ok());
    }
  }

  using Arrays = std::vector<std::unique_ptr<DeviceArray<std::uint16_t>>>;
  RankGroup& group_;
  UlyssesLayout layout_;
  Arrays query_, key_, value_, wanted_, local_;
  std::vector<Result<Attention>> launches_;
  std::vector<std::unique_ptr<DeviceArray<unsigned long long>>> different_;
};

class FusedAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    devices_ = gpus();
    if (devices_ < 1) GTEST_SKIP() << "needs a GPU of compute capability 9.0";
  }
  std::unique_ptr<RankGroup> group(std::int32_t ranks, std::int64_t mebibytes = 64) const {
    return std::make_unique<RankGroup>(ranks, std::min(devices_, ranks), mebibytes << 20);
  }
  std::int32_t devices_ = 0;
};

void expect_layer(RankGroup& group, const UlyssesConfig& config, int& epoch, int launches = 1) {
  Layer layer(group, config, 7);
  for (int i = 0; i < launches; ++i) {
    layer.poison(++epoch & 1);
    layer.run();
    group.synchronize();
    layer.expect_right(epoch & 1);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_F(FusedAttention, EvenShares) {
  for (const std::int32_t ranks : {1, 2, 4, 8}) {
    const auto ranks_group = group(ranks);
    int epoch = 0;
    for (const std::int64_t head_dim : {64, 128})
      expect_layer(*ranks_group,
                   config_of(ranks, 1, 1024, ranks, ranks, head_dim, shares(1024, ranks)), epoch,
                   3);
  }
}

TEST_F(FusedAttention, UnevenSharesAndHeads) {
  const auto ranks_group = group(4);
  int epoch = 0;
  expect_layer(*ranks_group, config_of(4, 2, 777, 6, 6, 128, shares(777, 4)), epoch, 2);
  expect_layer(*ranks_group, config_of(4, 1, 1001, 10, 5, 64, shares(1001, 4)), epoch, 2);
  expect_layer(*ranks_group, config_of(4, 1, 500, 8, 2, 128, shares(500, 4)), epoch, 2);
}

TEST_F(FusedAttention, HeadsBeforeRows) {
  const auto ranks_group = group(3);
  int epoch = 0;
  UlyssesConfig config = config_of(3, 2, 500, 3, 3, 128, shares(500, 3));
  config.output_order = layout::OutputOrder::kHeadsRows;
  expect_layer(*ranks_group, config, epoch, 2);
}

TEST_F(FusedAttention, TextOnAllRanksBeforeAndAfter) {
  const auto ranks_group = group(2);
  int epoch = 0;
  // 77 text rows for all, 1000 image rows in shares, 50 more text rows for all.
  const std::vector<RowSegment> table = {
      {0, 77, layout::kAllRanks, 0}, {77, 577, 0, 77}, {577, 1077, 1, 77}, {1077, 1127, -1, 577}};
  for (const std::int64_t head_dim : {64, 128})
    expect_layer(*ranks_group, config_of(2, 1, 1127, 4, 4, head_dim, table), epoch, 2);
}

// Few enough tiles that the exchanges of all ranks fit on one GPU at once.
TEST_F(FusedAttention, ThePushGivesTheSame) {
  const auto expect_pushed = [&](const UlyssesConfig& config) {
    const auto ranks_group = group(config.ranks);
    Layer layer(*ranks_group, config, 7);
    for (int epoch = 1; epoch <= 3; ++epoch) {
      layer.poison(epoch & 1);
      layer.run_with_push(epoch == 3);
      ranks_group->synchronize();
      layer.expect_right(epoch & 1);
    }
  };
  for (const std::int32_t ranks : {1, 2, 3, 4}) {
    expect_pushed(config_of(ranks, 1, 500, 2 * ranks + 1, 2 * ranks + 1, 128, shares(500, ranks)));
    expect_pushed(config_of(ranks, 2, 301, ranks, ranks, 64, shares(301, ranks)));
    UlyssesConfig heads_first = config_of(ranks, 1, 200, 2 * ranks, ranks, 128, shares(200, ranks));
    heads_first.output_order = layout::OutputOrder::kHeadsRows;
    expect_pushed(heads_first);
  }
  const std::vector<RowSegment> table = {
      {0, 77, layout::kAllRanks, 0}, {77, 177, 0, 77}, {177, 277, 1, 77}, {277, 300, -1, 177}};
  expect_pushed(config_of(2, 1, 300, 4, 4, 128, table));
}

TEST_F(FusedAttention, LargeLayerOverAllGpus) {
  if (devices_ < 2) GTEST_SKIP() << "needs a GPU: two of them";
  const auto ranks_group = group(devices_, 512);
  int epoch = 0;
  for (const auto order :
       {schedule::UlyssesOrderKind::kRemoteFirst, schedule::UlyssesOrderKind::kRowMajor}) {
    UlyssesConfig config =
        config_of(devices_, 1, 7145, 12 * devices_, 12 * devices_, 128, shares(7145, devices_));
    config.order = order;
    expect_layer(*ranks_group, config, epoch, 3);
  }
}

// More tiles than SMs: without a part for each, one rank's blocks would keep the others' out.
TEST_F(FusedAttention, FourAndEightRanksThatShareGpus) {
  for (const std::int32_t ranks : {4, 8}) {
    const auto ranks_group = group(ranks, 128);
    ranks_group->share_sms();
    int epoch = 0;
    for (const auto order :
         {schedule::UlyssesOrderKind::kRemoteFirst, schedule::UlyssesOrderKind::kRowMajor})
      for (const std::int64_t rows : {4096, 3999}) {
        UlyssesConfig config =
            config_of(ranks, 1, rows, 3 * ranks, 3 * ranks, 128, shares(rows, ranks));
        config.order = order;
        expect_layer(*ranks_group, config, epoch, 100);
      }
  }
}

// Every other rank ends within the limit, and says whose rows it waited for.
TEST_F(FusedAttention, ARankThatStopsIsNamedByEveryOther) {
  for (const std::int32_t ranks : {4, 8})
    for (const std::int32_t missing : {0, ranks - 2}) {
      const auto ranks_group = group(ranks);
      ranks_group->share_sms();
      ranks_group->set_limit(300'000'000);
      Layer layer(*ranks_group, config_of(ranks, 1, 1000, ranks, ranks, 128, shares(1000, ranks)),
                  7);
      layer.poison(1);
      layer.run();
      ranks_group->synchronize();
      layer.expect_right(1);
      layer.run(missing);
      ranks_group->synchronize();
      for (std::int32_t rank = 0; rank < ranks; ++rank) {
        if (rank == missing) continue;
        bool named = false;
        for (const sync::WaitRecord& r : ranks_group->records(rank))
          named = named || (r.end != sync::WaitEnd::kNone && r.rank == rank &&
                            r.site == sync::Site::kOutputPieces && r.subject == missing &&
                            r.waited_ns < 1'000'000'000);
        EXPECT_TRUE(named) << "rank " << rank << " of " << ranks << ", missing " << missing;
      }
    }
}

// A rank that is behind reads launch n while others are in n + 1; nobody may write n + 2 into that
// slot before. The slow rank poisons what it has read, so that an early writer's rows would be
// gone.
TEST_F(FusedAttention, NobodyOverwritesWhatASlowRankReads) {
  const auto ranks_group = group(2);
  Layer layer(*ranks_group, config_of(2, 1, 1000, 4, 4, 128, shares(1000, 2)), 7);
  for (const int slot : {0, 1}) layer.poison(slot);
  constexpr int kLaunches = 8;
  const std::int64_t bytes = layer.slot_bytes();
  ranks_group->use(1);
  const cudaStream_t slow = ranks_group->stream(1);
  DeviceArray<std::uint8_t> read(kLaunches * bytes);
  for (int launch = 1; launch <= kLaunches; ++launch) {
    layer.run();
    ranks_group->use(1);
    spin<<<1, 1, 0, slow>>>(300'000);
    CUDA_OK(cudaMemcpyAsync(read.get() + (launch - 1) * bytes, layer.slot(1, launch & 1),
                            static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, slow));
    CUDA_OK(
        cudaMemsetAsync(layer.slot(1, launch & 1), 0xff, static_cast<std::size_t>(bytes), slow));
  }
  ranks_group->synchronize();
  for (int launch = 1; launch <= kLaunches; ++launch) {
    ranks_group->use(1);
    CUDA_OK(cudaMemcpy(layer.slot(1, 0), read.get() + (launch - 1) * bytes,
                       static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice));
    layer.expect_right(0, 1);
  }
}

// Epochs advance with every replay, so a graph works whatever the slot it was captured in: it holds
// no address of one slot and no number of a launch.
TEST_F(FusedAttention, CapturedAndReplayed) {
  for (const std::int32_t launches : {1, 3}) {
    const auto ranks_group = group(2);
    Layer layer(*ranks_group, config_of(2, 1, 1000, 4, 2, 128, shares(1000, 2)), 7);
    std::vector<cudaGraphExec_t> graphs;
    for (std::int32_t rank = 0; rank < 2; ++rank) graphs.push_back(layer.captured(rank, launches));
    int epoch = 0;
    for (int replay = 0; replay < 6; ++replay) {
      epoch += launches;
      layer.poison(epoch & 1);
      for (std::int32_t rank = 0; rank < 2; ++rank) {
        ranks_group->use(rank);
        CUDA_OK(cudaGraphLaunch(graphs[static_cast<std::size_t>(rank)], ranks_group->stream(rank)));
      }
      ranks_group->synchronize();
      layer.expect_right(epoch & 1);
    }
    // Launches outside of the graph go on where it stopped.
    layer.poison(++epoch & 1);
    layer.run();
    ranks_group->synchronize();
    layer.expect_right(epoch & 1);
    for (const cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
  }
}

// XSTAGE_STRESS launches, 10 000 by default (2 s); each table of segments serves ten of them.
TEST_F(FusedAttention, RandomSegments) {
  const char* const wanted = std::getenv("XSTAGE_STRESS");
  const int launches = wanted != nullptr ? std::atoi(wanted) : 10'000;
  std::mt19937 random(20261129);
  const auto below = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
  };
  std::unique_ptr<RankGroup> ranks_group;
  int epoch = 0;
  constexpr int kOfATable = 10;
  for (int i = 0; i < launches; i += kOfATable) {
    if (i % 500 == 0) {
      ranks_group = group(1 + static_cast<std::int32_t>(below(8)));
      epoch = 0;
    }
    const std::int32_t ranks = ranks_group->ranks();
    const std::int64_t rows = 1 + below(640);  // at most 10 tiles a head, all resident at once
    const std::int64_t heads = ranks * (1 + below(ranks > 4 ? 1 : 2));
    UlyssesConfig config = config_of(ranks, 1, rows, heads, heads, below(2) == 0 ? 64 : 128,
                                     random_segments(rows, ranks, random));
    if (below(2) == 0) config.output_order = layout::OutputOrder::kHeadsRows;
    expect_layer(*ranks_group, config, epoch, kOfATable);
    if (HasFailure()) {
      ADD_FAILURE() << "launch " << i << ", " << ranks << " ranks, " << rows << " rows";
      return;
    }
  }
}

}  // namespace
}  // namespace xstage::ulysses::test
