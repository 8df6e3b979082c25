#include "cuda/moe/layer.hpp"

#include <algorithm>
#include <optional>
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
  if (c.format != WeightFormat::kW8A8)
    return bad_input("the fused kernel has no tiles for this format", "weights",
                     c.format == WeightFormat::kBf16 ? "bf16" : "w4a8", "w8a8");
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

const char* place(sync::Site site) {
  switch (site) {
    case sync::Site::kBarrier: return "the other blocks of its GPU, barrier";
    case sync::Site::kRoutes: return "the routes of rank";
    case sync::Site::kDispatchedRow: return "the tokens of row";
    case sync::Site::kLinear1Row: return "Linear-1 of row";
    case sync::Site::kCombinePieces: return "the results from rank";
    default: return "its input, pair";
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

Result<Layer> Layer::create(const std::vector<layout::MoeConfig>& of_rank,
                            const std::vector<int>& gpus, const std::vector<RankWeights>& weights,
                            const Limits& limits) {
  const auto config = layout::agreed(of_rank);
  if (!config) return config.error();
  const auto layout = check_layer(*config);
  if (!layout) return layout.error();
  const auto ranks = static_cast<std::size_t>(config->ranks);
  for (const auto& [name, size] :
       {std::pair{"configurations", of_rank.size()}, std::pair{"gpus", gpus.size()},
        std::pair{"weights", weights.size()}})
    if (size != ranks)
      return bad_input("one is needed for each rank", name, std::to_string(size),
                       std::to_string(ranks));
  Layer out;
  out.layout_ = *layout;
  out.limits_ = limits;
  out.ranks_.resize(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    out.ranks_[rank].gpu = gpus[rank];
    cudaDeviceProp gpu{};
    XSTAGE_CUDA_TRY(cudaGetDeviceProperties(&gpu, gpus[rank]));
    if (gpu.major != 9)
      return Error{ErrorKind::kUnsupported, "the fused MoE layer runs on Hopper",
                   joined("gpu ", gpus[rank]), gpu.name, "compute capability 9.0"};
    if (config->workers > gpu.multiProcessorCount)
      return bad_input("more workers than SMs", "workers", std::to_string(config->workers),
                       joined("1 to ", gpu.multiProcessorCount));
  }
  if (auto done = out.allocate(weights); !done) return done.error();
  return Result<Layer>(std::move(out));
}

Result<bool> Layer::allocate(const std::vector<RankWeights>& weights) {
  const layout::MoeConfig& c = layout_.config;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    rank.weights = weights[i];
    XSTAGE_CUDA_TRY(cudaSetDevice(rank.gpu));
    for (const Rank& peer : ranks_) {
      if (peer.gpu == rank.gpu) continue;
      int can = 0;
      XSTAGE_CUDA_TRY(cudaDeviceCanAccessPeer(&can, rank.gpu, peer.gpu));
      if (!can)
        return Error{ErrorKind::kUnsupported, "two GPUs cannot reach each other's memory", "gpus",
                     joined(rank.gpu, " and ", peer.gpu), "GPUs joined by NVLink"};
      const cudaError_t code = cudaDeviceEnablePeerAccess(peer.gpu, 0);
      if (code == cudaErrorPeerAccessAlreadyEnabled)
        static_cast<void>(cudaGetLastError());
      else
        XSTAGE_CUDA_TRY(code);
    }
    XSTAGE_CUDA_TRY(cudaMalloc(&rank.symmetric, static_cast<std::size_t>(layout_.symmetric_bytes)));
    XSTAGE_CUDA_TRY(cudaMalloc(&rank.workspace, static_cast<std::size_t>(layout_.workspace_bytes)));
    XSTAGE_CUDA_TRY(cudaMalloc(&rank.histogram, static_cast<std::size_t>(c.workers) *
                                                    static_cast<std::size_t>(c.experts) * 4));
    XSTAGE_CUDA_TRY(
        cudaMalloc(&rank.records, static_cast<std::size_t>(c.workers) * sizeof(sync::WaitRecord)));
    const std::int64_t local = layout_.experts_local;
    const std::int64_t tokens = std::max<std::int64_t>(1, layout_.max_rows) * kBlockM;
    struct {
      CUtensorMap* map;
      const void* data;
      std::int64_t rows, columns;
      int box;
      const char* name;
    } const wanted[] = {
        {&rank.maps.pool, layout_.pool_token(rank.workspace, 0), tokens, c.hidden, kBlockM, "pool"},
        {&rank.maps.pool_half, layout_.pool_token(rank.workspace, 0), tokens, c.hidden, kGroupRows,
         "pool"},
        {&rank.maps.w1, weights[i].w1, local * 2 * c.intermediate, c.hidden, kHalfN, "w1"},
        {&rank.maps.intermediate, layout_.intermediate_token(rank.workspace, 0), tokens,
         c.intermediate, kBlockM, "intermediate"},
        {&rank.maps.intermediate_half, layout_.intermediate_token(rank.workspace, 0), tokens,
         c.intermediate, kGroupRows, "intermediate"},
        {&rank.maps.w2, weights[i].w2, local * c.hidden, c.intermediate, kHalfN, "w2"}};
    for (const auto& w : wanted) {
      const auto map = byte_map(w.data, w.rows, w.columns, w.box, w.name);
      if (!map) return map.error();
      *w.map = *map;
    }
  }
  return clear();
}

Layer::~Layer() {
  for (Rank& rank : ranks_) {
    if (cudaSetDevice(rank.gpu) == cudaSuccess) static_cast<void>(cudaDeviceSynchronize());
  }
  for (Rank& rank : ranks_) {
    static_cast<void>(cudaSetDevice(rank.gpu));
    for (void* memory : {rank.symmetric, rank.workspace, static_cast<void*>(rank.histogram),
                         static_cast<void*>(rank.records)})
      static_cast<void>(cudaFree(memory));
  }
}

/// Flags and counters as before the first launch.
Result<bool> Layer::clear() {
  for (Rank& rank : ranks_) {
    XSTAGE_CUDA_TRY(cudaSetDevice(rank.gpu));
    for (const layout::Region& region : {layout_.stop, layout_.ready, layout_.arrived})
      XSTAGE_CUDA_TRY(cudaMemset(static_cast<char*>(rank.symmetric) + region.offset, 0,
                                 static_cast<std::size_t>(region.bytes)));
    for (const layout::Region& region : {layout_.control, layout_.dispatched, layout_.linear1})
      XSTAGE_CUDA_TRY(cudaMemset(static_cast<char*>(rank.workspace) + region.offset, 0,
                                 static_cast<std::size_t>(region.bytes)));
    XSTAGE_CUDA_TRY(
        cudaMemset(rank.records, 0,
                   static_cast<std::size_t>(layout_.config.workers) * sizeof(sync::WaitRecord)));
  }
  for (Rank& rank : ranks_) {
    XSTAGE_CUDA_TRY(cudaSetDevice(rank.gpu));
    XSTAGE_CUDA_TRY(cudaDeviceSynchronize());
  }
  launches_ = 0;
  return true;
}

Result<bool> Layer::poison() {
  for (Rank& rank : ranks_) {
    XSTAGE_CUDA_TRY(cudaSetDevice(rank.gpu));
    for (const layout::Region& region :
         {layout_.counts, layout_.entries, layout_.tokens, layout_.token_scales, layout_.combine})
      XSTAGE_CUDA_TRY(cudaMemset(static_cast<char*>(rank.symmetric) + region.offset, 0xff,
                                 static_cast<std::size_t>(region.bytes)));
    for (const layout::Region& region : {layout_.pool, layout_.pool_scales, layout_.origins,
                                         layout_.intermediate, layout_.intermediate_scales})
      XSTAGE_CUDA_TRY(cudaMemset(static_cast<char*>(rank.workspace) + region.offset, 0xff,
                                 static_cast<std::size_t>(region.bytes)));
  }
  for (Rank& rank : ranks_) {
    XSTAGE_CUDA_TRY(cudaSetDevice(rank.gpu));
    XSTAGE_CUDA_TRY(cudaDeviceSynchronize());
  }
  return true;
}

Result<bool> Layer::set_schedule(const schedule::MoeSchedule& schedule,
                                 layout::MoeDispatch dispatch) {
  if (!schedule.valid())
    return bad_input("the schedule is not valid", "schedule", std::to_string(schedule.lead),
                     "groups and leads from 1");
  layout_.config.schedule = schedule;
  layout_.config.dispatch = dispatch;
  return true;
}

Result<bool> Layer::launch(const std::vector<RankInput>& inputs,
                           const std::vector<cudaStream_t>& streams) {
  if (inputs.size() != ranks_.size() || streams.size() != ranks_.size())
    return bad_input("one is needed for each rank", "inputs, streams",
                     joined(inputs.size(), ", ", streams.size()), std::to_string(ranks_.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].tokens < 0 || inputs[i].tokens > layout_.config.capacity)
      return bad_input("a rank brings more tokens than the capacity", joined("rank ", i, " tokens"),
                       std::to_string(inputs[i].tokens), joined("0 to ", layout_.config.capacity));
  FusedParams params{};
  params.layout = layout_;
  params.limit_ns =
      static_cast<std::uint64_t>((launches_ == 0 ? limits_.first : limits_.later).count());
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    params.symmetric[i] = ranks_[i].symmetric;
    params.stop_words[i] = layout_.stop_word(ranks_[i].symmetric);
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    const RankInput& input = inputs[i];
    params.workspace = rank.workspace;
    params.histogram = rank.histogram;
    params.records = rank.records;
    params.w1_scales = rank.weights.w1_scales;
    params.w2_scales = rank.weights.w2_scales;
    params.x = input.x;
    params.experts = input.experts;
    params.weights = input.weights;
    params.addend = input.addend;
    params.out = input.out;
    params.marks = input.marks;
    params.tokens = input.tokens;
    params.rank = static_cast<std::int32_t>(i);
    XSTAGE_CUDA_TRY(cudaSetDevice(rank.gpu));
    if (auto done = launch_fused(params, rank.maps, streams[i]); !done) return done.error();
  }
  ++launches_;
  return true;
}

Result<bool> Layer::finish(const std::vector<cudaStream_t>& streams) {
  const std::int32_t workers = layout_.config.workers;
  std::vector<sync::WaitRecord> records(static_cast<std::size_t>(workers));
  std::optional<Error> error;
  bool stopped = false;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    XSTAGE_CUDA_TRY(cudaSetDevice(ranks_[i].gpu));
    XSTAGE_CUDA_TRY(cudaStreamSynchronize(streams[i]));
    std::uint64_t stop = 0;
    XSTAGE_CUDA_TRY(
        cudaMemcpy(&stop, layout_.stop_word(ranks_[i].symmetric), 8, cudaMemcpyDeviceToHost));
    stopped = stopped || stop != 0;
    if (stop == 0) continue;
    XSTAGE_CUDA_TRY(cudaMemcpy(records.data(), ranks_[i].records,
                               records.size() * sizeof(sync::WaitRecord), cudaMemcpyDeviceToHost));
    for (const sync::WaitRecord& r : records) {
      if (error || r.end == sync::WaitEnd::kNone || r.end == sync::WaitEnd::kStopped) continue;
      const std::string who = joined("rank ", r.rank, " block ", r.worker);
      if (r.end == sync::WaitEnd::kCorrupt && r.site == sync::Site::kNone)
        error = bad_input("an expert id is out of range",
                          joined("rank ", r.rank, " token ", r.subject / layout_.config.topk,
                                 " slot ", r.subject % layout_.config.topk),
                          std::to_string(static_cast<std::int64_t>(r.seen)),
                          joined("-1 to ", layout_.config.experts - 1));
      else if (r.end == sync::WaitEnd::kCorrupt)
        error = Error{ErrorKind::kCheckFailed,
                      joined(who, " read routes that cannot be, from rank ", r.subject), "entries",
                      std::to_string(r.seen), std::to_string(r.wanted)};
      else
        error = Error{ErrorKind::kTimeout,
                      joined(who, " waited ", static_cast<double>(r.waited_ns) * 1e-9, " s for ",
                             place(r.site), " ", r.subject),
                      "count", std::to_string(r.seen), joined("at least ", r.wanted)};
    }
  }
  if (!stopped) return true;
  if (auto done = clear(); !done) return done.error();
  if (error) return *error;
  return Error{ErrorKind::kTimeout, "a rank stopped and left no record", {}, {}, {}};
}

}  // namespace xstage::moe
