#include "cuda/moe/layer.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>

#include "cuda/moe/block.cuh"
#include "cuda/moe/fused_launch.hpp"
#include "cuda/moe/tensor_map.hpp"
#include "cuda/probe/check.cuh"

namespace xstage::moe {
static_assert(kMarks == static_cast<int>(Mark::kCount));
namespace {

// nvcc does not compile Debian's fmt 9.
template <class... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

constexpr std::int64_t kSharedLimit = 232448;  // a block's, on sm_90

std::optional<Error> refuse(const char* what, const char* field, std::int64_t value,
                            const std::string& allowed) {
  return bad_input(what, field, std::to_string(value), allowed);
}

std::optional<Error> check_sizes(const layout::MoeLayout& layout) {
  const layout::MoeConfig& c = layout.config;
  constexpr const char* kTiles = "the fused kernel has no such tile";
  if (c.format != WeightFormat::kW8A8 && c.format != WeightFormat::kBf16)
    return bad_input("the fused kernel has no tiles for this format", "weights", "w4a8",
                     "w8a8, bf16");
  if (c.block_m != kBlockM) return refuse(kTiles, "block_m", c.block_m, std::to_string(kBlockM));
  if (c.block_n != kBlockN) return refuse(kTiles, "block_n", c.block_n, std::to_string(kBlockN));
  if (c.ranks > kMaxRanks)
    return refuse("too many ranks for one node", "ranks", c.ranks, joined("1 to ", kMaxRanks));
  if (c.topk > kMaxTopk)
    return refuse("the fused kernel follows fewer experts a token", "topk", c.topk,
                  joined("1 to ", kMaxTopk));
  if (c.hidden > kMaxHidden)
    return refuse("the fused kernel holds shorter tokens", "hidden", c.hidden,
                  joined("256 to ", kMaxHidden));
  const std::int64_t shared = block_shared_bytes(c.ranks, layout.experts_local);
  if (shared > kSharedLimit)
    return refuse("the tables of so many experts do not fit into shared memory", "experts",
                  c.experts, joined(kSharedLimit, " bytes a block in all, these need ", shared));
  const std::int64_t scratch =
      route_scratch_bytes(c.experts, tokens_a_worker(c.capacity, c.workers), c.topk);
  if (scratch > kRouteScratch)
    return refuse("a worker cannot route so many tokens at once", "capacity", c.capacity,
                  joined(kRouteScratch, " bytes of scratch a worker, these need ", scratch));
  constexpr std::int64_t kRows = std::int64_t{1} << 31;
  if (layout.max_rows * kBlockM >= kRows)
    return refuse("the pool has too many rows for a tensor map", "capacity", c.capacity,
                  "fewer than 2^31 rows of tokens");
  if (layout.experts_local * std::max(2 * c.intermediate, c.hidden) >= kRows)
    return refuse("the weights have too many rows for a tensor map", "experts", c.experts,
                  "fewer than 2^31 rows of weights on a rank");
  return {};
}

/// Of a warp, by its number in the block.
std::string role(std::uint64_t warp) {
  if (warp < kMathWarps) return joined("math warp ", warp);
  if (warp == kMathWarps) return "the loader";
  return joined("store warp ", warp - kMathWarps - 1);
}

const char* place(sync::Site site) {
  switch (site) {
    case sync::Site::kBarrier: return "the other blocks of its GPU, barrier";
    case sync::Site::kRoutes: return "the routes of rank";
    case sync::Site::kTokens: return "the tokens of rank";
    case sync::Site::kDispatchedRow: return "the tokens of row";
    case sync::Site::kLinear1Row: return "Linear-1 of row";
    case sync::Site::kCombinePieces: return "the results from rank";
    default: return "its input, pair";
  }
}

const char* kind(sync::Site site) {
  switch (site) {
    case sync::Site::kBarrier: return "blocks of its own";
    case sync::Site::kRoutes: return "routes";
    case sync::Site::kTokens:
    case sync::Site::kDispatchedRow: return "tokens";
    case sync::Site::kLinear1Row: return "Linear-1";
    case sync::Site::kCombinePieces: return "results";
    case sync::Site::kInsideBlock: return "a warp of its own";
    default: return "its input";
  }
}

}  // namespace

Result<layout::MoeLayout> check_layer(const layout::MoeConfig& config) {
  auto layout = layout::checked(config);
  if (!layout) return layout;
  if (const auto error = check_sizes(*layout)) return *error;
  return layout;
}

layout::MoeConfig with_tiles(layout::MoeConfig config, int sms) {
  config.block_m = kBlockM;
  config.block_n = kBlockN;
  config.workers = sms;
  return config;
}

namespace {

/// Behind the layout's workspace: the histogram of routes, and who waited for what.
struct Extras {
  std::int64_t histogram = 0, records = 0, end = 0;
  explicit Extras(const layout::MoeLayout& layout) {
    constexpr std::int64_t kStep = kBufferAlignment;
    const layout::MoeConfig& c = layout.config;
    histogram = (layout.workspace_bytes + kStep - 1) / kStep * kStep;
    records = histogram + (c.workers * c.experts * 4 + kStep - 1) / kStep * kStep;
    end = records + c.workers * std::int64_t{sizeof(sync::WaitRecord)};
  }
};

/// `share`: ranks on this GPU. A block takes an SM, and all of them must run at once.
Result<bool> check_gpu(int gpu, std::int32_t workers, int share = 1) {
  cudaDeviceProp is{};
  XSTAGE_CUDA_TRY(cudaGetDeviceProperties(&is, gpu));
  if (is.major != 9)
    return Error{ErrorKind::kUnsupported, "the fused MoE layer runs on Hopper", joined("gpu ", gpu),
                 is.name, "compute capability 9.0"};
  if (workers > is.multiProcessorCount / share)
    return bad_input(
        share == 1
            ? std::string("more workers than SMs")
            : joined(share, " ranks on GPU ", gpu, " have more workers together than it has SMs"),
        "workers", std::to_string(workers), joined("1 to ", is.multiProcessorCount / share));
  return true;
}

Result<bool> check_memory(int gpu, std::int64_t needed) {
  std::size_t free = 0, total = 0;
  XSTAGE_CUDA_TRY(cudaSetDevice(gpu));
  XSTAGE_CUDA_TRY(cudaMemGetInfo(&free, &total));
  if (needed <= static_cast<std::int64_t>(free)) return true;
  return bad_input("the memory of a GPU cannot hold the buffers of its ranks", "memory",
                   joined(static_cast<double>(needed) * 1e-9, " GB needed"),
                   joined("at most ", static_cast<double>(free) * 1e-9, " GB, free on GPU ", gpu,
                          ": a smaller capacity, or more ranks"));
}

/// Lets `gpu` reach the memory of `peer`.
Result<bool> open_peer(int gpu, int peer) {
  if (peer == gpu) return true;
  int can = 0;
  XSTAGE_CUDA_TRY(cudaSetDevice(gpu));
  XSTAGE_CUDA_TRY(cudaDeviceCanAccessPeer(&can, gpu, peer));
  if (!can)
    return Error{ErrorKind::kUnsupported, "two GPUs cannot reach each other's memory", "gpus",
                 joined(gpu, " and ", peer), "GPUs joined by NVLink"};
  // Asked once in a process: asking again is an error, which checkers report.
  static std::mutex guard;
  static std::set<std::pair<int, int>> opened;
  const std::lock_guard<std::mutex> lock(guard);
  if (!opened.insert({gpu, peer}).second) return true;
  const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled)
    static_cast<void>(cudaGetLastError());
  else
    XSTAGE_CUDA_TRY(code);
  return true;
}

/// Device memory at a place that the kernel can use, and the GPU that has it.
Result<int> check_buffer(const char* what, const void* pointer) {
  if (pointer == nullptr) return bad_input("a buffer is missing", what, "null", "memory of a GPU");
  if (reinterpret_cast<std::uintptr_t>(pointer) % kBufferAlignment != 0)
    return bad_input("a buffer begins at an odd place", what, joined(pointer),
                     joined("a multiple of ", kBufferAlignment, " bytes"));
  cudaPointerAttributes is{};
  XSTAGE_CUDA_TRY(cudaPointerGetAttributes(&is, pointer));
  if (is.type != cudaMemoryTypeDevice)
    return bad_input("a buffer is not memory of a GPU", what, joined(pointer),
                     "memory of a GPU, mapped here");
  return is.device;
}

}  // namespace

Result<BufferBytes> buffer_bytes(const layout::MoeConfig& config) {
  const auto layout = check_layer(config);
  if (!layout) return layout.error();
  return BufferBytes{layout->symmetric_bytes, Extras(*layout).end};
}

Result<RankLayer> RankLayer::create(const std::vector<layout::MoeConfig>& of_rank,
                                    std::int32_t rank, int gpu, const RankBuffers& buffers,
                                    const RankWeights& weights, const Limits& limits) {
  const auto config = layout::agreed(of_rank);
  if (!config) return config.error();
  const auto layout = check_layer(*config);
  if (!layout) return layout.error();
  for (const auto& [name, size] : {std::pair{"configurations", of_rank.size()},
                                   std::pair{"symmetric buffers", buffers.symmetric.size()}})
    if (size != static_cast<std::size_t>(config->ranks))
      return bad_input("one is needed for each rank", name, std::to_string(size),
                       std::to_string(config->ranks));
  if (rank < 0 || rank >= config->ranks)
    return bad_input("there is no such rank", "rank", std::to_string(rank),
                     joined("0 to ", config->ranks - 1));
  if (const auto good = check_gpu(gpu, config->workers); !good) return good.error();
  RankLayer out;
  out.layout_ = *layout;
  out.limits_ = limits;
  out.rank_ = rank;
  out.gpu_ = gpu;
  out.workspace_ = buffers.workspace;
  out.weights_ = weights;
  XSTAGE_CUDA_TRY(cudaSetDevice(gpu));
  if (const auto at = check_buffer("workspace", buffers.workspace); !at) return at.error();
  for (std::size_t i = 0; i < buffers.symmetric.size(); ++i) {
    const auto at =
        check_buffer(joined("symmetric buffer of rank ", i).c_str(), buffers.symmetric[i]);
    if (!at) return at.error();
    if (const auto open = open_peer(gpu, *at); !open) return open.error();
    out.symmetric_[i] = buffers.symmetric[i];
  }
  if (const auto done = out.make_maps(weights); !done) return done.error();
  if (const auto done = out.recover(); !done) return done.error();
  return Result<RankLayer>(std::move(out));
}

Result<bool> RankLayer::make_maps(const RankWeights& weights) {
  const layout::MoeConfig& c = layout_.config;
  const std::int64_t local = layout_.experts_local;
  const std::int64_t tokens = std::max<std::int64_t>(1, layout_.max_rows) * kBlockM;
  struct {
    CUtensorMap* map;
    const void* data;
    std::int64_t rows, columns;
    int box;
    const char* name;
  } const wanted[] = {
      {&maps_.pool, layout_.pool_token(workspace_, 0), tokens, c.hidden, kBlockM, "pool"},
      {&maps_.pool_half, layout_.pool_token(workspace_, 0), tokens, c.hidden, kGroupRows, "pool"},
      {&maps_.w1, weights.w1, local * 2 * c.intermediate, c.hidden, kHalfN, "w1"},
      {&maps_.intermediate, layout_.intermediate_token(workspace_, 0), tokens, c.intermediate,
       kBlockM, "intermediate"},
      {&maps_.intermediate_half, layout_.intermediate_token(workspace_, 0), tokens, c.intermediate,
       kGroupRows, "intermediate"},
      {&maps_.w2, weights.w2, local * c.hidden, c.intermediate, kHalfN, "w2"}};
  for (const auto& w : wanted) {
    const auto map = byte_map(w.data, w.rows, w.columns * layout_.value_bytes, w.box, w.name);
    if (!map) return map.error();
    *w.map = *map;
  }
  return true;
}

std::uint32_t* RankLayer::histogram() const {
  return reinterpret_cast<std::uint32_t*>(static_cast<char*>(workspace_) +
                                          Extras(layout_).histogram);
}

sync::WaitRecord* RankLayer::records() const {
  return reinterpret_cast<sync::WaitRecord*>(static_cast<char*>(workspace_) +
                                             Extras(layout_).records);
}

Result<bool> RankLayer::recover() {
  XSTAGE_CUDA_TRY(cudaSetDevice(gpu_));
  for (const layout::Region& region :
       {layout_.stop, layout_.ready, layout_.landed, layout_.arrived})
    XSTAGE_CUDA_TRY(cudaMemset(static_cast<char*>(symmetric()) + region.offset, 0,
                               static_cast<std::size_t>(region.bytes)));
  for (const layout::Region& region : {layout_.control, layout_.dispatched, layout_.linear1})
    XSTAGE_CUDA_TRY(cudaMemset(static_cast<char*>(workspace_) + region.offset, 0,
                               static_cast<std::size_t>(region.bytes)));
  XSTAGE_CUDA_TRY(cudaMemset(
      records(), 0, static_cast<std::size_t>(layout_.config.workers) * sizeof(sync::WaitRecord)));
  XSTAGE_CUDA_TRY(cudaDeviceSynchronize());
  launches_ = 0;
  return true;
}

Result<bool> RankLayer::poison() {
  XSTAGE_CUDA_TRY(cudaSetDevice(gpu_));
  for (const layout::Region& region :
       {layout_.counts, layout_.entries, layout_.tokens, layout_.token_scales, layout_.combine})
    XSTAGE_CUDA_TRY(cudaMemset(static_cast<char*>(symmetric()) + region.offset, 0xff,
                               static_cast<std::size_t>(region.bytes)));
  for (const layout::Region& region : {layout_.pool, layout_.pool_scales, layout_.origins,
                                       layout_.intermediate, layout_.intermediate_scales})
    XSTAGE_CUDA_TRY(cudaMemset(static_cast<char*>(workspace_) + region.offset, 0xff,
                               static_cast<std::size_t>(region.bytes)));
  XSTAGE_CUDA_TRY(cudaDeviceSynchronize());
  return true;
}

Result<bool> RankLayer::set_schedule(const schedule::MoeSchedule& schedule,
                                     layout::MoeDispatch dispatch) {
  if (!schedule.valid())
    return bad_input("the schedule is not valid", "schedule", std::to_string(schedule.lead),
                     "groups and leads from 1");
  layout_.config.schedule = schedule;
  layout_.config.dispatch = dispatch;
  return true;
}

Result<bool> RankLayer::check(const RankInput& input) const {
  if (input.tokens < 0 || input.tokens > layout_.config.capacity)
    return bad_input("a rank brings more tokens than the capacity",
                     joined("rank ", rank_, " tokens"), std::to_string(input.tokens),
                     joined("0 to ", layout_.config.capacity));
  for (const auto& [name, pointer] : {std::pair<const char*, const void*>{"x", input.x},
                                      {"experts", input.experts},
                                      {"weights", input.weights},
                                      {"out", input.out}})
    if (input.tokens > 0 && pointer == nullptr)
      return bad_input("an input is missing", joined("rank ", rank_, " ", name), "null",
                       "memory of the rank's GPU");
  return true;
}

Result<bool> RankLayer::launch(const RankInput& input, cudaStream_t stream) {
  if (const auto good = check(input); !good) return good.error();
  FusedParams params{};
  params.layout = layout_;
  params.limit_ns =
      static_cast<std::uint64_t>((launches_ == 0 ? limits_.first : limits_.later).count());
  params.block_limit_ns = limits_.in_block.count() > 0
                              ? static_cast<std::uint64_t>(limits_.in_block.count())
                              : 2 * params.limit_ns;
  for (std::int32_t i = 0; i < layout_.config.ranks; ++i) {
    params.symmetric[i] = symmetric_[i];
    params.stop_words[i] = layout_.stop_word(symmetric_[i]);
  }
  params.workspace = workspace_;
  params.histogram = histogram();
  params.records = records();
  params.w1_scales = weights_.w1_scales;
  params.w2_scales = weights_.w2_scales;
  params.x = input.x;
  params.experts = input.experts;
  params.weights = input.weights;
  params.addend = input.addend;
  params.out = input.out;
  params.marks = input.marks;
  params.tokens = input.tokens;
  params.rank = rank_;
  XSTAGE_CUDA_TRY(cudaSetDevice(gpu_));
  const bool bf16 = layout_.config.format == WeightFormat::kBf16;
  const auto launch_format = bf16 ? launch_fused<PlainBf16> : launch_fused<W8a8>;
  if (auto done = launch_format(params, maps_, stream); !done) return done.error();
  ++launches_;
  return true;
}

Result<RankLayer::Ending> RankLayer::ending() const {
  Ending out;
  std::uint64_t stop = 0;
  XSTAGE_CUDA_TRY(cudaSetDevice(gpu_));
  XSTAGE_CUDA_TRY(cudaMemcpy(&stop, layout_.stop_word(symmetric()), 8, cudaMemcpyDeviceToHost));
  out.stopped = stop != 0;
  if (!out.stopped) return out;
  std::vector<sync::WaitRecord> of_block(static_cast<std::size_t>(layout_.config.workers));
  XSTAGE_CUDA_TRY(cudaMemcpy(of_block.data(), records(), of_block.size() * sizeof(sync::WaitRecord),
                             cudaMemcpyDeviceToHost));
  // A stop word says which rank gave up, and in what kind of wait (sync::stop_value).
  std::string others =
      joined("rank ", rank_, " was stopped by rank ", (stop >> 32) & 0x7fffffff,
             ", which gave up waiting for ", kind(static_cast<sync::Site>(stop & 0xffffffff)));
  for (const sync::WaitRecord& r : of_block)
    if (r.end == sync::WaitEnd::kStopped) {
      others += joined("; it had itself waited ", static_cast<double>(r.waited_ns) * 1e-9,
                       " s for ", place(r.site), " ", r.subject);
      break;
    }
  out.others = Error{ErrorKind::kTimeout, others, {}, {}, {}};
  for (const sync::WaitRecord& r : of_block) {
    if (r.end == sync::WaitEnd::kNone || r.end == sync::WaitEnd::kStopped) continue;
    const std::string who = joined("rank ", r.rank, " block ", r.worker);
    if (r.end == sync::WaitEnd::kCorrupt && r.site == sync::Site::kNone)
      out.error = bad_input("an expert id is out of range",
                            joined("rank ", r.rank, " token ", r.subject / layout_.config.topk,
                                   " slot ", r.subject % layout_.config.topk),
                            std::to_string(static_cast<std::int64_t>(r.seen)),
                            joined("-1 to ", layout_.config.experts - 1));
    else if (r.end == sync::WaitEnd::kCorrupt)
      out.error = Error{ErrorKind::kCheckFailed,
                        joined(who, " read routes that cannot be, from rank ", r.subject),
                        "entries", std::to_string(r.seen), std::to_string(r.wanted)};
    else if (r.site == sync::Site::kInsideBlock)
      out.error = Error{
          ErrorKind::kTimeout,
          joined(who, ", ", role(r.seen), ", waited ", static_cast<double>(r.waited_ns) * 1e-9,
                 " s for ", kAwaitedNames[r.subject]),
          "warp", std::to_string(r.seen), "an end of every wait inside a block"};
    else
      out.error = Error{ErrorKind::kTimeout,
                        joined(who, " waited ", static_cast<double>(r.waited_ns) * 1e-9, " s for ",
                               place(r.site), " ", r.subject),
                        "count", std::to_string(r.seen), joined("at least ", r.wanted)};
    break;
  }
  return out;
}

Result<bool> RankLayer::finish(cudaStream_t stream) {
  XSTAGE_CUDA_TRY(cudaSetDevice(gpu_));
  XSTAGE_CUDA_TRY(cudaStreamSynchronize(stream));
  const auto end = ending();
  if (!end) return end.error();
  if (!end->stopped) return true;
  return end->error ? *end->error : end->others;
}

Result<Layer> Layer::create(const std::vector<layout::MoeConfig>& of_rank,
                            const std::vector<int>& gpus, const std::vector<RankWeights>& weights,
                            const Limits& limits) {
  const auto config = layout::agreed(of_rank);
  if (!config) return config.error();
  const auto bytes = buffer_bytes(*config);
  if (!bytes) return bytes.error();
  const auto ranks = static_cast<std::size_t>(config->ranks);
  for (const auto& [name, size] :
       {std::pair{"configurations", of_rank.size()}, std::pair{"gpus", gpus.size()},
        std::pair{"weights", weights.size()}})
    if (size != ranks)
      return bad_input("one is needed for each rank", name, std::to_string(size),
                       std::to_string(ranks));
  // Before anything is allocated: all GPUs, and all pairs of them.
  for (const int gpu : gpus) {
    const auto share = std::count(gpus.begin(), gpus.end(), gpu);
    if (const auto good = check_gpu(gpu, config->workers, static_cast<int>(share)); !good)
      return good.error();
    for (const int peer : gpus)
      if (const auto open = open_peer(gpu, peer); !open) return open.error();
  }
  for (const int gpu : gpus)
    if (const auto room = check_memory(
            gpu, std::count(gpus.begin(), gpus.end(), gpu) * (bytes->symmetric + bytes->workspace));
        !room)
      return room.error();
  Layer out;
  RankBuffers buffers;
  const auto allocate = [&](int gpu, std::int64_t size) -> Result<void*> {
    void* memory = nullptr;
    XSTAGE_CUDA_TRY(cudaSetDevice(gpu));
    XSTAGE_CUDA_TRY(cudaMalloc(&memory, static_cast<std::size_t>(size)));
    out.memory_.push_back({gpu, memory});
    return memory;
  };
  for (const int gpu : gpus) {
    const auto memory = allocate(gpu, bytes->symmetric);
    if (!memory) return memory.error();
    buffers.symmetric.push_back(*memory);
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto memory = allocate(gpus[rank], bytes->workspace);
    if (!memory) return memory.error();
    buffers.workspace = *memory;
    auto one = RankLayer::create(of_rank, static_cast<std::int32_t>(rank), gpus[rank], buffers,
                                 weights[rank], limits);
    if (!one) return one.error();
    out.ranks_.push_back(std::move(one).value());
  }
  return Result<Layer>(std::move(out));
}

Layer::~Layer() {
  // First until no rank writes to another one's memory any more.
  for (const Memory& memory : memory_)
    if (cudaSetDevice(memory.gpu) == cudaSuccess) static_cast<void>(cudaDeviceSynchronize());
  for (const Memory& memory : memory_) {
    static_cast<void>(cudaSetDevice(memory.gpu));
    static_cast<void>(cudaFree(memory.pointer));
  }
}

Result<bool> Layer::poison() {
  for (RankLayer& rank : ranks_)
    if (auto done = rank.poison(); !done) return done;
  return true;
}

Result<bool> Layer::set_schedule(const schedule::MoeSchedule& schedule,
                                 layout::MoeDispatch dispatch) {
  for (RankLayer& rank : ranks_)
    if (auto done = rank.set_schedule(schedule, dispatch); !done) return done;
  return true;
}

Result<bool> Layer::launch(const std::vector<RankInput>& inputs,
                           const std::vector<cudaStream_t>& streams) {
  if (inputs.size() != ranks_.size() || streams.size() != ranks_.size())
    return bad_input("one is needed for each rank", "inputs, streams",
                     joined(inputs.size(), ", ", streams.size()), std::to_string(ranks_.size()));
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (auto good = ranks_[i].check(inputs[i]); !good) return good;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (auto done = ranks_[i].launch(inputs[i], streams[i]); !done) return done;
  return true;
}

Result<bool> Layer::finish(const std::vector<cudaStream_t>& streams) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    XSTAGE_CUDA_TRY(cudaSetDevice(ranks_[i].gpu()));
    XSTAGE_CUDA_TRY(cudaStreamSynchronize(streams[i]));
  }
  bool stopped = false;
  std::optional<Error> error;
  std::vector<Error> endings;
  for (const RankLayer& rank : ranks_) {
    const auto end = rank.ending();
    if (!end) return end.error();
    stopped = stopped || end->stopped;
    if (!error) error = end->error;
    endings.push_back(end->error ? *end->error : end->others);
  }
  if (!stopped) return true;
  endings_ = std::move(endings);
  for (RankLayer& rank : ranks_)
    if (auto done = rank.recover(); !done) return done;
  if (error) return *error;
  return Error{ErrorKind::kTimeout, "a rank stopped and left no record", {}, {}, {}};
}

}  // namespace xstage::moe
