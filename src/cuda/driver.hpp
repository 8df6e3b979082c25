// What this machine has: driver, GPUs, links, peer access, and what stands in the way.
//
// The driver and NVML are loaded at run time, so the same executable starts on a machine that has
// neither. DriverApi is the seam: the real one calls the two libraries, tests put a fake in its
// place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "xstage/result.hpp"

namespace xstage::cuda {

/// One GPU as the driver and NVML describe it. What was not told is absent.
struct GpuState {
  int index = 0;
  std::string name;
  std::string pci;
  int major = 0, minor = 0;  ///< compute capability
  int sms = 0;
  bool cooperative_launch = false;
  std::uint64_t memory_bytes = 0;
  bool mig = false;
  int nvlinks = 0;                        ///< active links
  std::optional<double> nvlink_gb_per_s;  ///< of one link, per direction
  std::optional<int> sm_clock_mhz, sm_clock_max_mhz;
  std::vector<std::string> clock_limits;  ///< why the clock is held down now, in words
  std::optional<int> temperature_c;
  std::optional<int> other_processes;  ///< compute processes beside this one
};

/// Stores from one GPU into the memory of another.
struct PairState {
  int from = 0, to = 0;
  bool peer_access = false;
  bool native_atomics = false;
  int links = 0;    ///< NVLink links between them, directly or through switches
  std::string why;  ///< empty with peer access, else the reason and what it rules out
};

struct NodeState {
  bool driver_loaded = false;
  std::string why_no_gpu;      ///< empty where there is a usable GPU
  std::string driver_version;  ///< "580.159.04"; empty where NVML did not say
  std::string cuda_version;    ///< the driver's, "13.0"
  std::vector<GpuState> gpus;
  std::vector<PairState> pairs;
};

/// The calls that look_around() makes. Device arguments are driver ordinals.
class DriverApi {
 public:
  virtual ~DriverApi() = default;
  /// Loads and initialises the driver. The error says which of the two failed, and how.
  virtual Result<bool> start() = 0;
  virtual std::string driver_version() = 0;
  virtual int cuda_version() = 0;  ///< 13000 for 13.0
  virtual Result<int> device_count() = 0;
  virtual Result<GpuState> device(int index) = 0;
  /// Peer access, native atomics and links; `why` as NVML names the reason.
  virtual PairState pair(int from, int to) = 0;
};

std::unique_ptr<DriverApi> system_driver();

/// Asks for everything. Never fails: what is missing is said in the state.
NodeState look_around(DriverApi& api);

/// The error that keeps a calibration of GPUs from running; `wanted` GPUs are needed. Absent where
/// nothing stands in the way. kNoGpu without driver or GPU; kUnsupported for too few GPUs, MIG,
/// another architecture, or a pair without peer access.
std::optional<Error> why_not_calibrate(const NodeState& node, const std::vector<int>& gpus);

/// Why rank r cannot run a kernel on GPU r, for all of `ranks`; the node has GPUs.
std::optional<Error> why_not_ranks(const NodeState& node, int ranks);

/// What the surroundings say about running in a container.
struct Surroundings {
  bool container = false;
  bool may_trace = true;           ///< handles can be fetched by process id
  std::uint64_t shared_bytes = 0;  ///< size of /dev/shm
};
Surroundings surroundings();

}  // namespace xstage::cuda
