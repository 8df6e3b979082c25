// One run of bursts, described without CUDA types, and the interface that executes it: on GPUs, or
// in a test on whatever the test wants to happen.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/probe/records.hpp"
#include "xstage/model/mechanism.hpp"
#include "xstage/result.hpp"

namespace xstage::probe {

using model::Mechanism;

/// The producers of one GPU. They store into `targets` in turn; a target equal to `source` is the
/// local-memory control.
struct Flow {
  int source = 0;
  std::vector<int> targets;
  std::vector<int> sms;  ///< the SMs that store; empty: blocks where the hardware places them
};

enum class RunKind {
  kWindow,   ///< from one common instant on, bursts with a gap until a common end
  kAligned,  ///< every burst starts at one common instant
};

struct BurstRun {
  RunKind kind = RunKind::kWindow;
  Mechanism mechanism = Mechanism::kStoreV4;
  std::vector<Flow> flows;
  int producers = 1;  ///< per GPU
  int threads = 256;
  std::uint32_t bytes = 0;  ///< per burst and producer
  std::uint32_t chunk = 0;  ///< of one bulk store
  double gap_us = 0;        ///< window: after every burst; aligned: from the last arrival
  double warm_us = 0;       ///< window: not counted
  double window_us = 0;     ///< window: counted
  int rounds = 1;           ///< aligned: bursts
  bool drain_each_round = false;
  bool shared_load = false;
  bool free_running = false;
  double pair_spacing_us = 0;  ///< aligned: start of an odd round after the even one before it
};

/// What one GPU's producers recorded.
struct FlowRecords {
  double clock_ghz = 0;  ///< SM clock during this run, median over its producers
  std::vector<ProducerRecord> producers;
  std::vector<std::uint32_t> spans;  ///< window runs: kRing a producer
  std::vector<RoundRecord> rounds;   ///< aligned runs: kMaxRounds a producer
};

/// What the node has that the experiments need.
struct ProbeNode {
  int gpus = 0;
  int sms = 0;  ///< of every GPU (a node of unlike GPUs is refused)
  double nominal_ghz = 0;
  std::string gpu_name;
  bool simulated = false;
};

enum class CopyKind { kCopyEngine, kCopyKernel };

/// How a message is signalled: rightly, or in ways that miss what the payload needs.
enum class LitmusSignal {
  kRelease,  ///< released when every thread has stored its part, bulk stores when complete: right
  kRelaxed,  ///< counted without release; bulk stores: behind local completion alone
  kEarly,    ///< released by a thread that waited for its own stores alone; bulk stores: counted as
             ///< soon as the copies are started
};

/// Message-passing litmus, both directions at once.
struct LitmusRun {
  Mechanism mechanism = Mechanism::kStoreV4;
  LitmusSignal signal = LitmusSignal::kRelease;
  std::int64_t rounds = 0;  ///< messages in each direction, at least
  std::uint32_t payload_bytes = 4096;
  std::uint64_t seed = 1;
};

struct LitmusResult {
  std::int64_t messages = 0;  ///< both directions together
  std::uint64_t stale_words = 0;
  std::uint64_t stale_messages = 0;
  double seconds = 0;
};

/// Tiles stored by a full grid of one GPU, work before each.
struct SplitRun {
  int source = 0, target = 1;
  std::uint32_t bytes = 0;
  double work_us = 0;
  int threads = 256;
  int tiles = 0;                 ///< in all
  std::vector<int> tiles_of_sm;  ///< empty: claimed one by one
};

struct SplitResult {
  double last_issue_us = 0, drained_us = 0;
  std::vector<int> tiles_done_by_sm;
};

class Prober {
 public:
  virtual ~Prober() = default;
  virtual const ProbeNode& node() const = 0;
  virtual Result<std::vector<FlowRecords>> run(const BurstRun& run) = 0;
  /// One large transfer from `from` to `to` (the yardstick for R), GB/s.
  virtual Result<double> copy(CopyKind kind, int from, int to) = 0;
  /// Flag round trips behind `payload_bytes` stored to the peer, µs, sorted.
  virtual Result<std::vector<double>> round_trip(int from, int to, std::uint32_t payload_bytes) = 0;
  virtual Result<LitmusResult> litmus(const LitmusRun& run) = 0;
  virtual Result<SplitResult> split(const SplitRun& run) = 0;
};

/// Prepares the GPUs `gpus` (empty: all): peer access, buffers.
Result<std::unique_ptr<Prober>> open_cuda_prober(const std::vector<int>& gpus);

/// Blocks of a probe kernel that GPU `gpu` holds at once, found by launching a grid that needs all
/// of them to meet; a grid of producers must not be larger.
Result<int> resident_blocks(int gpu);

}  // namespace xstage::probe
