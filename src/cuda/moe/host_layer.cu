#include "cuda/moe/host_layer.hpp"

#include <cuda_fp8.h>

#include <algorithm>
#include <optional>

#include "cuda/moe/layer.hpp"
#include "cuda/probe/check.cuh"

namespace xstage::moe {
namespace {

float from_e4m3(std::uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

/// Allocations, streams and events of one GPU, freed together.
class GpuThings {
 public:
  ~GpuThings() {
    for (const auto& [gpu, memory] : memory_) {
      static_cast<void>(cudaSetDevice(gpu));
      static_cast<void>(cudaFree(memory));
    }
  }

  /// A copy of `count` values on `gpu`; without `values`, as they are.
  template <class T>
  Result<T*> copy(int gpu, const T* values, std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    void* memory = nullptr;
    XSTAGE_CUDA_TRY(cudaSetDevice(gpu));
    XSTAGE_CUDA_TRY(cudaMalloc(&memory, std::max<std::size_t>(bytes, 16)));
    memory_.emplace_back(gpu, memory);
    if (values != nullptr && bytes > 0)
      XSTAGE_CUDA_TRY(cudaMemcpy(memory, values, bytes, cudaMemcpyHostToDevice));
    return static_cast<T*>(memory);
  }

 private:
  std::vector<std::pair<int, void*>> memory_;
};

class GpuHostLayer : public HostLayer {
 public:
  Result<bool> open(layout::MoeConfig config, const HostWeights& weights,
                    const std::vector<HostInput>& inputs, const Limits& limits) {
    int sms = 0;
    XSTAGE_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    config = with_tiles(config, sms);
    config.schedule = schedule::MoeSchedule::wave(1);
    if (const auto layout = check_layer(config); !layout) return layout.error();
    inputs_ = inputs;
    std::vector<RankWeights> of_rank;
    std::vector<int> gpus;
    for (int rank = 0; rank < config.ranks; ++rank) {
      const auto own = copy_weights(rank, config, weights);
      if (!own) return own.error();
      of_rank.push_back(*own);
      const auto input = copy_input(rank, config, inputs[static_cast<std::size_t>(rank)]);
      if (!input) return input.error();
      on_gpu_.push_back(*input);
      gpus.push_back(rank);
      streams_.emplace_back();
      events_.emplace_back();
      XSTAGE_CUDA_TRY(cudaStreamCreateWithFlags(&streams_.back(), cudaStreamNonBlocking));
      for (cudaEvent_t& event : events_.back().of) XSTAGE_CUDA_TRY(cudaEventCreate(&event));
    }
    auto layer =
        Layer::create(std::vector<layout::MoeConfig>(gpus.size(), config), gpus, of_rank, limits);
    if (!layer) return layer.error();
    layer_.emplace(std::move(layer).value());
    return true;
  }
  ~GpuHostLayer() override {
    layer_.reset();
    for (std::size_t rank = 0; rank < streams_.size(); ++rank) {
      static_cast<void>(cudaSetDevice(static_cast<int>(rank)));
      static_cast<void>(cudaStreamDestroy(streams_[rank]));
      for (cudaEvent_t event : events_[rank].of) static_cast<void>(cudaEventDestroy(event));
    }
  }

  const layout::MoeLayout& layout() const override { return layer_->layout(); }

  Result<HostOutput> launch(const schedule::MoeSchedule& schedule,
                            layout::MoeDispatch dispatch) override {
    if (auto done = layer_->set_schedule(schedule, dispatch); !done) return done.error();
    if (auto done = layer_->poison(); !done) return done.error();
    const std::int64_t hidden = layout().config.hidden;
    for (std::size_t r = 0; r < streams_.size(); ++r) {
      XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
      XSTAGE_CUDA_TRY(cudaMemset(on_gpu_[r].out, 0xff, bytes(r, hidden)));
      XSTAGE_CUDA_TRY(cudaDeviceSynchronize());
    }
    for (std::size_t r = 0; r < streams_.size(); ++r) {
      XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
      XSTAGE_CUDA_TRY(cudaEventRecord(events_[r].of[0], streams_[r]));
    }
    if (auto done = layer_->launch(on_gpu_, streams_); !done) return done.error();
    for (std::size_t r = 0; r < streams_.size(); ++r) {
      XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
      XSTAGE_CUDA_TRY(cudaEventRecord(events_[r].of[1], streams_[r]));
    }
    if (auto done = layer_->finish(streams_); !done) return done.error();
    HostOutput out;
    for (std::size_t r = 0; r < streams_.size(); ++r) {
      float ms = 0;
      XSTAGE_CUDA_TRY(cudaSetDevice(static_cast<int>(r)));
      XSTAGE_CUDA_TRY(cudaEventSynchronize(events_[r].of[1]));
      XSTAGE_CUDA_TRY(cudaEventElapsedTime(&ms, events_[r].of[0], events_[r].of[1]));
      out.microseconds = std::max(out.microseconds, 1000.0 * static_cast<double>(ms));
      out.outputs.emplace_back(static_cast<std::size_t>(inputs_[r].tokens * hidden));
      XSTAGE_CUDA_TRY(cudaMemcpy(out.outputs.back().data(), on_gpu_[r].out, bytes(r, hidden),
                                 cudaMemcpyDeviceToHost));
    }
    return Result<HostOutput>(std::move(out));
  }

  Result<std::vector<std::vector<float>>> intermediate() override {
    const layout::MoeLayout& at = layout();
    const layout::MoeConfig& c = at.config;
    std::vector<std::vector<float>> out;
    for (const HostInput& input : inputs_)
      out.emplace_back(static_cast<std::size_t>(input.tokens * c.topk * c.intermediate), 0.0f);
    for (int rank = 0; rank < c.ranks; ++rank) {
      // An expert's rows lie behind each other; a row's filled places come first.
      std::vector<std::int64_t> tokens(static_cast<std::size_t>(at.experts_local), 0);
      for (const HostInput& input : inputs_)
        for (std::int64_t pair = 0; pair < input.tokens * c.topk; ++pair)
          if (input.experts[pair] >= 0 && input.experts[pair] / at.experts_local == rank)
            ++tokens[static_cast<std::size_t>(input.experts[pair] % at.experts_local)];
      std::int64_t rows = 0;
      for (const std::int64_t count : tokens) rows += (count + c.block_m - 1) / c.block_m;
      if (rows == 0) continue;
      const auto places = static_cast<std::size_t>(rows * c.block_m);
      std::vector<layout::RowOrigin> origins(places);
      std::vector<std::uint8_t> codes(places * static_cast<std::size_t>(c.intermediate));
      std::vector<float> scales(places * static_cast<std::size_t>(at.intermediate_groups));
      void* const base = layer_->workspace(rank);
      XSTAGE_CUDA_TRY(cudaSetDevice(rank));
      XSTAGE_CUDA_TRY(cudaMemcpy(origins.data(), at.origin(base, 0),
                                 places * sizeof(layout::RowOrigin), cudaMemcpyDeviceToHost));
      XSTAGE_CUDA_TRY(cudaMemcpy(codes.data(), at.intermediate_token(base, 0), codes.size(),
                                 cudaMemcpyDeviceToHost));
      XSTAGE_CUDA_TRY(cudaMemcpy(scales.data(), at.intermediate_scales_of(base, 0, 0),
                                 scales.size() * sizeof(float), cudaMemcpyDeviceToHost));
      std::int64_t row = 0;
      for (const std::int64_t count : tokens) {
        for (std::int64_t place = row * c.block_m; place < row * c.block_m + count; ++place) {
          const layout::RowOrigin& origin = origins[static_cast<std::size_t>(place)];
          if (origin.source < 0 || origin.source >= c.ranks ||
              origin.pair >= inputs_[static_cast<std::size_t>(origin.source)].tokens * c.topk)
            return Error{ErrorKind::kCheckFailed, "a row of the pool has no origin", {}, {}, {}};
          float* const to = out[static_cast<std::size_t>(origin.source)].data() +
                            std::int64_t{origin.pair} * c.intermediate;
          for (std::int64_t i = 0; i < c.intermediate; ++i) {
            const std::int64_t group = i / at.intermediate_group;
            to[i] = from_e4m3(codes[static_cast<std::size_t>(place * c.intermediate + i)]) *
                    scales[static_cast<std::size_t>(
                        (place / c.block_m * at.intermediate_groups + group) * c.block_m +
                        place % c.block_m)];
          }
        }
        row += (count + c.block_m - 1) / c.block_m;
      }
    }
    return Result<std::vector<std::vector<float>>>(std::move(out));
  }

 private:
  struct Events {
    cudaEvent_t of[2];
  };

  std::size_t bytes(std::size_t rank, std::int64_t hidden) const {
    return static_cast<std::size_t>(inputs_[rank].tokens * hidden) * 2;
  }

  Result<RankWeights> copy_weights(int rank, const layout::MoeConfig& c, const HostWeights& all) {
    const std::int64_t local = c.experts_local(), first = rank * local;
    const std::int64_t w1 = 2 * c.intermediate * c.hidden, w2 = c.hidden * c.intermediate;
    constexpr std::int64_t kBlock = kScaleGroup * kScaleGroup;
    RankWeights out;
    if (auto p = things_.copy(rank, all.w1 + first * w1, local * w1); p)
      out.w1 = *p;
    else
      return p.error();
    if (auto p = things_.copy(rank, all.w2 + first * w2, local * w2); p)
      out.w2 = *p;
    else
      return p.error();
    if (auto p = things_.copy(rank, all.w1_scales + first * (w1 / kBlock), local * (w1 / kBlock));
        p)
      out.w1_scales = *p;
    else
      return p.error();
    if (auto p = things_.copy(rank, all.w2_scales + first * (w2 / kBlock), local * (w2 / kBlock));
        p)
      out.w2_scales = *p;
    else
      return p.error();
    return out;
  }

  Result<RankInput> copy_input(int rank, const layout::MoeConfig& c, const HostInput& input) {
    RankInput out;
    out.tokens = input.tokens;
    if (auto p = things_.copy(rank, input.x, input.tokens * c.hidden); p)
      out.x = *p;
    else
      return p.error();
    if (auto p = things_.copy(rank, input.experts, input.tokens * c.topk); p)
      out.experts = *p;
    else
      return p.error();
    if (auto p = things_.copy(rank, input.weights, input.tokens * c.topk); p)
      out.weights = *p;
    else
      return p.error();
    if (auto p = things_.copy<std::uint16_t>(rank, nullptr, input.tokens * c.hidden); p)
      out.out = *p;
    else
      return p.error();
    return out;
  }

  GpuThings things_;
  std::vector<HostInput> inputs_;
  std::vector<RankInput> on_gpu_;
  std::vector<cudaStream_t> streams_;
  std::vector<Events> events_;
  std::optional<Layer> layer_;
};

}  // namespace

Result<std::unique_ptr<HostLayer>> open_host_layer(layout::MoeConfig config,
                                                   const HostWeights& weights,
                                                   const std::vector<HostInput>& inputs,
                                                   std::uint64_t first_limit_ns,
                                                   std::uint64_t limit_ns) {
  if (inputs.size() != static_cast<std::size_t>(config.ranks))
    return bad_input("one is needed for each rank", "inputs", std::to_string(inputs.size()),
                     std::to_string(config.ranks));
  auto layer = std::make_unique<GpuHostLayer>();
  const Limits limits{std::chrono::nanoseconds(first_limit_ns), std::chrono::nanoseconds(limit_ns)};
  if (auto done = layer->open(config, weights, inputs, limits); !done) return done.error();
  return Result<std::unique_ptr<HostLayer>>(std::move(layer));
}

}  // namespace xstage::moe
