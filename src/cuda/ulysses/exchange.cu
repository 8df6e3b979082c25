#include "cuda/ulysses/exchange.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <new>
#include <string>
#include <type_traits>

#include "cuda/probe/check.cuh"
#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/bulk_load.cuh"
#include "cuda/ptx/dependent.cuh"
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
  schedule::FastDivisor by_rows, by_pieces;
  std::int32_t rows_all = 0;     ///< batch · rows
  std::int32_t tile_rows = 1;    ///< rows a tile
  std::int32_t row_bytes = 0;    ///< of these heads
  std::int32_t piece_bytes = 0;  ///< that lie together on both sides: a row, or a head of it
  std::int32_t heads = 0;
  std::int32_t rank = 0;
  bool source_flat = false, target_flat = false;  ///< rows follow each other without gaps
};

inline constexpr int kMaxJobs = 160;

/// Of a launch, but for its jobs.
struct ExchangeHead {
  Signals signals;
  std::int64_t tiles[2] = {};  ///< for other ranks, for this one
  std::int64_t places = 0;     ///< turns of one tile for each rank; some at the end are empty
  std::int64_t teams = 1;      ///< blocks that copy
  /// Places claimed behind the first of every team; zero between launches.
  unsigned long long* claims = nullptr;
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

// One stage: whole rows of a tile. A claim is about 1 us on its way at the clock of a busy GPU, in
// which an SM sends 5.6 KB; rows of half a stage and more fill one, so no tile is below 6 KB.
constexpr int kTileBytes = 12 * 1024;
constexpr int kStages = 8;
constexpr int kLag = 5;  // tiles whose stores may still read their stage
constexpr int kBlockThreads = 96;

/// What a stage holds.
struct TileNote {
  std::int32_t job = 0;
  std::int32_t row0 = 0;
  std::int32_t rows = 0;  ///< 0: no more tiles
};

struct ExchangeShared {
  alignas(128) std::uint8_t tile[kStages][kTileBytes];
  TileNote note[kStages];
  std::uint64_t full[kStages], empty[kStages];
  std::int64_t sent[1][kMaxRanks];
  alignas(16) std::uint8_t signals[sizeof(LaunchSignals)];
};

/// The tiles of one block, for its loader's warp. Blocks claim them one after the other, since SMs
/// do not get equal shares of the link; each claim is under way while the tile before it is loaded.
/// Tiles for this rank itself take turns with the others: a copy in its own memory then runs while
/// the link is busy.
template <int kJobs>
struct Walk {
  const ExchangeArgs<kJobs>& args;
  std::int64_t place;
  unsigned long long claimed = 0;  // in the first lane, once the claim is back
  bool begun = false;
  std::int32_t remote_job = 0, own_job = args.head.remote_jobs;
  TileNote note;

  __device__ explicit Walk(const ExchangeArgs<kJobs>& a)
      : args(a), place(static_cast<std::int64_t>(blockIdx.x) - 1) {
    if (place < 0 || place >= a.head.teams) place = a.head.places;
  }

  /// False, and no rows, behind the last tile.
  __device__ bool next() {
    const ExchangeHead& head = args.head;
    note.rows = 0;
    while (true) {
      if (begun) take_claim();
      begun = true;
      if (place >= head.places) return false;
      if (threadIdx.x % 32 == 0) claimed = atomicAdd(head.claims, 1ull);
      const auto turn =
          static_cast<std::int64_t>(head.by_ranks.quotient(static_cast<std::uint64_t>(place)));
      const auto in_turn = place - turn * head.by_ranks.divisor();
      const bool own = in_turn == head.signals.ranks - 1;
      const std::int64_t tile = own ? turn : turn * (head.signals.ranks - 1) + in_turn;
      if (tile >= head.tiles[own]) continue;
      std::int32_t at = own ? own_job : remote_job;
      const std::int32_t last = own ? head.job_count : head.remote_jobs;
      while (at + 1 < last && args.jobs[at + 1].first_tile <= tile) ++at;
      (own ? own_job : remote_job) = at;
      const CopyJob& job = args.jobs[at];
      note.job = at;
      note.row0 = static_cast<std::int32_t>((tile - job.first_tile) * job.tile_rows);
      note.rows = min(job.tile_rows, job.rows_all - note.row0);
      return true;
    }
  }

 private:
  /// There are as many claims as places: for each behind the teams' first ones, and one in vain of
  /// every team. The last of them leaves the word as it was.
  __device__ void take_claim() {
    if (threadIdx.x % 32 == 0 && static_cast<std::int64_t>(claimed) == args.head.places - 1)
      *args.head.claims = 0;
    place = args.head.teams + static_cast<std::int64_t>(__shfl_sync(0xffffffff, claimed, 0));
  }
};

/// Calls visit(element offset in the tensor, bytes into the tile, bytes) for what lies together,
/// lanes in turn.
template <class Visit>
__device__ __forceinline__ void for_each_part(const CopyJob& j, std::int32_t row0,
                                              std::int32_t rows, bool flat, std::int64_t of_batch,
                                              std::int64_t of_row, std::int64_t of_head,
                                              Visit&& visit) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const auto offset = [&](std::int32_t row, std::int32_t head) {
    const auto batch =
        static_cast<std::int32_t>(j.by_rows.quotient(static_cast<std::uint32_t>(row)));
    return batch * of_batch +
           (row - batch * static_cast<std::int32_t>(j.by_rows.divisor())) * of_row + head * of_head;
  };
  if (flat) {
    if (lane == 0) visit(offset(row0, 0), 0, rows * j.row_bytes);
    return;
  }
  const auto pieces = static_cast<std::int32_t>(j.by_pieces.divisor());
  for (std::int32_t i = lane; i < rows * pieces; i += 32) {
    const auto row = static_cast<std::int32_t>(j.by_pieces.quotient(static_cast<std::uint32_t>(i)));
    visit(offset(row0 + row, i - row * pieces), i * j.piece_bytes, j.piece_bytes);
  }
}

template <int kJobs>
__device__ __forceinline__ void load_tiles(const ExchangeArgs<kJobs>& args,
                                           ExchangeShared& shared) {
  Walk<kJobs> walk(args);
  bool more = true;
  for (std::uint32_t n = 0; more; ++n) {
    more = walk.next();
    const std::uint32_t stage = n % kStages;
    if (n >= kStages)
      while (!ptx::mbarrier_try_wait(&shared.empty[stage], (n / kStages + 1) & 1)) {
      }
    const CopyJob& j = args.jobs[walk.note.job];
    if (threadIdx.x % 32 == 0) {
      shared.note[stage] = walk.note;
      ptx::mbarrier_arrive_expect(&shared.full[stage],
                                  static_cast<std::uint32_t>(walk.note.rows * j.row_bytes));
    }
    __syncwarp();
    if (!more) break;
    for_each_part(j, walk.note.row0, walk.note.rows, j.source_flat, j.source_batch, j.source_row,
                  j.source_head, [&](std::int64_t from, std::int32_t at, std::int32_t bytes) {
                    ptx::bulk_load(shared.tile[stage] + at, j.source + from,
                                   static_cast<std::uint32_t>(bytes), &shared.full[stage]);
                  });
  }
}

template <int kJobs>
__device__ __forceinline__ void store_tiles(const ExchangeArgs<kJobs>& args,
                                            ExchangeShared& shared) {
  const int slot = LaunchSignals::slot_of(args.head.signals);
  for (std::uint32_t n = 0;; ++n) {
    const std::uint32_t stage = n % kStages;
    while (!ptx::mbarrier_try_wait(&shared.full[stage], (n / kStages) & 1)) {
    }
    const TileNote note = shared.note[stage];
    if (note.rows == 0) break;
    const CopyJob& j = args.jobs[note.job];
    std::uint16_t* const target = j.target[slot];
    for_each_part(j, note.row0, note.rows, j.target_flat, j.target_batch, j.target_row,
                  j.target_head, [&](std::int64_t to, std::int32_t at, std::int32_t bytes) {
                    ptx::bulk_store(target + to, shared.tile[stage] + at,
                                    static_cast<std::uint32_t>(bytes));
                  });
    ptx::bulk_commit();
    if (threadIdx.x % 32 == 0)
      shared.sent[0][j.rank] += static_cast<std::int64_t>(note.rows) * j.heads;
    if (n < kLag) continue;
    ptx::bulk_wait_source_but<kLag>();
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&shared.empty[(n - kLag) % kStages]);
  }
  ptx::bulk_wait_done();
  ptx::fence_proxy_async();
}

/// The first block only signals: a release waits until the stores of its SM are done, so on an SM
/// that copies all the while the launch's opening took 35 us. In the others one warp loads tiles
/// into a ring in shared memory, one stores them at their owners, and one thread signals.
template <int kJobs>
__global__ void __launch_bounds__(kBlockThreads, 1)
    exchange_rows(const __grid_constant__ ExchangeArgs<kJobs> args) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<ExchangeShared*>(memory);
  ptx::dependents_may_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&shared.full[i], 1);
      ptx::mbarrier_init(&shared.empty[i], 1);
    }
    ptx::fence_mbarrier_init();
    for (int rank = 0; rank < kMaxRanks; ++rank)
      shared.sent[0][rank] = blockIdx.x == 0 ? args.head.stored_before[rank] : 0;
  }
  __syncthreads();
  ptx::dependency_wait();
  auto& signals = *reinterpret_cast<LaunchSignals*>(shared.signals);
  const bool signaller = threadIdx.x == 64;
  if (threadIdx.x < 32)
    load_tiles(args, shared);
  else if (threadIdx.x < 64)
    store_tiles(args, shared);
  else if (signaller)
    (new (shared.signals) LaunchSignals(args.head.signals, args.head.site))->begin();
  __syncthreads();
  if (signaller) {
    signals.tell(shared.sent);
    signals.wait();
  }
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
    const std::int64_t dim = std::int64_t{8} << params_.unit_bits;
    const std::int64_t most = kTileBytes / 2 / dim;
    if (heads > most) {
      const auto first = add(rank, source, row, rows, head, most, target, target_row,
                             target_first_head, slot_elements);
      if (!first.ok()) return first;
      return add(rank, source, row, rows, head + most, heads - most, target, target_row,
                 target_first_head + most, slot_elements);
    }
    if (batch * rows > INT32_MAX)
      return bad_input("an exchange's piece is too large", "rows", std::to_string(batch * rows),
                       "below 2^31 rows");
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
    job.rows_all = static_cast<std::int32_t>(batch * rows);
    job.row_bytes = static_cast<std::int32_t>(2 * heads * dim);
    job.tile_rows = std::max(1, kTileBytes / job.row_bytes);
    const bool source_dense = heads == 1 || job.source_head == dim;
    const bool target_dense = heads == 1 || job.target_head == dim;
    const bool whole = source_dense && target_dense;
    job.piece_bytes = whole ? job.row_bytes : static_cast<std::int32_t>(2 * dim);
    job.by_pieces = schedule::FastDivisor(whole ? 1 : static_cast<std::uint32_t>(heads));
    const auto flat = [&](bool dense, std::int64_t of_row, std::int64_t of_batch) {
      return dense && of_row == heads * dim && (batch == 1 || of_batch == rows * of_row);
    };
    job.source_flat = flat(source_dense, job.source_row, job.source_batch);
    job.target_flat = flat(target_dense, job.target_row, job.target_batch);
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
Result<int> deal(ExchangeParams& params, int most) {
  cudaFuncAttributes attributes{};
  XSTAGE_CUDA_TRY(with_jobs(params.job_count, [&](auto jobs) {
    const cudaError_t found = cudaFuncGetAttributes(&attributes, exchange_rows<jobs>);
    if (found != cudaSuccess) return found;
    return cudaFuncSetAttribute(exchange_rows<jobs>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(sizeof(ExchangeShared)));
  }));
  int device = 0, sms = 0;
  XSTAGE_CUDA_TRY(cudaGetDevice(&device));
  XSTAGE_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  if (most > 0) sms = std::min(sms, most);
  const std::int64_t ranks = params.signals.ranks, others = ranks > 1 ? ranks - 1 : 1;
  params.by_ranks = schedule::FastDivisor(static_cast<std::uint32_t>(ranks));
  params.places = ranks * std::max(params.tiles[1], (params.tiles[0] + others - 1) / others);
  const std::int64_t grid = 1 + std::min<std::int64_t>(params.places, sms - 1);
  params.teams = grid - 1;
  return static_cast<int>(grid);
}

void set_words(const RankMemory& memory, Launch launch, ExchangeParams& params) {
  params.signals = signals_of(memory, launch);
  params.claims = reinterpret_cast<unsigned long long*>(
      memory.layout.word(memory.workspace, launch, layout::UlyssesWord::kClaims));
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
  set_words(memory, kExchange, *params);
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
  const Result<int> grid = deal(*params, memory.sms);
  if (!grid.ok()) return grid.error();
  Exchange out;
  out.grid_ = grid.value();
  out.early_ = memory.sms == 0;
  out.params_ = std::move(params);
  return out;
}

namespace {

/// Of an exchange that arrives where a fused launch's output does.
std::shared_ptr<ExchangeParams> output_params(const RankMemory& memory) {
  const layout::UlyssesConfig& c = memory.layout.config;
  auto params = std::make_shared<ExchangeParams>();
  set_words(memory, kAttention, *params);
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
  const Result<int> grid = deal(*params, memory.sms);
  if (!grid.ok()) return grid.error();
  Exchange out;
  out.grid_ = grid.value();
  out.early_ = memory.sms == 0;
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
  const Result<int> grid = deal(*params, memory.sms);
  if (!grid.ok()) return grid.error();
  Exchange out;
  out.grid_ = grid.value();
  out.early_ = memory.sms == 0;
  out.params_ = std::move(params);
  return out;
}

Result<bool> Exchange::launch(void* stream) const {
  return with_jobs(params_->job_count, [&](auto jobs) {
    ExchangeArgs<jobs> args;
    args.head = *params_;
    std::copy_n(params_->jobs, std::min<std::int32_t>(params_->job_count, jobs), args.jobs);
    return launch_dependent(exchange_rows<jobs>, args, grid_, kBlockThreads, sizeof(ExchangeShared),
                            early_, static_cast<cudaStream_t>(stream));
  });
}

}  // namespace xstage::ulysses
