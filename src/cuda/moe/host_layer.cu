#include "cuda/moe/host_layer.hpp"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "cuda/moe/gpu_memory.hpp"
#include "cuda/moe/layer.hpp"

namespace xstage::moe {
namespace {

float from_e4m3(std::uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

float from_bf16(const std::uint8_t* value) {
  std::uint16_t bits;
  std::memcpy(&bits, value, sizeof bits);
  return __bfloat162float(__ushort_as_bfloat16(bits));
}

class GpuHostLayer : public HostLayer {
 public:
  Result<bool> open(layout::MoeConfig config, const HostWeights& weights,
                    const std::vector<HostInput>& inputs, const HostOptions& options) {
    share_ = options.ranks_per_gpu;
    int sms = 0;
    XSTAGE_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    config = with_tiles(config, sms / share_);
    config.schedule = schedule::MoeSchedule::wave(1);
    if (const auto layout = check_layer(config); !layout) return layout.error();
    inputs_ = inputs;
    const auto ranks = static_cast<std::size_t>(config.ranks);
    std::vector<RankWeights> of_rank(ranks);
    std::vector<int> gpus;
    on_gpu_.resize(ranks);
    streams_.resize(ranks);
    events_.resize(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      const int gpu = gpu_of(r);
      gpus.push_back(gpu);
      XSTAGE_TRY(copy_weights(static_cast<int>(r), config, weights, of_rank[r]));
      XSTAGE_TRY(copy_input(gpu, config, inputs[r], on_gpu_[r]));
      XSTAGE_TRY(put(memory_.stream(gpu), streams_[r]));
      for (cudaEvent_t& event : events_[r].of) XSTAGE_TRY(put(memory_.event(gpu), event));
    }
    const Limits limits{std::chrono::nanoseconds(options.first_limit_ns),
                        std::chrono::nanoseconds(options.limit_ns)};
    auto layer =
        Layer::create(std::vector<layout::MoeConfig>(ranks, config), gpus, of_rank, limits);
    if (!layer) return layer.error();
    layer_.emplace(std::move(layer).value());
    return true;
  }

  const layout::MoeLayout& layout() const override { return layer_->layout(); }

  Result<HostOutput> launch(const schedule::MoeSchedule& schedule,
                            layout::MoeDispatch dispatch) override {
    if (auto done = layer_->set_schedule(schedule, dispatch); !done) return done.error();
    if (auto done = layer_->poison(); !done) return done.error();
    const std::int64_t hidden = layout().config.hidden;
    for (std::size_t r = 0; r < streams_.size(); ++r) {
      XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(r)));
      XSTAGE_CUDA_TRY(cudaMemset(on_gpu_[r].out, 0xff, bytes(r, hidden)));
      XSTAGE_CUDA_TRY(cudaDeviceSynchronize());
    }
    for (std::size_t r = 0; r < streams_.size(); ++r) {
      XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(r)));
      XSTAGE_CUDA_TRY(cudaEventRecord(events_[r].of[0], streams_[r]));
    }
    if (auto done = layer_->launch(on_gpu_, streams_); !done) return done.error();
    for (std::size_t r = 0; r < streams_.size(); ++r) {
      XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(r)));
      XSTAGE_CUDA_TRY(cudaEventRecord(events_[r].of[1], streams_[r]));
    }
    if (auto done = layer_->finish(streams_); !done) return done.error();
    HostOutput out;
    for (std::size_t r = 0; r < streams_.size(); ++r) {
      float ms = 0;
      XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(r)));
      XSTAGE_CUDA_TRY(cudaEventSynchronize(events_[r].of[1]));
      XSTAGE_CUDA_TRY(cudaEventElapsedTime(&ms, events_[r].of[0], events_[r].of[1]));
      out.microseconds = std::max(out.microseconds, 1000.0 * static_cast<double>(ms));
      out.outputs.emplace_back(static_cast<std::size_t>(inputs_[r].tokens * hidden));
      XSTAGE_CUDA_TRY(cudaMemcpy(out.outputs.back().data(), on_gpu_[r].out, bytes(r, hidden),
                                 cudaMemcpyDeviceToHost));
    }
    return Result<HostOutput>(std::move(out));
  }

  Result<HostMiddle> middle() override {
    const layout::MoeLayout& at = layout();
    const layout::MoeConfig& c = at.config;
    HostMiddle out;
    for (const HostInput& input : inputs_) {
      const auto pairs = static_cast<std::size_t>(input.tokens * c.topk);
      out.quantised.emplace_back(pairs * static_cast<std::size_t>(c.intermediate), 0.0f);
      out.largest.emplace_back(pairs * static_cast<std::size_t>(at.intermediate_groups), 0.0f);
    }
    for (int rank = 0; rank < c.ranks; ++rank) XSTAGE_TRY(read_middle(rank, out));
    return Result<HostMiddle>(std::move(out));
  }

 private:
  int gpu_of(std::size_t rank) const { return static_cast<int>(rank) / share_; }

  struct Events {
    cudaEvent_t of[2];
  };

  std::size_t bytes(std::size_t rank, std::int64_t hidden) const {
    return static_cast<std::size_t>(inputs_[rank].tokens * hidden) * 2;
  }

  /// Tokens of each of the rank's experts. An expert's rows lie behind each other; a row's filled
  /// places come first.
  std::vector<std::int64_t> expert_tokens(int rank) const {
    const layout::MoeLayout& at = layout();
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(at.experts_local), 0);
    for (const HostInput& input : inputs_)
      for (std::int64_t pair = 0; pair < input.tokens * at.config.topk; ++pair)
        if (input.experts[pair] >= 0 && input.experts[pair] / at.experts_local == rank)
          ++tokens[static_cast<std::size_t>(input.experts[pair] % at.experts_local)];
    return tokens;
  }

  Result<bool> read_middle(int rank, HostMiddle& out) const {
    const layout::MoeLayout& at = layout();
    const layout::MoeConfig& c = at.config;
    const auto tokens = expert_tokens(rank);
    std::int64_t rows = 0;
    for (const std::int64_t count : tokens) rows += (count + c.block_m - 1) / c.block_m;
    if (rows == 0) return true;
    const auto places = static_cast<std::size_t>(rows * c.block_m);
    std::vector<layout::RowOrigin> origins(places);
    std::vector<std::uint8_t> values(places *
                                     static_cast<std::size_t>(c.intermediate * at.value_bytes));
    std::vector<float> scales(places * static_cast<std::size_t>(at.intermediate_groups));
    void* const base = layer_->workspace(rank);
    XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(static_cast<std::size_t>(rank))));
    XSTAGE_CUDA_TRY(cudaMemcpy(origins.data(), at.origin(base, 0),
                               places * sizeof(layout::RowOrigin), cudaMemcpyDeviceToHost));
    XSTAGE_CUDA_TRY(cudaMemcpy(values.data(), at.intermediate_token(base, 0), values.size(),
                               cudaMemcpyDeviceToHost));
    if (!scales.empty())
      XSTAGE_CUDA_TRY(cudaMemcpy(scales.data(), at.intermediate_scales_of(base, 0, 0),
                                 scales.size() * sizeof(float), cudaMemcpyDeviceToHost));
    std::int64_t row = 0;
    for (const std::int64_t count : tokens) {
      for (std::int64_t place = row * c.block_m; place < row * c.block_m + count; ++place) {
        const layout::RowOrigin& origin = origins[static_cast<std::size_t>(place)];
        if (origin.source < 0 || origin.source >= c.ranks ||
            origin.pair >= inputs_[static_cast<std::size_t>(origin.source)].tokens * c.topk)
          return Error{ErrorKind::kCheckFailed, "a row of the pool has no origin", {}, {}, {}};
        const auto source = static_cast<std::size_t>(origin.source);
        const std::int64_t pair = origin.pair;
        if (scales.empty()) {
          for (std::int64_t i = 0; i < c.intermediate; ++i)
            out.quantised[source][static_cast<std::size_t>(pair * c.intermediate + i)] =
                from_bf16(values.data() + 2 * (place * c.intermediate + i));
          continue;
        }
        for (std::int64_t group = 0; group < at.intermediate_groups; ++group) {
          const float scale = scales[static_cast<std::size_t>(
              (place / c.block_m * at.intermediate_groups + group) * c.block_m +
              place % c.block_m)];
          // A group's scale is its largest magnitude over the largest code.
          out.largest[source][static_cast<std::size_t>(pair * at.intermediate_groups + group)] =
              448.0f * scale;
          const std::int64_t first = group * at.intermediate_group;
          for (std::int64_t i = first; i < first + at.intermediate_group; ++i)
            out.quantised[source][static_cast<std::size_t>(pair * c.intermediate + i)] =
                scale * from_e4m3(values[static_cast<std::size_t>(place * c.intermediate + i)]);
        }
      }
      row += (count + c.block_m - 1) / c.block_m;
    }
    return true;
  }

  Result<bool> copy_weights(int rank, const layout::MoeConfig& c, const HostWeights& all,
                            RankWeights& out) {
    constexpr std::int64_t kBlock = kScaleGroup * kScaleGroup;
    const std::int64_t local = c.experts_local(), first = rank * local;
    const std::int64_t w1 = 2 * c.intermediate * c.hidden, w2 = c.hidden * c.intermediate;
    const std::int64_t bytes = activation_bytes(c.format);
    const int gpu = gpu_of(static_cast<std::size_t>(rank));
    const auto copy = [&](const void* from, std::int64_t count, const void*& to) {
      return put(memory_.copy(gpu, static_cast<const std::uint8_t*>(from) + first * count * bytes,
                              local * count * bytes),
                 to);
    };
    XSTAGE_TRY(copy(all.w1, w1, out.w1));
    XSTAGE_TRY(copy(all.w2, w2, out.w2));
    if (c.format == WeightFormat::kBf16) return true;
    const std::int64_t scales1 = w1 / kBlock, scales2 = w2 / kBlock;
    XSTAGE_TRY(
        put(memory_.copy(gpu, all.w1_scales + first * scales1, local * scales1), out.w1_scales));
    return put(memory_.copy(gpu, all.w2_scales + first * scales2, local * scales2), out.w2_scales);
  }

  Result<bool> copy_input(int gpu, const layout::MoeConfig& c, const HostInput& input,
                          RankInput& out) {
    out.tokens = input.tokens;
    XSTAGE_TRY(put(memory_.copy(gpu, input.x, input.tokens * c.hidden), out.x));
    XSTAGE_TRY(put(memory_.copy(gpu, input.experts, input.tokens * c.topk), out.experts));
    XSTAGE_TRY(put(memory_.copy(gpu, input.weights, input.tokens * c.topk), out.weights));
    return put(memory_.allocate<std::uint16_t>(gpu, input.tokens * c.hidden), out.out);
  }

  int share_ = 1;  ///< ranks a GPU
  GpuMemory memory_;
  std::vector<HostInput> inputs_;
  std::vector<RankInput> on_gpu_;
  std::vector<cudaStream_t> streams_;
  std::vector<Events> events_;
  std::optional<Layer> layer_;  ///< behind the memory that it uses
};

}  // namespace

Result<std::unique_ptr<HostLayer>> open_host_layer(layout::MoeConfig config,
                                                   const HostWeights& weights,
                                                   const std::vector<HostInput>& inputs,
                                                   const HostOptions& options) {
  if (inputs.size() != static_cast<std::size_t>(config.ranks))
    return bad_input("one is needed for each rank", "inputs", std::to_string(inputs.size()),
                     std::to_string(config.ranks));
  if (options.ranks_per_gpu < 1 || config.ranks % options.ranks_per_gpu != 0)
    return bad_input("the ranks do not fill their GPUs", "ranks a GPU",
                     std::to_string(options.ranks_per_gpu),
                     "a divisor of the " + std::to_string(config.ranks) + " ranks");
  auto layer = std::make_unique<GpuHostLayer>();
  if (auto done = layer->open(config, weights, inputs, options); !done) return done.error();
  return Result<std::unique_ptr<HostLayer>>(std::move(layer));
}

}  // namespace xstage::moe
