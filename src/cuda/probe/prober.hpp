// One run of bursts, described without CUDA types, and the interface that executes it: on GPUs, or
// in a test on whatever the test wants to happen.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/probe/records.hpp"
#include "xstage/result.hpp"

namespace xstage::probe {

/// How a producer stores. The names are the ones of sample files.
enum class Mechanism { kStB32, kStV2, kStV4, kTmaBulk };

const char* name(Mechanism mechanism);
/// Bytes of one store instruction of one thread; 0 for bulk stores.
int store_width(Mechanism mechanism);

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
  Mechanism mechanism = Mechanism::kStV4;
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
  int shared_load = 0;  ///< 1: until this thread's shared load returned, 2: every thread's
  bool free_running = false;
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
};

/// One bulk transfer, the yardstick for R.
enum class CopyKind { kCopyEngine, kCopyKernel };

class Prober {
 public:
  virtual ~Prober() = default;
  virtual const ProbeNode& node() const = 0;
  virtual Result<std::vector<FlowRecords>> run(const BurstRun& run) = 0;
};

/// Prepares the GPUs `gpus` (empty: all): peer access, buffers.
Result<std::unique_ptr<Prober>> open_cuda_prober(const std::vector<int>& gpus);

/// Blocks of a probe kernel that GPU `gpu` holds at once, found by launching a grid that needs all
/// of them to meet; a grid of producers must not be larger.
Result<int> resident_blocks(int gpu);

}  // namespace xstage::probe
