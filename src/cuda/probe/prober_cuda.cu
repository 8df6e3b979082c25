// The prober on real GPUs: one process drives all of them.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "cuda/comm/comm.hpp"
#include "cuda/probe/check.cuh"
#include "cuda/probe/kernels.hpp"
#include "cuda/probe/prober.hpp"

namespace xstage::probe {
namespace {

constexpr std::uint64_t kSlotBytes = 2ull << 20;
constexpr std::uint64_t kDeadlineNs = 2'000'000'000;
// More than half of an SM's shared memory: one producer an SM, also where blocks are small.
constexpr unsigned kDynamicShared = 120 * 1024;

constexpr int kChannels = 96;  // of the litmus: one block each, all resident
constexpr int kFlags = kChannels * sizeof(comm::LitmusWords) / sizeof(comm::Flag);
constexpr int kWords = 4096;
constexpr int kStopWord = 2, kRecordWords = 16;  // of the litmus, among the words
static_assert(kRecordWords + kChannels * sizeof(sync::WaitRecord) / 8 <= kWords);
constexpr int kTripRounds = 1000;

struct Gpu {
  int device = 0;
  cudaStream_t stream = nullptr;
  std::uint8_t* data = nullptr;  // one region of `sms` slots per source GPU
  Control* control = nullptr;
  ProducerRecord* records = nullptr;
  std::uint8_t* rings = nullptr;
  std::int16_t* slot_of_sm = nullptr;
  comm::Flag* flags = nullptr;             // kFlags, written by peers and by this GPU
  std::uint64_t* words = nullptr;          // kWords results of small kernels
  ProducerRecord* host_records = nullptr;  // pinned, like the next
  std::uint8_t* host_rings = nullptr;
  cudaEvent_t events[2] = {};
  double clock_ghz = 0;
};

std::size_t ring_bytes(int sms) {
  return static_cast<std::size_t>(sms) *
         std::max(sizeof(std::uint32_t) * kRing, sizeof(RoundRecord) * kMaxRounds);
}

double median_clock(const std::vector<ProducerRecord>& producers) {
  std::vector<double> ghz;
  for (const ProducerRecord& r : producers)
    if (r.timer_end > r.timer_begin)
      ghz.push_back(static_cast<double>(r.clock_end - r.clock_begin) /
                    static_cast<double>(r.timer_end - r.timer_begin));
  if (ghz.empty()) return 0;
  std::nth_element(ghz.begin(), ghz.begin() + ghz.size() / 2, ghz.end());
  return ghz[ghz.size() / 2];
}

/// Every kernel that is launched with dynamic shared memory.
std::vector<const void*> all_kernels() {
  std::vector<const void*> out{window_kernel_bulk(), aligned_kernel_bulk(), split_kernel()};
  for (const int width : {4, 8, 16})
    for (const int threads : {64, 128, 256, 512, 1024})
      for (const void* kernel :
           {window_kernel_lsu(width, threads), aligned_kernel_lsu(width, threads)})
        if (kernel != nullptr) out.push_back(kernel);
  return out;
}

class CudaProber final : public Prober {
 public:
  ~CudaProber() override {
    for (Gpu& g : gpus_) {
      cudaSetDevice(g.device);
      cudaFree(g.data);
      cudaFree(g.control);
      cudaFree(g.records);
      cudaFree(g.rings);
      cudaFree(g.slot_of_sm);
      cudaFree(g.flags);
      cudaFree(g.words);
      for (cudaEvent_t event : g.events)
        if (event != nullptr) cudaEventDestroy(event);
      cudaFreeHost(g.host_records);
      cudaFreeHost(g.host_rings);
      if (g.stream != nullptr) cudaStreamDestroy(g.stream);
    }
  }

  const ProbeNode& node() const override { return node_; }

  Result<bool> open(const std::vector<int>& devices) {
    for (const int device : devices) {
      cudaDeviceProp prop{};
      XSTAGE_CUDA_TRY(cudaGetDeviceProperties(&prop, device));
      if (prop.major != 9)
        return Error{ErrorKind::kUnsupported, "the kernels are built for compute capability 9.0",
                     "gpu " + std::to_string(device),
                     std::string(prop.name) + ", " + std::to_string(prop.major) + "." +
                         std::to_string(prop.minor),
                     "9.0"};
      if (node_.gpus != 0 && prop.multiProcessorCount != node_.sms)
        return Error{ErrorKind::kUnsupported, "the GPUs of one profile must be alike",
                     "gpu " + std::to_string(device),
                     std::to_string(prop.multiProcessorCount) + " SMs", std::to_string(node_.sms)};
      int khz = 0;
      XSTAGE_CUDA_TRY(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device));
      node_.gpu_name = prop.name;
      node_.sms = prop.multiProcessorCount;
      node_.nominal_ghz = khz * 1e-6;
      ++node_.gpus;
    }
    for (const int device : devices) {
      Gpu g;
      g.device = device;
      g.clock_ghz = node_.nominal_ghz;
      gpus_.push_back(g);
    }
    for (Gpu& g : gpus_) {
      XSTAGE_CUDA_TRY(cudaSetDevice(g.device));
      for (const Gpu& peer : gpus_) {
        if (peer.device == g.device) continue;
        int can = 0;
        XSTAGE_CUDA_TRY(cudaDeviceCanAccessPeer(&can, g.device, peer.device));
        if (!can)
          return Error{ErrorKind::kUnsupported, "these two GPUs cannot reach each other's memory",
                       "pair", std::to_string(g.device) + " -> " + std::to_string(peer.device),
                       "a pair with peer access (xstage doctor says why not)"};
        const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer.device, 0);
        if (enabled == cudaErrorPeerAccessAlreadyEnabled)
          cudaGetLastError();
        else if (enabled != cudaSuccess)
          return cuda_error(enabled, "cudaDeviceEnablePeerAccess");
      }
      XSTAGE_CUDA_TRY(cudaStreamCreateWithFlags(&g.stream, cudaStreamNonBlocking));
      XSTAGE_CUDA_TRY(cudaMalloc(&g.data, kSlotBytes * node_.sms * gpus_.size()));
      XSTAGE_CUDA_TRY(cudaMemset(g.data, 0, kSlotBytes * node_.sms * gpus_.size()));
      XSTAGE_CUDA_TRY(cudaMalloc(&g.control, sizeof(Control)));
      XSTAGE_CUDA_TRY(cudaMalloc(&g.records, sizeof(ProducerRecord) * node_.sms));
      XSTAGE_CUDA_TRY(cudaMalloc(&g.rings, ring_bytes(node_.sms)));
      XSTAGE_CUDA_TRY(cudaMalloc(&g.slot_of_sm, sizeof(std::int16_t) * node_.sms));
      XSTAGE_CUDA_TRY(cudaMalloc(&g.flags, sizeof(comm::Flag) * kFlags));
      XSTAGE_CUDA_TRY(cudaMalloc(&g.words, sizeof(std::uint64_t) * kWords));
      for (cudaEvent_t& event : g.events) XSTAGE_CUDA_TRY(cudaEventCreate(&event));
      XSTAGE_CUDA_TRY(cudaMallocHost(&g.host_records, sizeof(ProducerRecord) * node_.sms));
      XSTAGE_CUDA_TRY(cudaMallocHost(&g.host_rings, ring_bytes(node_.sms)));
      for (const void* kernel : all_kernels())
        XSTAGE_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             kDynamicShared));
      XSTAGE_CUDA_TRY(cudaDeviceSynchronize());
    }
    return true;
  }

  Result<std::vector<FlowRecords>> run(const BurstRun& run) override {
    if (Result<bool> fine = check(run); !fine) return fine.error();
    for (const Flow& flow : run.flows) {
      Gpu& g = gpus_[flow.source];
      XSTAGE_CUDA_TRY(cudaSetDevice(g.device));
      XSTAGE_CUDA_TRY(cudaMemsetAsync(g.control, 0, sizeof(Control), g.stream));
      XSTAGE_CUDA_TRY(cudaMemsetAsync(g.records, 0, sizeof(ProducerRecord) * node_.sms, g.stream));
      if (!flow.sms.empty()) {
        std::vector<std::int16_t> slots(node_.sms, -1);
        for (std::size_t i = 0; i < flow.sms.size(); ++i)
          slots[flow.sms[i]] = static_cast<std::int16_t>(i);
        XSTAGE_CUDA_TRY(cudaMemcpyAsync(g.slot_of_sm, slots.data(), sizeof(slots[0]) * slots.size(),
                                        cudaMemcpyHostToDevice, g.stream));
      }
    }
    // No GPU may write to a mailbox that its owner has not zeroed yet.
    for (const Flow& flow : run.flows)
      XSTAGE_CUDA_TRY(cudaStreamSynchronize(gpus_[flow.source].stream));
    for (const Flow& flow : run.flows)
      if (Result<bool> launched = launch(run, flow); !launched) return launched.error();
    for (const Flow& flow : run.flows)
      XSTAGE_CUDA_TRY(cudaStreamSynchronize(gpus_[flow.source].stream));
    std::vector<FlowRecords> out;
    for (const Flow& flow : run.flows) {
      Result<FlowRecords> records = collect(run, flow);
      if (!records) return records.error();
      out.push_back(std::move(records).value());
    }
    return out;
  }

  Result<double> copy(CopyKind kind, int from, int to) override {
    Gpu& g = gpus_[from];
    const std::size_t bytes = kSlotBytes * node_.sms;
    std::uint8_t* target = gpus_[to].data + kSlotBytes * node_.sms * static_cast<std::size_t>(from);
    constexpr int kTimes = 12;
    XSTAGE_CUDA_TRY(cudaSetDevice(g.device));
    for (int i = -2; i < kTimes; ++i) {
      if (i == 0) XSTAGE_CUDA_TRY(cudaEventRecord(g.events[0], g.stream));
      if (kind == CopyKind::kCopyEngine)
        XSTAGE_CUDA_TRY(
            cudaMemcpyPeerAsync(target, gpus_[to].device, g.data, g.device, bytes, g.stream));
      else
        XSTAGE_CUDA_TRY(comm::launch_copy(g.data, target, bytes, node_.sms, g.stream));
    }
    XSTAGE_CUDA_TRY(cudaEventRecord(g.events[1], g.stream));
    XSTAGE_CUDA_TRY(cudaEventSynchronize(g.events[1]));
    float ms = 0;
    XSTAGE_CUDA_TRY(cudaEventElapsedTime(&ms, g.events[0], g.events[1]));
    return static_cast<double>(bytes) * kTimes / (ms * 1e6);
  }

  Result<std::vector<double>> round_trip(int from, int to, std::uint32_t payload_bytes) override {
    const int sides[2] = {from, to};
    if (Result<bool> cleared = clear_flags({from, to}); !cleared) return cleared.error();
    for (const int side : {1, 0}) {
      Gpu& g = gpus_[sides[side]];
      Gpu& peer = gpus_[sides[1 - side]];
      comm::RoundTripArgs a{};
      a.own = g.flags;
      a.peer = peer.flags;
      a.payload = peer.data + kSlotBytes * node_.sms * static_cast<std::size_t>(sides[side]);
      a.payload_bytes = payload_bytes;
      a.rounds = kTripRounds;
      a.first = side == 0;
      a.deadline_ns = kDeadlineNs;
      a.cycles = g.words;
      a.failed = g.words + kWords - 1;
      XSTAGE_CUDA_TRY(cudaSetDevice(g.device));
      XSTAGE_CUDA_TRY(comm::launch_round_trip(a, g.stream));
    }
    std::vector<std::uint64_t> cycles(kWords);
    for (const int side : {1, 0}) {
      Gpu& g = gpus_[sides[side]];
      XSTAGE_CUDA_TRY(cudaStreamSynchronize(g.stream));
      XSTAGE_CUDA_TRY(cudaMemcpy(cycles.data(), g.words, sizeof(std::uint64_t) * kWords,
                                 cudaMemcpyDeviceToHost));
      if (cycles.back() != 0) return waited_in_vain("flag round trip", sides[side]);
    }
    std::vector<double> out;
    for (int i = kTripRounds / 10; i < kTripRounds; ++i)
      out.push_back(static_cast<double>(cycles[i]) / (gpus_[from].clock_ghz * 1e3));
    std::sort(out.begin(), out.end());
    return out;
  }

  Result<LitmusResult> litmus(const LitmusRun& run) override {
    if (node_.gpus < 2)
      return Error{ErrorKind::kUnsupported, "message passing needs two GPUs", "GPUs", "1", "2"};
    const int rounds = static_cast<int>((run.rounds + kChannels - 1) / kChannels);
    if (Result<bool> cleared = clear_flags({0, 1}); !cleared) return cleared.error();
    for (const int side : {0, 1}) {
      Gpu& g = gpus_[side];
      comm::LitmusArgs a{};
      for (const int gpu : {0, 1}) {
        a.payload[gpu] = gpus_[gpu].data;
        a.words[gpu] = reinterpret_cast<comm::LitmusWords*>(gpus_[gpu].flags);
        a.stop[gpu] = gpus_[gpu].words + kStopWord;
      }
      a.records = reinterpret_cast<sync::WaitRecord*>(g.words + kRecordWords);
      a.self = side;
      a.channels = kChannels;
      a.payload_bytes = run.payload_bytes;
      a.rounds = rounds;
      a.store = run.mechanism == Mechanism::kTmaBulk   ? comm::LitmusStore::kTmaBulk
                : run.mechanism == Mechanism::kStoreV4 ? comm::LitmusStore::kV4
                : run.mechanism == Mechanism::kStoreV2 ? comm::LitmusStore::kV2
                                                       : comm::LitmusStore::kB32;
      const bool right = run.signal == LitmusSignal::kRelease;
      a.signal = right                                ? comm::LitmusSignal::kRelease
                 : run.signal == LitmusSignal::kEarly ? comm::LitmusSignal::kEarly
                                                      : comm::LitmusSignal::kRelaxed;
      // A wrong signal overtakes its payload where the link is busy: no long pauses then.
      a.max_delay_ns = right ? 2000 : run.signal == LitmusSignal::kEarly ? 1000 : 100;
      a.seed = run.seed + static_cast<std::uint64_t>(side) * 1'000'003;
      a.deadline_ns = kDeadlineNs;
      a.stale = reinterpret_cast<unsigned long long*>(g.words);
      a.stale_messages = a.stale + 1;
      XSTAGE_CUDA_TRY(cudaSetDevice(g.device));
      XSTAGE_CUDA_TRY(cudaEventRecord(g.events[0], g.stream));
      XSTAGE_CUDA_TRY(comm::launch_litmus(a, g.stream));
      XSTAGE_CUDA_TRY(cudaEventRecord(g.events[1], g.stream));
    }
    LitmusResult out;
    out.messages = 2ll * rounds * kChannels;
    for (const int side : {0, 1}) {
      Gpu& g = gpus_[side];
      std::uint64_t words[3] = {};
      static_assert(kStopWord == 2);
      XSTAGE_CUDA_TRY(cudaSetDevice(g.device));
      XSTAGE_CUDA_TRY(cudaStreamSynchronize(g.stream));
      XSTAGE_CUDA_TRY(cudaMemcpy(words, g.words, sizeof words, cudaMemcpyDeviceToHost));
      if (words[kStopWord] != 0) return waited_in_vain("litmus", side);
      float ms = 0;
      XSTAGE_CUDA_TRY(cudaEventElapsedTime(&ms, g.events[0], g.events[1]));
      out.stale_words += words[0];
      out.stale_messages += words[1];
      out.seconds = std::max(out.seconds, ms * 1e-3);
    }
    return out;
  }

  Result<SplitResult> split(const SplitRun& run) override {
    Gpu& g = gpus_[run.source];
    if (Result<bool> cleared = clear_flags({run.source}); !cleared) return cleared.error();
    XSTAGE_CUDA_TRY(cudaSetDevice(g.device));
    XSTAGE_CUDA_TRY(cudaMemsetAsync(g.control, 0, sizeof(Control), g.stream));
    auto* share = reinterpret_cast<std::uint32_t*>(g.rings);
    if (!run.tiles_of_sm.empty()) {
      std::vector<std::uint32_t> shares(run.tiles_of_sm.begin(), run.tiles_of_sm.end());
      shares.resize(node_.sms);
      XSTAGE_CUDA_TRY(cudaMemcpyAsync(share, shares.data(), sizeof(shares[0]) * shares.size(),
                                      cudaMemcpyHostToDevice, g.stream));
    } else {
      share = nullptr;
    }
    BurstArgs a{};
    a.control = g.control;
    a.self = run.source;
    a.target[0] =
        gpus_[run.target].data + kSlotBytes * node_.sms * static_cast<std::size_t>(run.source);
    a.target_count = 1;
    a.slot_stride = kSlotBytes;
    a.slot_bytes = kSlotBytes;
    a.producers = node_.sms;
    a.bytes = run.bytes;
    a.gap_cycles = static_cast<std::uint32_t>(std::lround(run.work_us * g.clock_ghz * 1e3));
    a.lead_ns = 3000;
    a.deadline_ns = kDeadlineNs;
    auto tiles = static_cast<std::uint32_t>(run.tiles);
    void* arguments[] = {&a, &g.records, &share, &tiles, &g.words};
    XSTAGE_CUDA_TRY(cudaLaunchCooperativeKernel(split_kernel(), dim3(node_.sms), dim3(run.threads),
                                                arguments, kDynamicShared, g.stream));
    XSTAGE_CUDA_TRY(cudaMemcpyAsync(g.host_records, g.records, sizeof(ProducerRecord) * node_.sms,
                                    cudaMemcpyDeviceToHost, g.stream));
    XSTAGE_CUDA_TRY(cudaStreamSynchronize(g.stream));
    const std::vector<ProducerRecord> records(g.host_records, g.host_records + node_.sms);
    const double us = 1e-3 / median_clock(records);
    SplitResult out;
    out.tiles_done_by_sm.resize(node_.sms);
    for (const ProducerRecord& r : records) {
      out.last_issue_us = std::max(out.last_issue_us, static_cast<double>(r.last_issue) * us);
      out.drained_us = std::max(out.drained_us, static_cast<double>(r.drained) * us);
      out.tiles_done_by_sm[r.smid] += static_cast<int>(r.bursts);
    }
    return out;
  }

 private:
  static int producers_of(const BurstRun& run, const Flow& flow) {
    return flow.sms.empty() ? run.producers : static_cast<int>(flow.sms.size());
  }

  Result<bool> check(const BurstRun& run) const {
    const int width = model::store_bytes(run.mechanism);
    if (run.producers < 1 || run.producers > node_.sms)
      return bad_input("more producers than SMs", "producers", std::to_string(run.producers),
                       "1 to " + std::to_string(node_.sms));
    if (width == 0 ? run.threads < 32 || run.threads > 1024 || run.threads % 32 != 0
                   : window_kernel_lsu(width, run.threads) == nullptr)
      return bad_input("no kernel stores with this many threads", "threads",
                       std::to_string(run.threads),
                       width == 0    ? "32 to 1024, a multiple of 32"
                       : width == 16 ? "64, 128, 256, 512 or 1024"
                                     : "256");
    const std::uint32_t grain = width == 0 ? 16 : static_cast<std::uint32_t>(width);
    if (run.bytes == 0 || run.bytes % grain != 0 || run.bytes > kSlotBytes)
      return bad_input("", "bytes", std::to_string(run.bytes),
                       "a multiple of " + std::to_string(grain) + ", at most 2 MiB");
    if (width == 0 && (run.chunk == 0 || run.chunk % 16 != 0 || run.chunk > kBulkSourceBytes))
      return bad_input("", "chunk", std::to_string(run.chunk),
                       "a multiple of 16, at most " + std::to_string(kBulkSourceBytes));
    if (run.rounds < 1 || run.rounds > kMaxRounds)
      return bad_input("", "rounds", std::to_string(run.rounds),
                       "1 to " + std::to_string(kMaxRounds));
    return true;
  }

  static Error waited_in_vain(const char* what, int gpu) {
    return {ErrorKind::kTimeout, std::string("a wait ran into its deadline: ") + what, "gpu",
            std::to_string(gpu),
            "answers within " + std::to_string(kDeadlineNs / 1'000'000'000) + " s"};
  }

  /// Zeroes flags and words of these GPUs, and waits: no peer may write before.
  Result<bool> clear_flags(const std::vector<int>& gpus) {
    for (const int i : gpus) {
      Gpu& g = gpus_[i];
      XSTAGE_CUDA_TRY(cudaSetDevice(g.device));
      XSTAGE_CUDA_TRY(cudaMemsetAsync(g.flags, 0, sizeof(comm::Flag) * kFlags, g.stream));
      XSTAGE_CUDA_TRY(cudaMemsetAsync(g.words, 0, sizeof(std::uint64_t) * kWords, g.stream));
      XSTAGE_CUDA_TRY(cudaStreamSynchronize(g.stream));
    }
    return true;
  }

  Result<bool> launch(const BurstRun& run, const Flow& flow) {
    Gpu& g = gpus_[flow.source];
    BurstArgs a{};
    a.control = g.control;
    a.self = flow.source;
    for (const Flow& other : run.flows) {
      if (other.source == flow.source) continue;
      a.peer_control[a.peer_count] = gpus_[other.source].control;
      a.peer_index[a.peer_count] = other.source;
      ++a.peer_count;
    }
    for (const int target : flow.targets)
      a.target[a.target_count++] =
          gpus_[target].data + kSlotBytes * node_.sms * static_cast<std::uint64_t>(flow.source);
    a.slot_stride = kSlotBytes;
    a.slot_bytes = kSlotBytes;
    a.slot_of_sm = flow.sms.empty() ? nullptr : g.slot_of_sm;
    a.producers = producers_of(run, flow);
    a.bytes = run.bytes;
    a.chunk = run.chunk;
    const double cycles_per_us = g.clock_ghz * 1e3;
    a.gap_cycles = static_cast<std::uint32_t>(std::lround(run.gap_us * cycles_per_us));
    const bool aligned = run.kind == RunKind::kAligned;
    a.lead_ns = aligned && !run.free_running
                    ? static_cast<std::uint32_t>(std::lround(std::max(run.gap_us, 1.0) * 1e3))
                    : 3000;
    a.rounds = run.rounds;
    a.warm_cycles = static_cast<std::uint64_t>(run.warm_us * cycles_per_us);
    a.window_cycles = static_cast<std::uint64_t>(run.window_us * cycles_per_us);
    a.fence_each_round = run.drain_each_round;
    a.shared_load = run.shared_load;
    a.free_running = run.free_running;
    a.pair_spacing_ns = static_cast<std::uint32_t>(std::lround(run.pair_spacing_us * 1e3));
    a.deadline_ns = kDeadlineNs;

    const int width = model::store_bytes(run.mechanism);
    const void* kernel =
        aligned ? (width == 0 ? aligned_kernel_bulk() : aligned_kernel_lsu(width, run.threads))
                : (width == 0 ? window_kernel_bulk() : window_kernel_lsu(width, run.threads));
    void* rings = g.rings;
    void* kernel_args[] = {&a, &g.records, &rings};
    const unsigned blocks = flow.sms.empty() ? run.producers : node_.sms;
    XSTAGE_CUDA_TRY(cudaSetDevice(g.device));
    XSTAGE_CUDA_TRY(cudaLaunchCooperativeKernel(kernel, dim3(blocks), dim3(run.threads),
                                                kernel_args, kDynamicShared, g.stream));
    return true;
  }

  Result<FlowRecords> collect(const BurstRun& run, const Flow& flow) {
    Gpu& g = gpus_[flow.source];
    const int producers = producers_of(run, flow);
    const bool aligned = run.kind == RunKind::kAligned;
    const std::size_t entry =
        aligned ? sizeof(RoundRecord) * kMaxRounds : sizeof(std::uint32_t) * kRing;
    Control control{};
    XSTAGE_CUDA_TRY(cudaSetDevice(g.device));
    XSTAGE_CUDA_TRY(cudaMemcpyAsync(g.host_records, g.records, sizeof(ProducerRecord) * producers,
                                    cudaMemcpyDeviceToHost, g.stream));
    XSTAGE_CUDA_TRY(cudaMemcpyAsync(g.host_rings, g.rings, entry * producers,
                                    cudaMemcpyDeviceToHost, g.stream));
    XSTAGE_CUDA_TRY(cudaMemcpyAsync(&control, g.control, 2 * sizeof(std::uint64_t),
                                    cudaMemcpyDeviceToHost, g.stream));
    XSTAGE_CUDA_TRY(cudaStreamSynchronize(g.stream));
    if (control.failed != 0)
      return Error{
          ErrorKind::kTimeout, "producers waited in vain for the common start of a round", "gpu",
          std::to_string(g.device),
          "every producer arrives within " + std::to_string(kDeadlineNs / 1'000'000'000) + " s"};
    FlowRecords out;
    out.producers.assign(g.host_records, g.host_records + producers);
    if (aligned) {
      const auto* rounds = reinterpret_cast<const RoundRecord*>(g.host_rings);
      out.rounds.assign(rounds, rounds + static_cast<std::size_t>(producers) * kMaxRounds);
    } else {
      const auto* spans = reinterpret_cast<const std::uint32_t*>(g.host_rings);
      out.spans.assign(spans, spans + static_cast<std::size_t>(producers) * kRing);
    }
    out.clock_ghz = median_clock(out.producers);
    if (out.clock_ghz > 0) g.clock_ghz = out.clock_ghz;
    return out;
  }

  ProbeNode node_;
  std::vector<Gpu> gpus_;
};

}  // namespace

Result<std::unique_ptr<Prober>> open_cuda_prober(const std::vector<int>& gpus) {
  int count = 0;
  XSTAGE_CUDA_TRY(cudaGetDeviceCount(&count));
  std::vector<int> devices = gpus;
  if (devices.empty()) {
    devices.resize(count);
    std::iota(devices.begin(), devices.end(), 0);
  }
  for (const int device : devices)
    if (device < 0 || device >= count)
      return bad_input("no such GPU", "gpus", std::to_string(device),
                       "0 to " + std::to_string(count - 1));
  if (devices.size() > kMaxGpus)
    return bad_input("more GPUs than one run can drive", "gpus", std::to_string(devices.size()),
                     "at most " + std::to_string(kMaxGpus));
  auto prober = std::make_unique<CudaProber>();
  if (Result<bool> opened = prober->open(devices); !opened) return opened.error();
  return std::unique_ptr<Prober>(std::move(prober));
}

Result<int> resident_blocks(int gpu) {
  int count = 0;
  XSTAGE_CUDA_TRY(cudaGetDeviceCount(&count));
  CudaProber prober;
  if (Result<bool> opened = prober.open({gpu}); !opened) return opened.error();
  BurstRun run;
  run.kind = RunKind::kAligned;
  run.flows = {{0, {0}, {}}};
  run.producers = prober.node().sms;
  run.bytes = 4096;
  run.rounds = 2;
  Result<std::vector<FlowRecords>> records = prober.run(run);
  if (!records) return records.error();
  return run.producers;
}

}  // namespace xstage::probe
