// The group on real GPUs.
#include <cuda_runtime.h>

#include <memory>
#include <optional>

#include "cuda/gate.cuh"
#include "cuda/probe/check.cuh"
#include "cuda/ptx/clock.cuh"
#include "cuda/ulysses/attention.hpp"
#include "cuda/ulysses/exchange.hpp"
#include "cuda/ulysses/group.hpp"
#include "cuda/ulysses/peer_access.hpp"
#include "cuda/ulysses/per_destination.hpp"
#include "xstage/layout/check.hpp"
#include "xstage/span.cuh"

namespace xstage::ulysses {
namespace {

using layout::TensorView;

/// The clock of every SM, by its number: one block fits on each at a time.
constexpr std::int64_t kMaxSms = 1024;
constexpr int kStampBytes = 200 * 1024;
__global__ void stamp_clocks(std::uint64_t* out) {
  const std::uint32_t sm = ptx::smid();
  if (sm < kMaxSms) out[sm] = ptx::clock64();
}

__global__ void fill_random(std::uint16_t* out, std::int64_t count, std::uint64_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    // splitmix64, and the sum of four uniform values
    std::uint64_t z = seed + 0x9e3779b97f4a7c15ull * static_cast<std::uint64_t>(i + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    float sum = 0;
    for (int part = 0; part < 4; ++part)
      sum += static_cast<float>((z >> (16 * part)) & 0xffff) * (1.0f / 65536) - 0.5f;
    out[i] = static_cast<std::uint16_t>(__float_as_uint(sum * 1.7320508f) >> 16);
  }
}

/// Device memory of one rank's GPU.
class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  ~Memory() { cudaFree(data_); }

  Result<bool> allocate(std::int64_t bytes) {
    cudaFree(data_);
    data_ = nullptr;
    const auto size = static_cast<std::size_t>(bytes > 0 ? bytes : 16);
    XSTAGE_CUDA_TRY(cudaMalloc(&data_, size));
    XSTAGE_CUDA_TRY(cudaMemset(data_, 0, size));
    return true;
  }
  template <class V = void>
  V* get() const {
    return static_cast<V*>(data_);
  }

 private:
  void* data_ = nullptr;
};

struct Rank {
  Memory symmetric, workspace, records, query, key, value, lengths, local, lse;
  Memory stamps;  ///< before and after: [2][kMaxSms]
  int sms = 0;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  std::optional<Exchange> inputs, push;
  std::optional<Attention> attention, with_lse, fused;
  std::optional<PerDestination> per_destination;
};

class CudaGroup final : public Group {
 public:
  ~CudaGroup() override {
    for (std::int32_t rank = 0; rank < ranks(); ++rank) {
      cudaSetDevice(gpu_of(rank));
      Rank& r = ranks_[static_cast<std::size_t>(rank)];
      if (r.stream != nullptr) cudaStreamDestroy(r.stream);
      if (r.begin != nullptr) cudaEventDestroy(r.begin);
      if (r.end != nullptr) cudaEventDestroy(r.end);
    }
    cudaFreeHost(gate_);
  }

  Result<bool> open(const layout::UlyssesConfig& config, std::uint64_t wait_limit_ns,
                    int ranks_per_gpu) {
    limit_ns_ = wait_limit_ns;
    share_ = ranks_per_gpu;
    if (share_ < 1 || config.ranks % share_ != 0)
      return bad_input("the ranks do not fill their GPUs", "ranks a GPU", std::to_string(share_),
                       "a divisor of the " + std::to_string(config.ranks) + " ranks");
    layout_ = layout::UlyssesLayout::make(config);
    int found = 0;
    XSTAGE_CUDA_TRY(cudaGetDeviceCount(&found));
    if (found * share_ < config.ranks)
      return Error{
          ErrorKind::kUnsupported, "fewer GPUs than the ranks need", "--ranks",
          std::to_string(config.ranks),
          "at most " + std::to_string(found * share_) + ", " + std::to_string(share_) + " a GPU"};
    for (std::int32_t rank = 0; rank < config.ranks; ++rank)
      if (own(rank).query.count == 0)
        return Error{ErrorKind::kUnsupported, "every rank needs a head for the kernels", "--heads",
                     std::to_string(config.heads), "at least " + std::to_string(config.ranks)};
    ranks_.resize(static_cast<std::size_t>(config.ranks));
    XSTAGE_CUDA_TRY(cudaHostAlloc(&gate_, sizeof *gate_, cudaHostAllocPortable));
    for (std::int32_t rank = 0; rank < config.ranks; ++rank)
      if (const Result<bool> opened = open_rank(rank); !opened.ok()) return opened;
    for (std::int32_t rank = 0; rank < config.ranks; ++rank)
      symmetric_.push_back(at(rank).symmetric.get());
    for (std::int32_t rank = 0; rank < config.ranks; ++rank)
      if (const Result<bool> made = prepare(rank); !made.ok()) return made;
    return synchronize();
  }

  Result<bool> set_inputs(const std::vector<RankInput>& inputs,
                          const std::vector<std::int64_t>& key_length) override {
    const layout::UlyssesConfig& c = layout_.config;
    for (std::int32_t rank = 0; rank < ranks(); ++rank) {
      XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(rank)));
      const RankInput& in = inputs[static_cast<std::size_t>(rank)];
      for (const auto& [memory, view] : {std::pair{&at(rank).query, &in.query},
                                         {&at(rank).key, &in.key},
                                         {&at(rank).value, &in.value}}) {
        const std::int64_t count =
            view->shape[0] * view->shape[1] * view->shape[2] * view->shape[3];
        XSTAGE_CUDA_TRY(cudaMemcpy(memory->get(), view->data, static_cast<std::size_t>(count) * 2,
                                   cudaMemcpyHostToDevice));
      }
      std::vector<std::int32_t> lengths;
      for (std::int64_t b = 0; b < c.batch; ++b)
        lengths.push_back(static_cast<std::int32_t>(
            key_length.empty() ? c.key_rows : key_length[static_cast<std::size_t>(b)]));
      XSTAGE_CUDA_TRY(cudaMemcpy(at(rank).lengths.get(), lengths.data(), lengths.size() * 4,
                                 cudaMemcpyHostToDevice));
    }
    return true;
  }

  Result<bool> set_random_inputs(std::uint64_t seed) override {
    const layout::UlyssesConfig& c = layout_.config;
    for (std::int32_t rank = 0; rank < ranks(); ++rank) {
      XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(rank)));
      const std::int64_t query = elements(held(rank), c.heads);
      const std::int64_t key = elements(held_keys(rank), c.kv_heads);
      std::uint64_t number = seed * 64 + static_cast<std::uint64_t>(rank) * 3;
      for (const auto& [memory, count] :
           {std::pair{&at(rank).query, query}, {&at(rank).key, key}, {&at(rank).value, key}})
        fill_random<<<512, 256, 0, at(rank).stream>>>(memory->get<std::uint16_t>(), count,
                                                      number++ << 40);
      XSTAGE_CUDA_TRY(cudaGetLastError());
      const std::vector<std::int32_t> lengths(static_cast<std::size_t>(c.batch),
                                              static_cast<std::int32_t>(c.key_rows));
      XSTAGE_CUDA_TRY(cudaMemcpy(at(rank).lengths.get(), lengths.data(), lengths.size() * 4,
                                 cudaMemcpyHostToDevice));
    }
    return synchronize();
  }

  Result<std::vector<RankOutput>> run(Sequence sequence) override {
    const layout::UlyssesConfig& c = layout_.config;
    const auto slot = static_cast<std::int32_t>((outputs_ + 1) & 1);  // of the launch to come
    for (std::int32_t rank = 0; rank < ranks(); ++rank) {
      XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(rank)));
      XSTAGE_CUDA_TRY(cudaMemsetAsync(
          layout_.output_row(symmetric_[static_cast<std::size_t>(rank)], slot, 1, 0, 0, 0), 0xff,
          static_cast<std::size_t>(layout_.output_slot) * 2, at(rank).stream));
    }
    if (const Result<bool> done = synchronize(); !done.ok()) return done.error();
    for (std::int32_t rank = 0; rank < ranks(); ++rank) {
      XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(rank)));
      if (sequence != Sequence::kLayer)
        if (const Result<bool> launched = launch(rank, Sequence::kInputs); !launched.ok())
          return launched.error();
      if (const Result<bool> launched = launch(rank, sequence); !launched.ok())
        return launched.error();
      if (const Result<bool> launched = at(rank).with_lse->launch(at(rank).stream); !launched.ok())
        return launched.error();
    }
    if (const Result<bool> done = synchronize(); !done.ok()) return done.error();
    if (const Result<bool> in_time = check_waits(); !in_time.ok()) return in_time.error();
    std::vector<RankOutput> out(ranks_.size());
    for (std::int32_t rank = 0; rank < ranks(); ++rank) {
      XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(rank)));
      RankOutput& o = out[static_cast<std::size_t>(rank)];
      const std::int64_t heads = own(rank).query.count;
      o.output.resize(static_cast<std::size_t>(elements(held(rank), c.heads)));
      o.local.resize(static_cast<std::size_t>(elements(c.rows, heads)));
      o.log_sum_exp.resize(static_cast<std::size_t>(c.batch * heads * c.rows));
      const std::uint16_t* const received =
          layout_.output_row(symmetric_[static_cast<std::size_t>(rank)], slot, held(rank), 0, 0, 0);
      XSTAGE_CUDA_TRY(
          cudaMemcpy(o.output.data(), received, o.output.size() * 2, cudaMemcpyDeviceToHost));
      XSTAGE_CUDA_TRY(cudaMemcpy(o.local.data(), at(rank).local.get(), o.local.size() * 2,
                                 cudaMemcpyDeviceToHost));
      XSTAGE_CUDA_TRY(cudaMemcpy(o.log_sum_exp.data(), at(rank).lse.get(), o.log_sum_exp.size() * 4,
                                 cudaMemcpyDeviceToHost));
    }
    return out;
  }

  Result<std::vector<std::vector<Taken>>> time(Sequence sequence, int rounds,
                                               int launches) override {
    std::vector<std::vector<Taken>> out;
    for (int round = 0; round < rounds; ++round) {
      *gate_ = 0;
      for (std::int32_t rank = 0; rank < ranks(); ++rank) {
        Rank& r = at(rank);
        XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(rank)));
        auto* const stamps = r.stamps.get<std::uint64_t>();
        cuda::gate<<<1, 1, 0, r.stream>>>(gate_);
        stamp_clocks<<<r.sms, 1, kStampBytes, r.stream>>>(stamps);
        XSTAGE_CUDA_TRY(cudaEventRecord(r.begin, r.stream));
        for (int i = 0; i < launches; ++i)
          if (const Result<bool> launched = launch(rank, sequence); !launched.ok())
            return launched.error();
        XSTAGE_CUDA_TRY(cudaEventRecord(r.end, r.stream));
        stamp_clocks<<<r.sms, 1, kStampBytes, r.stream>>>(stamps + kMaxSms);
        XSTAGE_CUDA_TRY(cudaGetLastError());
      }
      *static_cast<volatile std::uint32_t*>(gate_) = 1;
      if (const Result<bool> done = synchronize(); !done.ok()) return done.error();
      if (const Result<bool> in_time = check_waits(); !in_time.ok()) return in_time.error();
      std::vector<Taken> of_rank;
      for (const Rank& r : ranks_) {
        float ms = 0;
        XSTAGE_CUDA_TRY(cudaEventElapsedTime(&ms, r.begin, r.end));
        const Result<double> cycles = cycles_of(r);
        if (!cycles.ok()) return cycles.error();
        of_rank.push_back({static_cast<double>(ms) * 1e3 / launches, cycles.value() / launches});
      }
      out.push_back(std::move(of_rank));
    }
    return out;
  }

  Result<std::string> spans() override {
    const layout::UlyssesConfig& c = layout_.config;
    std::vector<std::unique_ptr<SpanCollector>> collectors;
    std::vector<Attention> launches;
    try {
      for (std::int32_t rank = 0; rank < ranks(); ++rank) {
        XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(rank)));
        collectors.push_back(std::make_unique<SpanCollector>(kMaxSms, 256));
        RankMemory memory = memory_of(rank);
        memory.span_words = collectors.back()->buffer().words;
        memory.span_capacity = collectors.back()->buffer().capacity;
        const auto made = Attention::fused(inputs_of(rank), memory);
        if (!made.ok()) return made.error();
        launches.push_back(made.value());
      }
      if (const Result<bool> done = synchronize(); !done.ok()) return done.error();
      ++outputs_;
      for (std::int32_t rank = 0; rank < ranks(); ++rank) {
        XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(rank)));
        const auto launched = launches[static_cast<std::size_t>(rank)].launch(at(rank).stream);
        if (!launched.ok()) return launched.error();
      }
      if (const Result<bool> done = synchronize(); !done.ok()) return done.error();
      if (const Result<bool> in_time = check_waits(); !in_time.ok()) return in_time.error();
      XSTAGE_CUDA_TRY(cudaSetDevice(0));
      return collectors.front()->json({.kernel = "ulysses fused attention",
                                       .bytes = static_cast<std::uint64_t>(64 * 2 * c.head_dim),
                                       .mechanism = "tma_bulk",
                                       .threads = 1,
                                       .both_ways = ranks() > 1});
    } catch (const std::exception& failure) {
      return Error{ErrorKind::kUnsupported, failure.what(), {}, {}, {}};
    }
  }

  const std::vector<sync::WaitRecord>& waits() const override { return waits_; }
  const std::string& gpu_name() const override { return gpu_name_; }
  int driver_version() const override { return driver_; }

 private:
  std::int32_t ranks() const { return static_cast<std::int32_t>(ranks_.size()); }
  int gpu_of(std::int32_t rank) const { return rank / share_; }
  Rank& at(std::int32_t rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  layout::HeadShare own(std::int32_t rank) const {
    const layout::UlyssesConfig& c = layout_.config;
    return layout::heads_of(c.heads, c.kv_heads, c.ranks, rank);
  }
  std::int64_t held(std::int32_t rank) const {
    const layout::UlyssesConfig& c = layout_.config;
    return layout::rows_received(c.segments, c.segment_count, rank);
  }
  std::int64_t held_keys(std::int32_t rank) const {
    const layout::UlyssesConfig& c = layout_.config;
    return c.keys_replicated ? c.key_rows
                             : layout::rows_received(c.key_segments, c.key_segment_count, rank);
  }
  std::int64_t elements(std::int64_t rows, std::int64_t heads) const {
    return layout_.config.batch * rows * heads * layout_.config.head_dim;
  }

  std::vector<std::pair<Memory*, std::int64_t>> sizes_of(std::int32_t rank) {
    const layout::UlyssesConfig& c = layout_.config;
    const std::int64_t heads = own(rank).query.count;
    Rank& r = at(rank);
    return {{&r.symmetric, layout_.symmetric_bytes},
            {&r.workspace, layout_.workspace_bytes},
            {&r.records, kMaxSms * static_cast<std::int64_t>(sizeof(sync::WaitRecord))},
            {&r.query, elements(held(rank), c.heads) * 2},
            {&r.key, elements(held_keys(rank), c.kv_heads) * 2},
            {&r.value, elements(held_keys(rank), c.kv_heads) * 2},
            {&r.lengths, c.batch * 4},
            {&r.stamps, 2 * kMaxSms * 8},
            {&r.local, elements(c.rows, heads) * 2},
            {&r.lse, c.batch * heads * c.rows * 4}};
  }

  Result<bool> open_rank(std::int32_t rank) {
    cudaDeviceProp properties{};
    XSTAGE_CUDA_TRY(cudaGetDeviceProperties(&properties, gpu_of(rank)));
    if (properties.major != 9)
      return Error{ErrorKind::kUnsupported, "the kernels are built for compute capability 9.0",
                   "gpu " + std::to_string(gpu_of(rank)), properties.name, "a Hopper GPU"};
    gpu_name_ = properties.name;
    XSTAGE_CUDA_TRY(cudaDriverGetVersion(&driver_));
    XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(rank)));
    for (std::int32_t peer = 0; peer < ranks(); ++peer) {
      if (gpu_of(peer) == gpu_of(rank)) continue;
      if (const Result<bool> reached = reach_peer(gpu_of(rank), gpu_of(peer)); !reached.ok())
        return reached;
    }
    Rank& r = at(rank);
    XSTAGE_CUDA_TRY(cuda::load_gate());
    XSTAGE_CUDA_TRY(cudaFuncSetAttribute(stamp_clocks, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         kStampBytes));
    r.sms = properties.multiProcessorCount;
    XSTAGE_CUDA_TRY(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
    XSTAGE_CUDA_TRY(cudaEventCreate(&r.begin));
    XSTAGE_CUDA_TRY(cudaEventCreate(&r.end));
    const auto sizes = sizes_of(rank);
    std::int64_t needed = 0;
    for (const auto& [memory, bytes] : sizes) needed += bytes;
    std::size_t free = 0, total = 0;
    XSTAGE_CUDA_TRY(cudaMemGetInfo(&free, &total));
    if (needed > static_cast<std::int64_t>(free))
      return bad_input(
          "the memory of a GPU cannot hold a rank of the layer", "memory",
          std::to_string(needed / 1000000) + " MB needed for rank " + std::to_string(rank),
          "at most " + std::to_string(free / 1000000) + " MB, free on GPU " +
              std::to_string(gpu_of(rank)) + ": a shorter sequence or fewer heads");
    for (const auto& [memory, bytes] : sizes)
      if (const Result<bool> allocated = memory->allocate(bytes); !allocated.ok()) return allocated;
    return true;
  }

  /// Between the two stamps, on average over the SMs.
  static Result<double> cycles_of(const Rank& r) {
    std::vector<std::uint64_t> stamps(2 * kMaxSms);
    XSTAGE_CUDA_TRY(
        cudaMemcpy(stamps.data(), r.stamps.get(), stamps.size() * 8, cudaMemcpyDeviceToHost));
    double sum = 0;
    int found = 0;
    for (std::size_t sm = 0; sm < kMaxSms; ++sm) {
      if (stamps[sm] == 0 || stamps[kMaxSms + sm] <= stamps[sm]) continue;
      sum += static_cast<double>(stamps[kMaxSms + sm] - stamps[sm]);
      ++found;
    }
    return found > 0 ? sum / found : 0.0;
  }

  RankMemory memory_of(std::int32_t rank) {
    RankMemory memory;
    memory.layout = layout_;
    memory.rank = rank;
    memory.symmetric = symmetric_.data();
    memory.workspace = at(rank).workspace.get();
    memory.records = at(rank).records.get<sync::WaitRecord>();
    memory.limit_ns = limit_ns_;
    if (share_ > 1) memory.sms = at(rank).sms / share_;
    return memory;
  }

  TensorView view(const Memory& memory, std::int64_t rows, std::int64_t heads) const {
    const layout::UlyssesConfig& c = layout_.config;
    return TensorView::contiguous(memory.get(), layout::ScalarType::kBf16, c.batch, rows, heads,
                                  c.head_dim);
  }

  /// Of attention, as the exchange leaves them.
  AttentionInputs inputs_of(std::int32_t rank) {
    const std::int64_t heads = layout_.config.kv_heads;
    AttentionInputs in =
        exchanged_inputs(memory_of(rank), view(at(rank).key, held_keys(rank), heads),
                         view(at(rank).value, held_keys(rank), heads));
    in.key_lengths = at(rank).lengths.get<std::int32_t>();
    return in;
  }

  Result<bool> prepare(std::int32_t rank) {
    const layout::UlyssesConfig& c = layout_.config;
    XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(rank)));
    Rank& r = at(rank);
    const RankMemory memory = memory_of(rank);
    const TensorView query = view(r.query, held(rank), c.heads);
    const TensorView key = view(r.key, held_keys(rank), c.kv_heads);
    const TensorView value = view(r.value, held_keys(rank), c.kv_heads);
    const TensorView local = view(r.local, c.rows, own(rank).query.count);
    const AttentionInputs in = inputs_of(rank);
    const auto keep = [](auto& place, auto made) -> Result<bool> {
      if (!made.ok()) return made.error();
      place = made.value();
      return true;
    };
    AttentionInputs with_lse = in;
    with_lse.lse = r.lse.get<float>();
    for (const Result<bool>& kept : {keep(r.inputs, Exchange::inputs(memory, query, key, value)),
                                     keep(r.push, Exchange::output(memory, local)),
                                     keep(r.attention, Attention::local(in, local)),
                                     keep(r.with_lse, Attention::local(with_lse, local)),
                                     keep(r.fused, Attention::fused(in, memory)),
                                     keep(r.per_destination, PerDestination::create(in, memory))})
      if (!kept.ok()) return kept;
    return true;
  }

  Result<bool> launch(std::int32_t rank, Sequence sequence) {
    Rank& r = at(rank);
    if (rank == 0 && sequence != Sequence::kInputs && sequence != Sequence::kAttention) ++outputs_;
    const auto both = [&](const auto& first, const auto& second) -> Result<bool> {
      const Result<bool> launched = first->launch(r.stream);
      return launched.ok() ? second->launch(r.stream) : launched;
    };
    switch (sequence) {
      case Sequence::kInputs: return r.inputs->launch(r.stream);
      case Sequence::kAttention: return r.attention->launch(r.stream);
      case Sequence::kFused: return r.fused->launch(r.stream);
      case Sequence::kPush: return r.push->launch(r.stream);
      case Sequence::kAttentionThenPush: return both(r.attention, r.push);
      case Sequence::kPerDestination:
        return r.per_destination->launch(r.stream, static_cast<int>(outputs_ & 1));
      case Sequence::kLayer: return both(r.inputs, r.fused);
    }
    return true;
  }

  Result<bool> synchronize() {
    for (std::int32_t rank = 0; rank < ranks(); ++rank) {
      XSTAGE_CUDA_TRY(cudaSetDevice(gpu_of(rank)));
      XSTAGE_CUDA_TRY(cudaDeviceSynchronize());
    }
    return true;
  }

  static Error timeout_of(const sync::WaitRecord& r) {
    const bool rows = r.site != sync::Site::kBarrier;
    const std::string whom = rows ? "rows of rank " + std::to_string(r.subject)
                                  : std::string("the other blocks of its launch");
    return {ErrorKind::kTimeout,
            "rank " + std::to_string(r.rank) + " waited " + std::to_string(r.waited_ns / 1000000) +
                " ms for " + whom,
            "count", std::to_string(r.seen), "at least " + std::to_string(r.wanted)};
  }

  Result<bool> check_waits() {
    waits_.clear();
    bool stopped = false;
    for (std::int32_t rank = 0; rank < ranks(); ++rank) {
      std::vector<sync::WaitRecord> records(kMaxSms);
      XSTAGE_CUDA_TRY(cudaMemcpy(records.data(), at(rank).records.get(),
                                 records.size() * sizeof(sync::WaitRecord),
                                 cudaMemcpyDeviceToHost));
      for (const sync::WaitRecord& record : records) {
        if (record.end == sync::WaitEnd::kNone) continue;
        waits_.push_back(record);
        stopped = true;
      }
    }
    if (!stopped) return true;
    for (const sync::WaitRecord& r : waits_)
      if (r.end == sync::WaitEnd::kLimit) return timeout_of(r);
    return Error{ErrorKind::kTimeout, "a rank waited too long for another", {}, {}, {}};
  }

  layout::UlyssesLayout layout_;
  std::uint64_t limit_ns_ = 0;
  int share_ = 1;  ///< ranks a GPU
  std::vector<Rank> ranks_;
  std::vector<void*> symmetric_;
  std::vector<sync::WaitRecord> waits_;
  std::uint32_t* gate_ = nullptr;
  std::uint64_t outputs_ = 0;  // launches that sent output: the epoch of its signals
  std::string gpu_name_;
  int driver_ = 0;
};

}  // namespace

Result<std::unique_ptr<Group>> Group::create(const layout::UlyssesConfig& config,
                                             std::uint64_t wait_limit_ns, int ranks_per_gpu) {
  auto group = std::make_unique<CudaGroup>();
  if (const Result<bool> opened = group->open(config, wait_limit_ns, ranks_per_gpu); !opened.ok())
    return opened.error();
  return std::unique_ptr<Group>(std::move(group));
}

}  // namespace xstage::ulysses
