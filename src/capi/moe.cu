#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "capi/common.hpp"
#include "capi/moe_config.hpp"
#include "cuda/moe/layer.hpp"
#include "cuda/ptx/dependent.cuh"
#include "cuda/ulysses/dependent_launch.hpp"

using namespace xstage;

/// What one rank launches.
struct xstage_moe {
  std::optional<moe::RankLayer> layer;
  const std::uint64_t* stop = nullptr;  ///< this rank's stop word
  /// In host memory that the device writes: the stop word, once it is not zero.
  std::uint64_t* stopped = nullptr;
  int device = 0;

  ~xstage_moe() {
    if (stopped != nullptr) static_cast<void>(cudaFreeHost(stopped));
  }
};

namespace {

struct Ending {
  const std::uint64_t* stop;
  std::uint64_t* stopped;
};

/// Behind every launch: the host then knows of a launch that was stopped without asking the device.
__global__ void tell_the_host(const __grid_constant__ Ending ending) {
  ptx::dependency_wait();
  if (*ending.stop == 0) return;
  *ending.stopped = *ending.stop;
  __threadfence_system();
}

Result<bool> open(xstage_moe& out, const xstage_moe_config& config, void* const* symmetric,
                  void* workspace, const xstage_moe_weights& weights, const moe::Limits& limits) {
  const auto made = capi::moe_config(config);
  if (!made.ok()) return made.error();
  for (const auto& [name, pointer] : {std::pair<const char*, const void*>{"w1", weights.w1},
                                      {"w2", weights.w2},
                                      {"w1_scales", weights.w1_scales},
                                      {"w2_scales", weights.w2_scales}}) {
    const bool scale = pointer == weights.w1_scales || pointer == weights.w2_scales;
    if (pointer == nullptr && !(scale && config.format == XSTAGE_MOE_BF16))
      return bad_input("weights are missing", name, "null", "memory of the rank's GPU");
  }
  moe::RankBuffers buffers;
  buffers.symmetric.assign(symmetric, symmetric + config.ranks);
  buffers.workspace = workspace;
  const std::vector<layout::MoeConfig> of_rank(static_cast<std::size_t>(config.ranks),
                                               made.value());
  auto layer = moe::RankLayer::create(
      of_rank, config.rank, out.device, buffers,
      {weights.w1, weights.w1_scales, weights.w2, weights.w2_scales}, limits);
  if (!layer.ok()) return layer.error();
  out.layer = std::move(layer).value();
  out.stop = out.layer->layout().stop_word(out.layer->symmetric());
  void* host = nullptr;
  XSTAGE_CUDA_TRY(cudaHostAlloc(&host, sizeof(std::uint64_t), cudaHostAllocPortable));
  out.stopped = static_cast<std::uint64_t*>(host);
  *out.stopped = 0;
  // Loaded now: left to the first launch, it could wait for a kernel that waits for a peer.
  cudaFuncAttributes attributes{};
  XSTAGE_CUDA_TRY(cudaFuncGetAttributes(&attributes, tell_the_host));
  return true;
}

bool stopped(const xstage_moe& layer) {
  return *static_cast<const volatile std::uint64_t*>(layer.stopped) != 0;
}

}  // namespace

extern "C" {

int xstage_moe_bytes(xstage_moe_config* config, std::int64_t* symmetric, std::int64_t* workspace,
                     char* message, std::size_t size) {
  const capi::Message refuse{message, size};
  const auto made = capi::moe_config(*config);
  if (!made.ok()) return refuse(made.error());
  const auto bytes = moe::buffer_bytes(made.value());
  if (!bytes.ok()) return refuse(bytes.error());
  const schedule::MoeSchedule& order = made.value().schedule;
  config->group_or_lead = order.kind == schedule::MoeScheduleKind::kWave ? order.group : order.lead;
  *symmetric = bytes.value().symmetric;
  *workspace = bytes.value().workspace;
  return XSTAGE_OK;
}

int xstage_moe_open(const xstage_moe_config* config, std::int32_t device, void* const* symmetric,
                    void* workspace, const xstage_moe_weights* weights,
                    std::uint64_t first_limit_ns, std::uint64_t wait_limit_ns, xstage_moe** layer,
                    char* message, std::size_t size) {
  const capi::Message refuse{message, size};
  const capi::DeviceGuard guard(device);
  if (const auto ready = guard.ready(); !ready.ok()) return refuse(ready.error());
  auto out = std::make_unique<xstage_moe>();
  out->device = device;
  moe::Limits limits;
  limits.first = std::chrono::nanoseconds(first_limit_ns);
  limits.later = std::chrono::nanoseconds(wait_limit_ns);
  if (const auto done = open(*out, *config, symmetric, workspace, *weights, limits); !done.ok())
    return refuse(done.error());
  *layer = out.release();
  return XSTAGE_OK;
}

int xstage_moe_forward(xstage_moe* layer, std::int64_t tokens, const void* x,
                       const std::int32_t* experts, const float* weights, const void* addend,
                       void* out, void* stream, char* message, std::size_t size) {
  const capi::Message refuse{message, size};
  const capi::DeviceGuard guard(layer->device);
  if (const auto ready = guard.ready(); !ready.ok()) return refuse(ready.error());
  const auto at = static_cast<cudaStream_t>(stream);
  // Who waited for what is in device memory; after a failure the host may well wait for it.
  if (stopped(*layer))
    if (const auto end = layer->layer->finish(at); !end.ok()) return refuse(end.error());
  moe::RankInput input;
  input.tokens = tokens;
  input.x = static_cast<const std::uint16_t*>(x);
  input.experts = experts;
  input.weights = weights;
  input.addend = static_cast<const std::uint16_t*>(addend);
  input.out = static_cast<std::uint16_t*>(out);
  if (const auto done = layer->layer->launch(input, at); !done.ok()) return refuse(done.error());
  return refuse(ulysses::launch_dependent(tell_the_host, Ending{layer->stop, layer->stopped}, 1, 1,
                                          0, true, at));
}

int xstage_moe_check(xstage_moe* layer, void* stream, char* message, std::size_t size) {
  const capi::DeviceGuard guard(layer->device);
  if (const auto ready = guard.ready(); !ready.ok())
    return capi::Message{message, size}(ready.error());
  return capi::Message{message, size}(layer->layer->finish(static_cast<cudaStream_t>(stream)));
}

int xstage_moe_recover(xstage_moe* layer, char* message, std::size_t size) {
  const capi::DeviceGuard guard(layer->device);
  if (const auto ready = guard.ready(); !ready.ok())
    return capi::Message{message, size}(ready.error());
  const auto done = layer->layer->recover();
  if (done.ok()) *layer->stopped = 0;
  return capi::Message{message, size}(done);
}

void xstage_moe_close(xstage_moe* layer) { delete layer; }

}  // extern "C"
