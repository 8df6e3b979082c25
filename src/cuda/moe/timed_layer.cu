#include "cuda/moe/timed_layer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>

#include "cuda/gate.cuh"
#include "cuda/moe/block.cuh"
#include "cuda/moe/cublas_gemm.hpp"
#include "cuda/moe/fill.cuh"
#include "cuda/moe/gpu_memory.hpp"
#include "cuda/moe/grouped_gemm.hpp"
#include "cuda/moe/layer.hpp"

namespace xstage::moe {
namespace {

constexpr int kMostLaunches = 64;
/// Twice the L2 of the largest Hopper.
constexpr std::int64_t kFlushBytes = 120 << 20;

std::string gigabytes(std::int64_t bytes) {
  return std::to_string(bytes / 1'000'000'000) + "." + std::to_string(bytes / 100'000'000 % 10) +
         " GB";
}

class GpuTimedLayer : public TimedLayer {
 public:
  ~GpuTimedLayer() override {
    if (!hung_) {
      cudaFreeHost(gate_);
      return;
    }
    if (layer_) new Layer(std::move(*layer_));
    memory_.abandon();
  }

  Result<bool> open(layout::MoeConfig config, std::uint64_t seed) {
    int sms = 0;
    XSTAGE_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    config = with_tiles(config, sms);
    config.schedule = schedule::MoeSchedule::wave(1);
    if (const auto layout = check_layer(config); !layout) return layout.error();
    XSTAGE_TRY(check_memory(config));
    ranks_.resize(static_cast<std::size_t>(config.ranks));
    XSTAGE_CUDA_TRY(cudaHostAlloc(&gate_, sizeof *gate_, cudaHostAllocPortable));
    std::vector<int> gpus;
    std::vector<RankWeights> weights;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      gpus.push_back(static_cast<int>(r));
      XSTAGE_TRY(make_rank(gpus.back(), config, seed + 10 * r, ranks_[r]));
      weights.push_back(ranks_[r].weights);
      inputs_.push_back({0, ranks_[r].x, ranks_[r].experts, ranks_[r].token_weights, nullptr,
                         ranks_[r].out, nullptr});
      streams_.push_back(ranks_[r].stream);
    }
    // A launch takes milliseconds; what waits for seconds hangs.
    const Limits limits{std::chrono::seconds(5), std::chrono::seconds(2)};
    auto layer =
        Layer::create(std::vector<layout::MoeConfig>(ranks_.size(), config), gpus, weights, limits);
    if (!layer) return layer.error();
    layer_.emplace(std::move(layer).value());
    return true;
  }

  const layout::MoeLayout& layout() const override { return layer_->layout(); }

  Result<bool> set_routing(const std::vector<TimedRouting>& of_rank) override {
    const layout::MoeConfig& c = layout().config;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const TimedRouting& routing = of_rank[r];
      inputs_[r].tokens = routing.tokens;
      XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
      const auto bytes = static_cast<std::size_t>(routing.tokens * c.topk * 4);
      XSTAGE_CUDA_TRY(
          cudaMemcpy(ranks_[r].experts, routing.experts, bytes, cudaMemcpyHostToDevice));
      XSTAGE_CUDA_TRY(
          cudaMemcpy(ranks_[r].token_weights, routing.weights, bytes, cudaMemcpyHostToDevice));
      ranks_[r].expert_tokens.assign(static_cast<std::size_t>(layout().experts_local), 0);
    }
    for (const TimedRouting& routing : of_rank)
      for (std::int64_t pair = 0; pair < routing.tokens * c.topk; ++pair)
        if (const std::int32_t e = routing.experts[pair]; e >= 0)
          ++ranks_[static_cast<std::size_t>(e / layout().experts_local)]
                .expert_tokens[static_cast<std::size_t>(e % layout().experts_local)];
    return true;
  }

  Result<std::vector<double>> time(const TimedLaunches& what) override {
    XSTAGE_TRY(layer_->set_schedule(what.schedule, what.dispatch));
    auto times = take_times(what.warm_up, what.launches, what.cold,
                            [&] { return layer_->launch(inputs_, streams_); });
    if (!times) return times;
    XSTAGE_TRY(layer_->finish(streams_));
    return times;
  }

  Result<LaunchPhases> phases(const TimedLaunches& what) override {
    XSTAGE_TRY(layer_->set_schedule(what.schedule, what.dispatch));
    auto inputs = inputs_;
    for (std::size_t r = 0; r < ranks_.size(); ++r) inputs[r].marks = ranks_[r].marks;
    const int blocks = layout().config.workers;
    std::vector<std::uint64_t> marks(static_cast<std::size_t>(blocks * kMarks));
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
      XSTAGE_CUDA_TRY(cudaMemset(ranks_[r].marks, 0, marks.size() * 8));
      XSTAGE_CUDA_TRY(cudaDeviceSynchronize());
    }
    for (int i = 0; i < what.launches; ++i) XSTAGE_TRY(layer_->launch(inputs, streams_));
    XSTAGE_TRY(wait_idle());
    XSTAGE_TRY(layer_->finish(streams_));
    LaunchPhases out;
    for (const char* name : kMarkNames) out.marks.emplace_back(name, 0.0);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
      XSTAGE_CUDA_TRY(
          cudaMemcpy(marks.data(), ranks_[r].marks, marks.size() * 8, cudaMemcpyDeviceToHost));
      std::uint64_t begin = ~std::uint64_t{0};
      for (int b = 0; b < blocks; ++b)
        begin = std::min(begin, marks[static_cast<std::size_t>(b * kMarks)]);
      for (int m = 0; m < kMarks; ++m) {
        double& us = out.marks[static_cast<std::size_t>(m)].second;
        for (int b = 0; b < blocks; ++b) {
          const std::uint64_t at = marks[static_cast<std::size_t>(b * kMarks + m)];
          if (m < static_cast<int>(kFirstDuration))
            us = std::max(us, static_cast<double>(at - begin) * 1e-3);
          else
            us += static_cast<double>(at) * (m == static_cast<int>(Mark::kStoreTiles) ? 1 : 1e-3) /
                  blocks / static_cast<double>(ranks_.size());
        }
      }
    }
    const auto of = [&](Mark mark) { return out.marks[static_cast<std::size_t>(mark)].second; };
    out.start = of(kTilesBegin);
    out.combined = of(Mark::kCombined);
    out.end = of(Mark::kEnd);
    return out;
  }

  Result<std::array<std::vector<double>, 2>> time_products(int launches) override {
    const layout::MoeConfig& c = layout().config;
    const bool bf16 = c.format == WeightFormat::kBf16;
    std::vector<GroupedGemm> gemms;
    XSTAGE_TRY(ensure_products());
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      GroupedGemm g;
      XSTAGE_TRY(put_rows(r, g));
      gemms.push_back(g);
    }
    std::array<std::vector<double>, 2> out;
    for (int linear = 0; linear < 2; ++linear) {
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        GroupedGemm& g = gemms[r];
        void* const base = layer_->workspace(static_cast<int>(r));
        const layout::MoeLayout& at = layout();
        g.experts = at.experts_local;
        g.n = linear == 0 ? 2 * c.intermediate : c.hidden;
        g.k = linear == 0 ? c.hidden : c.intermediate;
        g.a = linear == 0 ? at.pool_token(base, 0) : at.intermediate_token(base, 0);
        if (!bf16)
          g.a_scales =
              linear == 0 ? at.pool_scales_of(base, 0, 0) : at.intermediate_scales_of(base, 0, 0);
        g.b = linear == 0 ? ranks_[r].weights.w1 : ranks_[r].weights.w2;
        g.b_scales = linear == 0 ? ranks_[r].weights.w1_scales : ranks_[r].weights.w2_scales;
        g.out = ranks_[r].products;
        g.claimed = ranks_[r].claimed;
      }
      XSTAGE_TRY(put(take_times(2, launches, false,
                                [&]() -> Result<bool> {
                                  for (std::size_t r = 0; r < ranks_.size(); ++r) {
                                    XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
                                    const auto launch =
                                        bf16 ? moe::launch<PlainBf16> : moe::launch<W8a8>;
                                    XSTAGE_TRY(launch(gemms[r], c.workers, streams_[r]));
                                  }
                                  return true;
                                }),
                     out[static_cast<std::size_t>(linear)]));
    }
    return out;
  }

  Result<std::optional<std::array<std::vector<double>, 2>>> time_cublas(int launches) override {
    using Times = std::optional<std::array<std::vector<double>, 2>>;
    const layout::MoeConfig& c = layout().config;
    auto library = open_cublas();
    if (!library) return Times();
    XSTAGE_TRY(ensure_products());
    std::int64_t pairs = 0;
    for (const Rank& rank : ranks_) {
      std::int64_t own = 0;
      for (const std::int64_t tokens : rank.expert_tokens) own += tokens;
      pairs = std::max(pairs, own);
    }
    if (pairs == 0) return Times();  // a matrix without rows
    pairs = (pairs + 15) / 16 * 16;
    const layout::MoeLayout& at = layout();
    std::array<std::vector<double>, 2> out;
    for (std::size_t linear = 0; linear < 2; ++linear) {
      std::vector<std::function<Result<bool>()>> launch;
      std::vector<std::unique_ptr<CublasGemm>> gemms;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        void* const base = layer_->workspace(static_cast<int>(r));
        XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
        DenseGemm g;
        g.bf16 = c.format == WeightFormat::kBf16;
        g.m = pairs;
        g.n = linear == 0 ? 2 * c.intermediate : c.hidden;
        g.k = linear == 0 ? c.hidden : c.intermediate;
        g.a = linear == 0 ? at.pool_token(base, 0) : at.intermediate_token(base, 0);
        g.b = linear == 0 ? ranks_[r].weights.w1 : ranks_[r].weights.w2;
        g.out = ranks_[r].products;
        g.workspace = ranks_[r].flush;
        g.workspace_bytes = kFlushBytes;
        auto gemm = library->prepare(g);
        if (!gemm) return gemm.error();
        gemms.push_back(std::move(*gemm));
      }
      XSTAGE_TRY(put(take_times(2, launches, false,
                                [&]() -> Result<bool> {
                                  for (std::size_t r = 0; r < ranks_.size(); ++r) {
                                    XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
                                    XSTAGE_TRY(gemms[r]->launch(streams_[r]));
                                  }
                                  return true;
                                }),
                     out[linear]));
    }
    return Times(std::move(out));
  }

 private:
  struct Rank {
    RankWeights weights;
    std::uint16_t *x = nullptr, *out = nullptr;
    std::int32_t* experts = nullptr;
    float* token_weights = nullptr;
    std::uint64_t *marks = nullptr, *claimed = nullptr;
    std::uint8_t* flush = nullptr;
    std::uint16_t* products = nullptr;
    std::int32_t *row_expert = nullptr, *row_tokens = nullptr;
    cudaStream_t stream = nullptr;
    std::vector<cudaEvent_t> begin, end;
    std::vector<std::int64_t> expert_tokens;
  };

  static Result<bool> check_memory(const layout::MoeConfig& config) {
    const auto needed = timed_bytes(config);
    if (!needed) return needed.error();
    for (int gpu = 0; gpu < config.ranks; ++gpu) {
      std::size_t free = 0, total = 0;
      XSTAGE_CUDA_TRY(cudaSetDevice(gpu));
      XSTAGE_CUDA_TRY(cudaMemGetInfo(&free, &total));
      if (*needed <= static_cast<std::int64_t>(free)) continue;
      return bad_input("the memory of a GPU cannot hold a rank of the layer", "memory",
                       gigabytes(*needed) + " needed",
                       "at most " + gigabytes(static_cast<std::int64_t>(free)) + ", free on GPU " +
                           std::to_string(gpu) + ": fewer tokens or experts, or more ranks");
    }
    return true;
  }

  Result<bool> make_rank(int gpu, const layout::MoeConfig& c, std::uint64_t seed, Rank& rank) {
    const std::int64_t local = c.experts_local(), h = c.hidden, i = c.intermediate;
    const bool bf16 = c.format == WeightFormat::kBf16;
    const auto values = [&](std::int64_t count, std::uint64_t stream, std::int64_t depth,
                            const void*& to) -> Result<bool> {
      const auto p = memory_.allocate<std::uint8_t>(gpu, count * activation_bytes(c.format));
      if (!p) return p.error();
      if (bf16)
        fill_bf16<<<2048, 256>>>(reinterpret_cast<std::uint16_t*>(*p), count, seed + stream,
                                 2.0f / std::sqrt(static_cast<float>(depth)));
      else
        fill_codes<<<2048, 256>>>(*p, count, seed + stream, 60.0f);
      to = *p;
      return true;
    };
    const auto scales = [&](std::int64_t count, std::uint64_t stream, std::int64_t depth,
                            const float*& to) -> Result<bool> {
      if (bf16) return true;
      const auto p = memory_.allocate<float>(gpu, count);
      if (!p) return p.error();
      const float about = 2.0f / std::sqrt(static_cast<float>(depth)) / 60;
      fill_scales<<<512, 256>>>(*p, count, seed + stream, 0.5f * about, 1.5f * about);
      to = *p;
      return true;
    };
    XSTAGE_TRY(values(local * 2 * i * h, 0, h, rank.weights.w1));
    XSTAGE_TRY(values(local * h * i, 1, i, rank.weights.w2));
    XSTAGE_TRY(scales(local * (2 * i / 128) * (h / 128), 2, h, rank.weights.w1_scales));
    XSTAGE_TRY(scales(local * (h / 128) * (i / 128), 3, i, rank.weights.w2_scales));
    XSTAGE_TRY(put(memory_.allocate<std::uint16_t>(gpu, c.capacity * h), rank.x));
    fill_bf16<<<512, 256>>>(rank.x, c.capacity * h, seed + 4);
    XSTAGE_TRY(put(memory_.allocate<std::uint16_t>(gpu, c.capacity * h), rank.out));
    XSTAGE_TRY(put(memory_.allocate<std::int32_t>(gpu, c.capacity * c.topk), rank.experts));
    XSTAGE_TRY(put(memory_.allocate<float>(gpu, c.capacity * c.topk), rank.token_weights));
    XSTAGE_TRY(put(memory_.allocate<std::uint64_t>(gpu, c.workers * kMarks), rank.marks));
    XSTAGE_TRY(put(memory_.allocate<std::uint64_t>(gpu, 1), rank.claimed));
    XSTAGE_TRY(put(memory_.allocate<std::uint8_t>(gpu, kFlushBytes), rank.flush));
    XSTAGE_CUDA_TRY(cuda::load_gate());
    XSTAGE_TRY(put(memory_.stream(gpu), rank.stream));
    rank.begin.resize(kMostLaunches);
    rank.end.resize(kMostLaunches);
    for (auto* events : {&rank.begin, &rank.end})
      for (cudaEvent_t& event : *events) XSTAGE_TRY(put(memory_.event(gpu), event));
    XSTAGE_CUDA_TRY(cudaDeviceSynchronize());
    return true;
  }

  /// Room for the results of the grouped GEMMs, once.
  Result<bool> ensure_products() {
    const layout::MoeConfig& c = layout().config;
    const std::int64_t rows = layout().max_rows;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].products != nullptr) continue;
      const int gpu = static_cast<int>(r);
      XSTAGE_TRY(put(memory_.allocate<std::uint16_t>(
                         gpu, rows * kBlockM * std::max(2 * c.intermediate, c.hidden)),
                     ranks_[r].products));
      XSTAGE_TRY(put(memory_.allocate<std::int32_t>(gpu, rows), ranks_[r].row_expert));
      XSTAGE_TRY(put(memory_.allocate<std::int32_t>(gpu, rows), ranks_[r].row_tokens));
    }
    return true;
  }

  /// The rows that the routing makes on a rank.
  Result<bool> put_rows(std::size_t r, GroupedGemm& gemm) {
    std::vector<std::int32_t> experts, tokens;
    for (std::size_t e = 0; e < ranks_[r].expert_tokens.size(); ++e)
      for (std::int64_t at = 0; at < ranks_[r].expert_tokens[e]; at += kBlockM) {
        experts.push_back(static_cast<std::int32_t>(e));
        tokens.push_back(static_cast<std::int32_t>(
            std::min<std::int64_t>(kBlockM, ranks_[r].expert_tokens[e] - at)));
      }
    XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
    XSTAGE_CUDA_TRY(cudaMemcpy(ranks_[r].row_expert, experts.data(), experts.size() * 4,
                               cudaMemcpyHostToDevice));
    XSTAGE_CUDA_TRY(
        cudaMemcpy(ranks_[r].row_tokens, tokens.data(), tokens.size() * 4, cudaMemcpyHostToDevice));
    gemm.rows = static_cast<std::int64_t>(experts.size());
    gemm.row_expert = ranks_[r].row_expert;
    gemm.row_tokens = ranks_[r].row_tokens;
    return true;
  }

  /// Until all streams are idle, but not for ever: waits inside a kernel have their limits, unless
  /// the kernel is wrong.
  Result<bool> wait_idle() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(15);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
      for (cudaError_t code; (code = cudaStreamQuery(streams_[r])) != cudaSuccess;) {
        if (code != cudaErrorNotReady) XSTAGE_CUDA_TRY(code);
        if (std::chrono::steady_clock::now() > end) {
          hung_ = true;
          return Error{ErrorKind::kTimeout, "a kernel does not end", "gpu", std::to_string(r),
                       "15 s for all launches of one measurement"};
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
    return true;
  }

  /// One thread enqueues for all ranks: behind the gate none of them begins before the last one's
  /// launch is there, which at eight ranks takes as long as a short layer. Behind the warm-up,
  /// whose kernels may have to be loaded, which waits for running ones.
  Result<bool> close_streams() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
      cuda::gate<<<1, 1, 0, streams_[r]>>>(gate_);
      XSTAGE_CUDA_TRY(cudaGetLastError());
    }
    return true;
  }

  /// Times of what `launch` starts on every rank's stream, the slowest rank's; all ranks have
  /// queued their launches before the first one is waited for.
  Result<std::vector<double>> take_times(int warm_up, int launches, bool cold,
                                         const std::function<Result<bool>()>& launch) {
    launches = std::min(launches, kMostLaunches);
    const Gate closed(gate_);
    for (int i = -warm_up; i < launches; ++i) {
      if (i == 0) XSTAGE_TRY(close_streams());
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
        if (cold) XSTAGE_CUDA_TRY(cudaMemsetAsync(ranks_[r].flush, 1, kFlushBytes, streams_[r]));
        if (i >= 0)
          XSTAGE_CUDA_TRY(
              cudaEventRecord(ranks_[r].begin[static_cast<std::size_t>(i)], streams_[r]));
      }
      XSTAGE_TRY(launch());
      for (std::size_t r = 0; i >= 0 && r < ranks_.size(); ++r) {
        XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
        XSTAGE_CUDA_TRY(cudaEventRecord(ranks_[r].end[static_cast<std::size_t>(i)], streams_[r]));
      }
    }
    closed.open();
    XSTAGE_TRY(wait_idle());
    std::vector<double> out(static_cast<std::size_t>(launches), 0);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
      for (std::size_t i = 0; i < out.size(); ++i) {
        float ms = 0;
        XSTAGE_CUDA_TRY(cudaEventElapsedTime(&ms, ranks_[r].begin[i], ranks_[r].end[i]));
        out[i] = std::max(out[i], 1000.0 * static_cast<double>(ms));
      }
    }
    return out;
  }

  /// Closed while it lives, unless it is opened before.
  class Gate {
   public:
    explicit Gate(volatile std::uint32_t* word) : word_(word) { *word_ = 0; }
    ~Gate() { open(); }
    void open() const { *word_ = 1; }

   private:
    volatile std::uint32_t* word_;
  };

  bool hung_ = false;
  std::uint32_t* gate_ = nullptr;
  GpuMemory memory_;
  std::vector<Rank> ranks_;
  std::vector<RankInput> inputs_;
  std::vector<cudaStream_t> streams_;
  std::optional<Layer> layer_;  ///< behind the memory that it uses
};

}  // namespace

Result<std::int64_t> timed_bytes(const layout::MoeConfig& config) {
  const auto layout = check_layer(config);
  if (!layout) return layout.error();
  const auto buffers = buffer_bytes(config);
  if (!buffers) return buffers.error();
  const std::int64_t h = config.hidden, i = config.intermediate;
  const std::int64_t values = 3 * config.experts_local() * h * i;
  const bool bf16 = config.format == WeightFormat::kBf16;
  const std::int64_t weights =
      values * activation_bytes(config.format) + (bf16 ? 0 : values / (128 * 128) * 4);
  const std::int64_t tokens = config.capacity * (4 * h + 8 * config.topk);
  const std::int64_t products = layout->max_rows * (kBlockM * std::max(2 * i, h) * 2 + 8);
  return buffers->symmetric + buffers->workspace + weights + tokens + products + kFlushBytes +
         config.workers * std::int64_t{kMarks} * 8;
}

Result<std::unique_ptr<TimedLayer>> open_timed_layer(layout::MoeConfig config, std::uint64_t seed) {
  auto layer = std::make_unique<GpuTimedLayer>();
  if (auto done = layer->open(config, seed); !done) return done.error();
  return Result<std::unique_ptr<TimedLayer>>(std::move(layer));
}

}  // namespace xstage::moe
