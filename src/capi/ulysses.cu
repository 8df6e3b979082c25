#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include "capi/common.hpp"
#include "capi/copy_out.cuh"
#include "cuda/ulysses/attention.hpp"
#include "cuda/ulysses/exchange.hpp"
#include "xstage/layout/check.hpp"

using namespace xstage;
using layout::TensorView;
using layout::UlyssesConfig;

/// What one rank launches.
struct xstage_ulysses {
  layout::UlyssesLayout layout;
  std::vector<void*> symmetric;
  ulysses::RankMemory memory;
  /// For the exchange: the same, but with records of its own. Its wait, the cause, would else be
  /// overwritten by the attention that then stops.
  ulysses::RankMemory exchange;
  std::optional<ulysses::Attention> attention;
  capi::CopyOut copy;
  int device = 0;
  int sms = 0;
  /// In host memory that the device writes: [2][sms] records, then whether a launch was stopped.
  void* ends = nullptr;

  ~xstage_ulysses() {
    if (ends != nullptr) static_cast<void>(cudaFreeHost(ends));
  }
  sync::WaitRecord* records() const { return static_cast<sync::WaitRecord*>(ends); }
  std::uint64_t* stopped() const { return reinterpret_cast<std::uint64_t*>(records() + 2 * sms); }
  std::size_t ends_bytes() const {
    return static_cast<std::size_t>(2 * sms) * sizeof(sync::WaitRecord) + sizeof(std::uint64_t);
  }
};

namespace {

// nvcc does not compile Debian's fmt 9.
template <class... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

Result<layout::UlyssesLayout> layout_of(const xstage_ulysses_config& l) {
  if (l.ranks < 1 || l.ranks > 8 || l.rank < 0 || l.rank >= l.ranks)
    return bad_input("no such rank", "rank", joined(l.rank, " of ", l.ranks),
                     "1 to 8 ranks, counted from 0");
  if (const auto type = capi::scalar_type(l.type); !type.ok()) return type.error();
  UlyssesConfig c;
  c.ranks = l.ranks;
  c.batch = l.batch;
  c.heads = l.heads;
  c.kv_heads = l.kv_heads;
  c.head_dim = l.head_dim;
  c.rows = l.rows;
  c.key_rows = l.rows;
  c.scale = l.scale;
  c.replicate_kv_heads = l.kv_heads < l.ranks;
  std::vector<layout::RowSegment> rows;
  if (l.table == nullptr)
    rows = layout::sharded(l.rows, l.ranks);
  else
    for (std::int32_t i = 0; i < l.segments; ++i) {
      const std::int64_t* const s = l.table + 4 * i;
      rows.push_back({s[0], s[1], static_cast<std::int32_t>(s[2]), s[3]});
    }
  layout::set_segments(c, rows);
  layout::set_key_segments(c, rows);
  return layout::checked(c);
}

Result<bool> open_memory(xstage_ulysses& layer, const xstage_ulysses_config& config,
                         void* const* symmetric, void* workspace, std::uint64_t wait_limit_ns) {
  cudaDeviceProp is{};
  XSTAGE_CUDA_TRY(cudaGetDeviceProperties(&is, layer.device));
  if (is.major != 9)
    return Error{ErrorKind::kUnsupported, "the attention kernel runs on Hopper",
                 joined("device ", layer.device), is.name, "compute capability 9.0"};
  layer.sms = is.multiProcessorCount;
  XSTAGE_CUDA_TRY(cudaHostAlloc(&layer.ends, layer.ends_bytes(), cudaHostAllocPortable));
  std::fill_n(static_cast<char*>(layer.ends), layer.ends_bytes(), '\0');
  layer.symmetric.assign(symmetric, symmetric + config.ranks);
  for (int rank = 0; rank < config.ranks; ++rank)
    if (layer.symmetric[static_cast<std::size_t>(rank)] == nullptr)
      return bad_input("a buffer is missing", joined("symmetric buffer of rank ", rank), "null",
                       "memory of a GPU");
  if (workspace == nullptr)
    return bad_input("a buffer is missing", "workspace", "null", "memory of the rank's GPU");
  ulysses::RankMemory& memory = layer.memory;
  memory.layout = layer.layout;
  memory.rank = config.rank;
  memory.type = *capi::scalar_type(config.type);
  memory.symmetric = layer.symmetric.data();
  memory.workspace = workspace;
  memory.records = layer.records();
  memory.limit_ns = wait_limit_ns;
  layer.exchange = memory;
  layer.exchange.records += layer.sms;
  return true;
}

capi::CopyOut copy_of(const xstage_ulysses& layer) {
  const ulysses::RankMemory& memory = layer.memory;
  const TensorView out = ulysses::output_view(memory, memory.rank);
  capi::CopyOut copy;
  copy.slots = static_cast<const uint4*>(out.data);
  copy.slot_units = layer.layout.output_slot / 8;
  copy.epoch = layer.layout.word(memory.workspace, 1, layout::UlyssesWord::kEpoch);
  copy.units = out.shape[0] * out.shape[1] * out.shape[2] * out.shape[3] / 8;
  copy.stop = layer.layout.stop_word(memory.symmetric[memory.rank]);
  copy.stopped = layer.stopped();
  return copy;
}

const char* awaited(sync::Site site) {
  switch (site) {
    case sync::Site::kBarrier: return "the other blocks of its GPU";
    case sync::Site::kExchangePieces: return "Q, K and V";
    case sync::Site::kOutputPieces: return "output rows";
    default: return "something";
  }
}

/// Somebody who waits for another rank says more than the blocks that wait for that one.
std::optional<Error> ending(const xstage_ulysses& layer) {
  if (*static_cast<volatile std::uint64_t*>(layer.stopped()) == 0) return {};
  const sync::WaitRecord* first = nullptr;
  for (int i = 0; i < 2 * layer.sms; ++i) {
    const sync::WaitRecord& r = layer.records()[i];
    if (r.end != sync::WaitEnd::kLimit) continue;
    if (first == nullptr || (first->site == sync::Site::kBarrier && r.site != sync::Site::kBarrier))
      first = &r;
  }
  if (first == nullptr) {
    const auto by = static_cast<std::int32_t>(*layer.stopped() >> 32 & 0x7fffffff);
    return Error{ErrorKind::kTimeout,
                 joined("rank ", layer.memory.rank, " was stopped by rank ", by,
                        ", which waited too long for ",
                        awaited(static_cast<sync::Site>(*layer.stopped() & 0xff)),
                        "; results since then are not valid"),
                 {},
                 {},
                 {}};
  }
  const bool of_rank = first->site != sync::Site::kBarrier;
  return Error{ErrorKind::kTimeout,
               joined("rank ", first->rank, " waited ",
                      static_cast<double>(first->waited_ns) * 1e-9, " s for ", awaited(first->site),
                      of_rank ? joined(" from rank ", first->subject) : std::string(), " in call ",
                      first->epoch),
               "pieces", std::to_string(first->seen), joined("at least ", first->wanted)};
}

Result<bool> launch(const xstage_ulysses& layer, const xstage_tensor& query,
                    const xstage_tensor& key, const xstage_tensor& value, void* output,
                    void* stream) {
  const auto view = [&](const xstage_tensor& tensor) {
    return capi::view_of(tensor, layer.memory.type);
  };
  // Made anew, since a caller's tensors move: some microseconds of the host, no device call.
  const auto inputs =
      ulysses::Exchange::inputs(layer.exchange, view(query), view(key), view(value));
  if (!inputs.ok()) return inputs.error();
  if (auto done = inputs.value().launch(stream); !done.ok()) return done;
  if (auto done = layer.attention->launch(stream); !done.ok()) return done;
  capi::CopyOut copy = layer.copy;
  copy.out = static_cast<uint4*>(output);
  if (output == nullptr) copy.units = 0;
  const std::int64_t per_block = capi::kCopyThreads * capi::kCopyUnits;
  const std::int64_t blocks =
      std::clamp<std::int64_t>((copy.units + per_block - 1) / per_block, 1, 4 * layer.sms);
  return ulysses::launch_dependent(capi::copy_out, copy, static_cast<int>(blocks),
                                   capi::kCopyThreads, 0, true, static_cast<cudaStream_t>(stream));
}

}  // namespace

extern "C" {

int xstage_ulysses_bytes(const xstage_ulysses_config* config, std::int64_t* symmetric,
                         std::int64_t* workspace, char* message, std::size_t size) {
  const auto made = layout_of(*config);
  if (!made.ok()) return capi::Message{message, size}(made.error());
  *symmetric = made.value().symmetric_bytes;
  *workspace = made.value().workspace_bytes;
  return XSTAGE_OK;
}

int xstage_ulysses_open(const xstage_ulysses_config* config, std::int32_t device,
                        void* const* symmetric, void* workspace, const std::int32_t* key_lengths,
                        std::uint64_t wait_limit_ns, xstage_ulysses** layer, char* message,
                        std::size_t size) {
  const capi::Message refuse{message, size};
  const auto made = layout_of(*config);
  if (!made.ok()) return refuse(made.error());
  const capi::DeviceGuard guard(device);
  if (const auto ready = guard.ready(); !ready.ok()) return refuse(ready.error());
  auto out = std::make_unique<xstage_ulysses>();
  out->layout = made.value();
  out->device = device;
  const auto memory = open_memory(*out, *config, symmetric, workspace, wait_limit_ns);
  if (!memory.ok()) return refuse(memory.error());
  ulysses::AttentionInputs in = ulysses::exchanged_inputs(out->memory);
  in.key_lengths = key_lengths;
  const auto attention = ulysses::Attention::fused(in, out->memory);
  if (!attention.ok()) return refuse(attention.error());
  out->attention = attention.value();
  out->copy = copy_of(*out);
  // Loaded now: left to the first launch, it could wait for a kernel that waits for a peer.
  cudaFuncAttributes attributes{};
  if (const auto code = cudaFuncGetAttributes(&attributes, capi::copy_out); code != cudaSuccess)
    return refuse(probe::cuda_error(code, "cudaFuncGetAttributes"));
  *layer = out.release();
  return XSTAGE_OK;
}

int xstage_ulysses_forward(xstage_ulysses* layer, const xstage_tensor* query,
                           const xstage_tensor* key, const xstage_tensor* value, void* output,
                           void* stream, char* message, std::size_t size) {
  const capi::Message refuse{message, size};
  if (const auto error = ending(*layer)) return refuse(*error);
  const capi::DeviceGuard guard(layer->device);
  if (const auto ready = guard.ready(); !ready.ok()) return refuse(ready.error());
  return refuse(launch(*layer, *query, *key, *value, output, stream));
}

int xstage_ulysses_check(const xstage_ulysses* layer, char* message, std::size_t size) {
  if (const auto error = ending(*layer)) return capi::Message{message, size}(*error);
  return XSTAGE_OK;
}

int xstage_ulysses_recover(xstage_ulysses* layer, char* message, std::size_t size) {
  const capi::DeviceGuard guard(layer->device);
  const auto done = [&]() -> Result<bool> {
    if (auto ready = guard.ready(); !ready.ok()) return ready;
    XSTAGE_CUDA_TRY(cudaDeviceSynchronize());
    const layout::UlyssesLayout& l = layer->layout;
    char* const base = static_cast<char*>(layer->memory.symmetric[layer->memory.rank]);
    for (const layout::Region& region : {l.stop, l.exchanged, l.output_arrived})
      XSTAGE_CUDA_TRY(cudaMemset(base + region.offset, 0, static_cast<std::size_t>(region.bytes)));
    XSTAGE_CUDA_TRY(
        cudaMemset(layer->memory.workspace, 0, static_cast<std::size_t>(l.workspace_bytes)));
    XSTAGE_CUDA_TRY(cudaDeviceSynchronize());
    std::fill_n(static_cast<char*>(layer->ends), layer->ends_bytes(), '\0');
    return true;
  }();
  return capi::Message{message, size}(done);
}

void xstage_ulysses_close(xstage_ulysses* layer) { delete layer; }

}  // extern "C"
