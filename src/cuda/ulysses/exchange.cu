#include "cuda/ulysses/exchange.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <new>
#include <string>
#include <type_traits>

#include "cuda/probe/check.cuh"
#include "cuda/ptx/dependent.cuh"
#include "cuda/ptx/store.cuh"
#include "cuda/ulysses/dependent_launch.hpp"
#include "cuda/ulysses/signals.cuh"
#include "cuda/ulysses/signals.hpp"
#include "xstage/schedule/fast_divisor.hpp"

namespace xstage::ulysses {

/// Rows of some heads of one tensor, to one rank.
struct CopyJob {
  const std::uint16_t* source = nullptr;
  std::uint16_t* target[kSlots] = {};
  std::int64_t source_batch = 0, source_row = 0, source_head = 0;  ///< strides, in elements
  std::int64_t target_batch = 0, target_row = 0, target_head = 0;
  std::int64_t first_tile = 0;  ///< of the launch
  schedule::FastDivisor by_rows, by_units;
  std::int32_t rows_all = 0;   ///< batch · rows
  std::int32_t tile_rows = 1;  ///< rows a tile
  std::int32_t heads = 0;
  std::int32_t rank = 0;
};

inline constexpr int kMaxJobs = 160;

/// Of a launch, but for its jobs.
struct ExchangeHead {
  Signals signals;
  std::int64_t tiles[2] = {};  ///< for other ranks, for this one
  std::int64_t places = 0;     ///< turns of one tile for each rank; some at the end are empty
  schedule::FastDivisor by_ranks;
  std::int64_t stored_before[kMaxRanks] = {};  ///< pieces there, by launches before this one
  std::int32_t remote_jobs = 0;                ///< they come first
  std::int32_t job_count = 0;
  std::int32_t unit_bits = 4;  ///< 16-byte units of a head: 2^unit_bits
  sync::Site site = sync::Site::kExchangePieces;
};

struct ExchangeParams : ExchangeHead {
  CopyJob jobs[kMaxJobs] = {};
};

/// What the kernel gets. Parameters cost launch time by their size (22 KB for all jobs), and most
/// layers have few jobs.
template <int kJobs>
struct ExchangeArgs {
  ExchangeHead head;
  CopyJob jobs[kJobs];
};

namespace {

constexpr int kThreads = 256;  // of a team, which copies one tile at a time
constexpr int kTeams = 2;      // of a block
constexpr int kUnroll = 8;     // loads in flight a thread, so that latency does not limit the link
constexpr int kTileUnits = kThreads * kUnroll;
constexpr int kBlockThreads = kTeams * kThreads + 32;

/// Copies one tile of a job, 16 bytes a thread and step: all loads first, then all stores.
__device__ __forceinline__ void copy_tile(const CopyJob& job, int unit_bits, int slot,
                                          std::int32_t row0) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x % kThreads);
  const std::int32_t row_units = job.heads << unit_bits;
  const std::int32_t rows = min(job.tile_rows, job.rows_all - row0);
  const std::int32_t units = rows * row_units;
  const std::int32_t mask = (1 << unit_bits) - 1;
  for (std::int32_t base = thread; base < units; base += kTileUnits) {
    uint4 value[kUnroll];
    std::int64_t place[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const std::int32_t unit = base + i * kThreads;
      if (unit >= units) continue;
      const auto tile_row =
          static_cast<std::int32_t>(job.by_units.quotient(static_cast<std::uint32_t>(unit)));
      const std::int32_t in_row = unit - tile_row * row_units;
      const std::int32_t head = in_row >> unit_bits;
      const std::int32_t column = (in_row & mask) * 8;
      const auto batch = static_cast<std::int32_t>(
          job.by_rows.quotient(static_cast<std::uint32_t>(row0 + tile_row)));
      const std::int32_t row =
          row0 + tile_row - batch * static_cast<std::int32_t>(job.by_rows.divisor());
      value[i] =
          *reinterpret_cast<const uint4*>(job.source + batch * job.source_batch +
                                          row * job.source_row + head * job.source_head + column);
      place[i] = batch * job.target_batch + row * job.target_row + head * job.target_head + column;
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
      if (base + i * kThreads < units) ptx::st_global_v4(job.target[slot] + place[i], value[i]);
  }
}

/// The first block only signals: a release waits until the stores of its SM are done, so on an SM
/// that copies all the while the launch's opening took 35 us. In the other blocks teams of threads
/// copy, and one more warp has a thread that signals, whose waits nobody waits for.
template <int kJobs>
__global__ void __launch_bounds__(kBlockThreads, 1)
    exchange_rows(const __grid_constant__ ExchangeArgs<kJobs> args) {
  __shared__ std::int64_t sent[kTeams][kMaxRanks];
  __shared__ __align__(16) std::uint8_t storage[sizeof(LaunchSignals)];  // no registers for it
  const ExchangeHead& params = args.head;
  ptx::dependents_may_start();
  ptx::dependency_wait();
  if (threadIdx.x >= kTeams * kThreads) {
    auto& signals = *reinterpret_cast<LaunchSignals*>(storage);
    if (threadIdx.x == kTeams * kThreads)
      (new (storage) LaunchSignals(params.signals, params.site))->begin();
    __syncthreads();
    if (threadIdx.x == kTeams * kThreads) {
      signals.tell(sent);
      signals.wait();
    }
    return;
  }
  const int team = static_cast<int>(threadIdx.x / kThreads);
  const bool first = threadIdx.x % kThreads == 0;
  if (first)
    for (int rank = 0; rank < kMaxRanks; ++rank)
      sent[team][rank] = blockIdx.x == 0 && team == 0 ? params.stored_before[rank] : 0;
  const int slot = LaunchSignals::slot_of(params.signals);
  // Tiles for this rank itself take turns with the others: a copy in its own memory then runs while
  // the link is busy.
  std::int32_t remote_job = 0, own_job = params.remote_jobs;
  const std::int64_t teams = (static_cast<std::int64_t>(gridDim.x) - 1) * kTeams;
  std::int64_t place = (static_cast<std::int64_t>(blockIdx.x) - 1) * kTeams + team;
  for (; blockIdx.x > 0 && place < params.places; place += teams) {
    const auto turn =
        static_cast<std::int64_t>(params.by_ranks.quotient(static_cast<std::uint64_t>(place)));
    const auto in_turn = place - turn * params.by_ranks.divisor();
    const bool own = in_turn == params.signals.ranks - 1;
    const std::int64_t tile = own ? turn : turn * (params.signals.ranks - 1) + in_turn;
    if (tile >= params.tiles[own]) continue;
    std::int32_t job = own ? own_job : remote_job;
    const std::int32_t last = own ? params.job_count : params.remote_jobs;
    while (job + 1 < last && args.jobs[job + 1].first_tile <= tile) ++job;
    (own ? own_job : remote_job) = job;
    const CopyJob& j = args.jobs[job];
    const auto row0 = static_cast<std::int32_t>((tile - j.first_tile) * j.tile_rows);
    copy_tile(j, params.unit_bits, slot, row0);
    if (first)
      sent[team][j.rank] +=
          static_cast<std::int64_t>(min(j.tile_rows, j.rows_all - row0)) * j.heads;
  }
  __syncthreads();
}

class JobList {
 public:
  explicit JobList(ExchangeParams& params) : params_(params) {}

  /// Rows [row, row + rows) of heads [head, head + heads) of `source`.
  Result<bool> add(std::int32_t rank, const layout::TensorView& source, std::int64_t row,
                   std::int64_t rows, std::int64_t head, std::int64_t heads,
                   const layout::TensorView& target, std::int64_t target_row,
                   std::int64_t target_first_head, std::int64_t slot_elements) {
    if (rows == 0 || heads == 0) return true;
    if (params_.job_count == kMaxJobs)
      return bad_input("the row segments are too many for one exchange", "segments",
                       std::to_string(params_.job_count), "a table with fewer segments");
    const std::int64_t batch = source.shape[0];
    const std::int64_t row_units = heads << params_.unit_bits;
    if (batch * rows > INT32_MAX || row_units > kTileUnits * 1024)
      return bad_input("an exchange's piece is too large", "rows", std::to_string(batch * rows),
                       "below 2^31 rows, 2^21 units of 16 bytes a row");
    CopyJob& job = params_.jobs[params_.job_count++];
    job.source = static_cast<const std::uint16_t*>(source.data) + source.index(0, row, head);
    auto* const first =
        static_cast<std::uint16_t*>(target.data) + target.index(0, target_row, target_first_head);
    for (int slot = 0; slot < kSlots; ++slot) job.target[slot] = first + slot * slot_elements;
    job.source_batch = source.stride[0];
    job.source_row = source.stride[1];
    job.source_head = source.stride[2];
    job.target_batch = target.stride[0];
    job.target_row = target.stride[1];
    job.target_head = target.stride[2];
    job.by_rows = schedule::FastDivisor(static_cast<std::uint32_t>(rows));
    job.by_units = schedule::FastDivisor(static_cast<std::uint32_t>(row_units));
    job.rows_all = static_cast<std::int32_t>(batch * rows);
    job.tile_rows = static_cast<std::int32_t>(std::max<std::int64_t>(1, kTileUnits / row_units));
    job.heads = static_cast<std::int32_t>(heads);
    job.rank = rank;
    std::int64_t& tiles = params_.tiles[rank == params_.signals.rank];
    job.first_tile = tiles;
    tiles += (job.rows_all + job.tile_rows - 1) / job.tile_rows;
    if (rank != params_.signals.rank) params_.remote_jobs = params_.job_count;
    return true;
  }

 private:
  ExchangeParams& params_;
};

Result<bool> check_view(const layout::TensorView& view, const std::int64_t (&wanted)[4],
                        const char* name) {
  for (int i = 0; i < 4; ++i)
    if (view.shape[i] != wanted[i])
      return bad_input("a tensor does not fit the layout",
                       std::string(name) + ".shape[" + std::to_string(i) + "]",
                       std::to_string(view.shape[i]), std::to_string(wanted[i]));
  if (view.stride[3] != 1 || reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0 ||
      view.stride[0] % 8 != 0 || view.stride[1] % 8 != 0 || view.stride[2] % 8 != 0)
    return bad_input("a tensor does not lie in 16-byte units", name, "its strides",
                     "a dense last dimension, strides of multiples of 8, 16-byte alignment");
  return true;
}

/// Runs `make` for the smallest kernel that holds these jobs.
template <class Make>
auto with_jobs(std::int32_t count, Make&& make) {
  if (count <= 8) return make(std::integral_constant<int, 8>{});
  if (count <= 24) return make(std::integral_constant<int, 24>{});
  return make(std::integral_constant<int, kMaxJobs>{});
}

/// Deals the tiles out and loads the kernel, which the first launch might wait for (launch.cuh).
Result<int> deal(ExchangeParams& params) {
  cudaFuncAttributes attributes{};
  XSTAGE_CUDA_TRY(with_jobs(params.job_count, [&](auto jobs) {
    return cudaFuncGetAttributes(&attributes, exchange_rows<jobs>);
  }));
  int device = 0, sms = 0;
  XSTAGE_CUDA_TRY(cudaGetDevice(&device));
  XSTAGE_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  const std::int64_t ranks = params.signals.ranks, others = ranks > 1 ? ranks - 1 : 1;
  params.by_ranks = schedule::FastDivisor(static_cast<std::uint32_t>(ranks));
  params.places = ranks * std::max(params.tiles[1], (params.tiles[0] + others - 1) / others);
  const std::int64_t grid =
      1 + std::min<std::int64_t>((params.places + kTeams - 1) / kTeams, sms - 1);
  return static_cast<int>(grid);
}

Result<bool> check_memory(const RankMemory& memory) {
  const layout::UlyssesConfig& c = memory.layout.config;
  if (!memory.layout.valid || c.ranks < 1 || c.ranks > kMaxRanks)
    return bad_input("this number of ranks has no exchange", "ranks", std::to_string(c.ranks),
                     "1 to 8, with a valid layout");
  return true;
}

}  // namespace

Result<Exchange> Exchange::inputs(const RankMemory& memory, const layout::TensorView& query,
                                  const layout::TensorView& key, const layout::TensorView& value) {
  if (const auto good = check_memory(memory); !good.ok()) return good.error();
  const layout::UlyssesConfig& c = memory.layout.config;
  auto params = std::make_shared<ExchangeParams>();
  params->signals = signals_of(memory, kExchange);
  params->unit_bits = c.head_dim == 128 ? 4 : 3;
  JobList jobs(*params);
  const auto heads = [&](std::int32_t rank) {
    return layout::heads_of(c.heads, c.kv_heads, c.ranks, rank);
  };
  // Rows of `source` that come to this rank: those of its own that every rank has come from itself.
  const auto rows_from = [&](std::int32_t source, const layout::RowSegment* segments,
                             std::int32_t count) {
    std::int64_t rows = 0;
    for (std::int32_t i = 0; i < count; ++i)
      if (segments[i].rank == source ||
          (segments[i].rank == layout::kAllRanks && source == memory.rank))
        rows += segments[i].end - segments[i].begin;
    return rows;
  };
  const auto push = [&](std::int32_t to, const layout::TensorView& tensor,
                        const layout::RowSegment* segments, std::int32_t count,
                        const layout::Share& wanted, std::int64_t rows, std::uint16_t* target,
                        std::int64_t slot_elements) -> Result<bool> {
    layout::TensorView view = layout::TensorView::contiguous(
        target, layout::ScalarType::kBf16, c.batch, rows, wanted.count, c.head_dim);
    for (std::int32_t i = 0; i < count; ++i) {
      const layout::RowSegment& s = segments[i];
      if (s.rank != memory.rank && (s.rank != layout::kAllRanks || to != memory.rank)) continue;
      const auto added = jobs.add(to, tensor, s.row, s.end - s.begin, wanted.begin, wanted.count,
                                  view, s.begin, 0, slot_elements);
      if (!added.ok()) return added;
    }
    return true;
  };
  const std::int64_t held = layout::rows_received(c.segments, c.segment_count, memory.rank);
  const std::int64_t held_keys =
      layout::rows_received(c.key_segments, c.key_segment_count, memory.rank);
  const std::int64_t query_shape[4] = {c.batch, held, c.heads, c.head_dim};
  const std::int64_t key_shape[4] = {c.batch, held_keys, c.kv_heads, c.head_dim};
  if (const auto good = check_view(query, query_shape, "query"); !good.ok()) return good.error();
  if (!c.keys_replicated) {
    if (const auto good = check_view(key, key_shape, "key"); !good.ok()) return good.error();
    if (const auto good = check_view(value, key_shape, "value"); !good.ok()) return good.error();
  }
  // Each rank begins with its next neighbour, so that nobody is everybody's target.
  const layout::UlyssesLayout& l = memory.layout;
  for (std::int32_t step = 1; step <= c.ranks; ++step) {
    const std::int32_t to = (memory.rank + step) % c.ranks;
    const layout::HeadShare share = heads(to);
    void* const base = memory.symmetric[to];
    const Result<bool> queries =
        push(to, query, c.segments, c.segment_count, share.query, c.rows,
             l.query_row(base, 0, share.query.count, 0, 0, 0), l.query_slot);
    if (!queries.ok()) return queries.error();
    if (c.keys_replicated) continue;
    for (const bool keys : {true, false}) {
      const Result<bool> pushed =
          push(to, keys ? key : value, c.key_segments, c.key_segment_count, share.key, c.key_rows,
               l.key_row(keys ? l.key : l.value, base, 0, share.key.count, 0, 0, 0), l.key_slot);
      if (!pushed.ok()) return pushed.error();
    }
  }
  const layout::HeadShare own = heads(memory.rank);
  for (std::int32_t source = 0; source < c.ranks; ++source) {
    std::int64_t pieces = rows_from(source, c.segments, c.segment_count) * own.query.count;
    if (!c.keys_replicated)
      pieces += 2 * rows_from(source, c.key_segments, c.key_segment_count) * own.key.count;
    params->signals.expected[source] = pieces * c.batch;
  }
  const Result<int> grid = deal(*params);
  if (!grid.ok()) return grid.error();
  Exchange out;
  out.grid_ = grid.value();
  out.params_ = std::move(params);
  return out;
}

namespace {

/// Of an exchange that arrives where a fused launch's output does.
std::shared_ptr<ExchangeParams> output_params(const RankMemory& memory) {
  const layout::UlyssesConfig& c = memory.layout.config;
  auto params = std::make_shared<ExchangeParams>();
  params->signals = signals_of(memory, kAttention);
  params->site = sync::Site::kOutputPieces;
  params->unit_bits = c.head_dim == 128 ? 4 : 3;
  const std::int64_t received = layout::rows_received(c.segments, c.segment_count, memory.rank);
  for (std::int32_t source = 0; source < c.ranks; ++source)
    params->signals.expected[source] =
        c.batch * layout::heads_of(c.heads, c.kv_heads, c.ranks, source).query.count * received;
  return params;
}

}  // namespace

Result<Exchange> Exchange::arrival(const RankMemory& memory) {
  if (const auto good = check_memory(memory); !good.ok()) return good.error();
  const layout::UlyssesConfig& c = memory.layout.config;
  const std::int64_t heads =
      layout::heads_of(c.heads, c.kv_heads, c.ranks, memory.rank).query.count;
  auto params = output_params(memory);
  for (std::int32_t rank = 0; rank < c.ranks; ++rank)
    params->stored_before[rank] =
        c.batch * heads * layout::rows_received(c.segments, c.segment_count, rank);
  const Result<int> grid = deal(*params);
  if (!grid.ok()) return grid.error();
  Exchange out;
  out.grid_ = grid.value();
  out.params_ = std::move(params);
  return out;
}

Result<Exchange> Exchange::output(const RankMemory& memory, const layout::TensorView& output) {
  if (const auto good = check_memory(memory); !good.ok()) return good.error();
  const layout::UlyssesLayout& l = memory.layout;
  const layout::UlyssesConfig& c = l.config;
  auto params = output_params(memory);
  const layout::HeadShare own = layout::heads_of(c.heads, c.kv_heads, c.ranks, memory.rank);
  const std::int64_t shape[4] = {c.batch, c.rows, own.query.count, c.head_dim};
  if (const auto good = check_view(output, shape, "output"); !good.ok()) return good.error();
  JobList jobs(*params);
  for (std::int32_t step = 1; step <= c.ranks; ++step) {
    const std::int32_t to = (memory.rank + step) % c.ranks;
    const layout::TensorView target = output_view(memory, to);
    for (std::int32_t i = 0; i < c.segment_count; ++i) {
      const layout::RowSegment& s = c.segments[i];
      if (s.rank != to && s.rank != layout::kAllRanks) continue;
      const auto added = jobs.add(to, output, s.begin, s.end - s.begin, 0, own.query.count, target,
                                  s.row, own.query.begin, l.output_slot);
      if (!added.ok()) return added.error();
    }
  }
  const Result<int> grid = deal(*params);
  if (!grid.ok()) return grid.error();
  Exchange out;
  out.grid_ = grid.value();
  out.params_ = std::move(params);
  return out;
}

Result<bool> Exchange::launch(void* stream) const {
  return with_jobs(params_->job_count, [&](auto jobs) {
    ExchangeArgs<jobs> args;
    args.head = *params_;
    std::copy_n(params_->jobs, std::min<std::int32_t>(params_->job_count, jobs), args.jobs);
    return launch_dependent(exchange_rows<jobs>, args, grid_, kBlockThreads, 0,
                            static_cast<cudaStream_t>(stream));
  });
}

}  // namespace xstage::ulysses
