// The real driver, loaded at run time. The declarations below are the libraries' stable C
// interface; neither header is needed to build.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cuda/driver.hpp"

namespace xstage::cuda {
namespace {

/// A library that may be absent, closed at the end.
class Library {
 public:
  explicit Library(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {}
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  bool loaded() const { return handle_ != nullptr; }

  /// Calls `name` with the given arguments; `missing` where the library does not have it.
  template <class... Args>
  int call(const char* name, int missing, Args... args) const {
    if (handle_ == nullptr) return missing;
    auto* function = reinterpret_cast<int (*)(Args...)>(dlsym(handle_, name));
    return function == nullptr ? missing : function(args...);
  }

 private:
  void* handle_;
};

constexpr int kMissing = -1;

// CUdevice_attribute and CUdevice_P2PAttribute
constexpr int kAttributeSms = 16;
constexpr int kAttributeMajor = 75;
constexpr int kAttributeMinor = 76;
constexpr int kAttributeCooperative = 95;
constexpr int kP2pNativeAtomics = 3;
// nvmlClockType_t, nvmlTemperatureSensors_t, nvmlGpuP2PCapsIndex_t, field ids
constexpr unsigned kClockSm = 1;
constexpr unsigned kSensorGpu = 0;
constexpr unsigned kP2pWrite = 1;
constexpr unsigned kFieldNvlinkMbps = 90;
constexpr unsigned kLinksMax = 36;

struct NvmlField {
  unsigned field = 0;
  unsigned scope = 0;
  long long timestamp = 0;
  long long latency = 0;
  int type = 0;
  int result = 0;
  union {
    double d;
    unsigned u;
    unsigned long long ull;
  } value{};
};

const char* p2p_status(int status) {
  switch (status) {
    case 1: return "the chipset does not support peer access";
    case 2: return "this GPU model does not support peer access";
    case 3: return "the PCIe topology between them does not support peer access";
    case 4: return "peer access is switched off in the driver's settings";
    case 5: return "peer access is not supported between them";
    default: return "";
  }
}

class SystemDriver final : public DriverApi {
 public:
  Result<bool> start() override {
    if (!cuda_.loaded())
      return Error{ErrorKind::kNoGpu,
                   "no NVIDIA driver on this machine (libcuda.so.1 is not found)",
                   {},
                   {},
                   {}};
    const int code = cuda_.call("cuInit", kMissing, 0u);
    if (code == 100)
      return Error{
          ErrorKind::kNoGpu, "the driver is there, but no GPU (cuInit answers 100)", {}, {}, {}};
    if (code != 0)
      return Error{ErrorKind::kNoGpu,
                   fmt::format("the driver does not start (cuInit answers {})", code),
                   {},
                   {},
                   {}};
    nvml_started_ = nvml_.call("nvmlInit_v2", kMissing) == 0;
    return true;
  }

  std::string driver_version() override {
    std::array<char, 96> text{};
    if (nvml_started_ && nvml_.call("nvmlSystemGetDriverVersion", kMissing, text.data(), 95u) == 0)
      return text.data();
    return "";
  }

  int cuda_version() override {
    int version = 0;
    cuda_.call("cuDriverGetVersion", kMissing, &version);
    return version;
  }

  Result<int> device_count() override {
    int count = 0;
    const int code = cuda_.call("cuDeviceGetCount", kMissing, &count);
    if (code != 0)
      return Error{ErrorKind::kNoGpu,
                   fmt::format("the driver cannot list GPUs (answer {})", code),
                   {},
                   {},
                   {}};
    return count;
  }

  Result<GpuState> device(int index) override {
    GpuState gpu;
    gpu.index = index;
    int device = 0;
    if (const int code = cuda_.call("cuDeviceGet", kMissing, &device, index); code != 0)
      return Error{ErrorKind::kNoGpu, fmt::format("cuDeviceGet answers {}", code), {}, {}, {}};
    std::array<char, 128> text{};
    cuda_.call("cuDeviceGetName", kMissing, text.data(), 127, device);
    gpu.name = text.data();
    gpu.sms = attribute(kAttributeSms, device);
    gpu.major = attribute(kAttributeMajor, device);
    gpu.minor = attribute(kAttributeMinor, device);
    gpu.cooperative_launch = attribute(kAttributeCooperative, device) == 1;
    std::size_t bytes = 0;
    cuda_.call("cuDeviceTotalMem_v2", kMissing, &bytes, device);
    gpu.memory_bytes = bytes;
    text.fill(0);
    cuda_.call("cuDeviceGetPCIBusId", kMissing, text.data(), 127, device);
    gpu.pci = text.data();
    gpu.mig = gpu.name.find("MIG") != std::string::npos;
    if (void* handle = nvml_handle(gpu.pci); handle != nullptr) ask_nvml(handle, gpu);
    return gpu;
  }

  PairState pair(int from, int to) override {
    PairState pair;
    int a = 0, b = 0, can = 0, atomics = 0;
    cuda_.call("cuDeviceGet", kMissing, &a, from);
    cuda_.call("cuDeviceGet", kMissing, &b, to);
    cuda_.call("cuDeviceCanAccessPeer", kMissing, &can, a, b);
    cuda_.call("cuDeviceGetP2PAttribute", kMissing, &atomics, kP2pNativeAtomics, a, b);
    pair.peer_access = can == 1;
    pair.native_atomics = atomics == 1;
    const Result<GpuState> one = device(from), other = device(to);
    if (!one || !other) return pair;
    void* from_handle = nvml_handle(one->pci);
    void* to_handle = nvml_handle(other->pci);
    if (from_handle == nullptr || to_handle == nullptr) return pair;
    pair.links = links_between(from_handle, *one, *other);
    if (!pair.peer_access) {
      int status = 0;
      if (nvml_.call("nvmlDeviceGetP2PStatus", kMissing, from_handle, to_handle, kP2pWrite,
                     &status) == 0)
        pair.why = p2p_status(status);
    }
    return pair;
  }

 private:
  int attribute(int which, int device) const {
    int value = 0;
    cuda_.call("cuDeviceGetAttribute", kMissing, &value, which, device);
    return value;
  }

  void* nvml_handle(const std::string& pci) const {
    void* handle = nullptr;
    if (!nvml_started_) return nullptr;
    return nvml_.call("nvmlDeviceGetHandleByPciBusId_v2", kMissing, pci.c_str(), &handle) == 0
               ? handle
               : nullptr;
  }

  void ask_nvml(void* handle, GpuState& gpu) const {
    unsigned current = 0, pending = 0;
    if (nvml_.call("nvmlDeviceGetMigMode", kMissing, handle, &current, &pending) == 0)
      gpu.mig = gpu.mig || current == 1;
    for (unsigned link = 0; link < kLinksMax; ++link) {
      unsigned active = 0;
      if (nvml_.call("nvmlDeviceGetNvLinkState", kMissing, handle, link, &active) == 0)
        gpu.nvlinks += active == 1 ? 1 : 0;
    }
    NvmlField field;
    field.field = kFieldNvlinkMbps;
    if (gpu.nvlinks > 0 &&
        nvml_.call("nvmlDeviceGetFieldValues", kMissing, handle, 1, &field) == 0 &&
        field.result == 0 && field.value.u > 0 && field.value.u < 1'000'000)
      gpu.nvlink_gb_per_s = field.value.u * 1e-3;
    unsigned value = 0;
    if (nvml_.call("nvmlDeviceGetClockInfo", kMissing, handle, kClockSm, &value) == 0)
      gpu.sm_clock_mhz = static_cast<int>(value);
    if (nvml_.call("nvmlDeviceGetMaxClockInfo", kMissing, handle, kClockSm, &value) == 0)
      gpu.sm_clock_max_mhz = static_cast<int>(value);
    if (nvml_.call("nvmlDeviceGetTemperature", kMissing, handle, kSensorGpu, &value) == 0)
      gpu.temperature_c = static_cast<int>(value);
    unsigned long long reasons = 0;
    if (nvml_.call("nvmlDeviceGetCurrentClocksThrottleReasons", kMissing, handle, &reasons) == 0)
      gpu.clock_limits = clock_limits(reasons);
    // Asked with room for none, NVML answers "insufficient size" and how many there are.
    unsigned count = 0;
    const int code = nvml_.call("nvmlDeviceGetComputeRunningProcesses_v3", kMissing, handle, &count,
                                static_cast<void*>(nullptr));
    if (code == 0 || code == 7) gpu.other_processes = static_cast<int>(count);
  }

  static std::vector<std::string> clock_limits(unsigned long long reasons) {
    std::vector<std::string> out;
    if (reasons & 0x2) out.emplace_back("application clocks are set");
    if (reasons & 0x4) out.emplace_back("power cap");
    if (reasons & 0x8) out.emplace_back("hardware slowdown");
    if (reasons & 0x10) out.emplace_back("clocks of a group of GPUs are kept equal");
    if (reasons & 0x20) out.emplace_back("temperature (software)");
    if (reasons & 0x40) out.emplace_back("temperature (hardware)");
    if (reasons & 0x80) out.emplace_back("power brake");
    return out;
  }

  /// Links whose other end is the peer; where the other ends are switches, all active links reach
  /// it.
  int links_between(void* handle, const GpuState& from, const GpuState& to) const {
    struct PciInfo {
      char legacy[16];
      unsigned domain, bus, device, device_id, subsystem_id;
      char id[32];
    };
    int direct = 0, elsewhere = 0;
    for (unsigned link = 0; link < kLinksMax; ++link) {
      unsigned active = 0;
      if (nvml_.call("nvmlDeviceGetNvLinkState", kMissing, handle, link, &active) != 0 ||
          active != 1)
        continue;
      PciInfo remote{};
      if (nvml_.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", kMissing, handle, link, &remote) != 0)
        continue;
      if (void* peer = nvml_handle(remote.id); peer != nullptr)
        direct += peer == nvml_handle(to.pci) ? 1 : 0;
      else
        ++elsewhere;
    }
    return direct > 0 ? direct : (elsewhere > 0 ? std::min(from.nvlinks, to.nvlinks) : 0);
  }

  Library cuda_{"libcuda.so.1"};
  Library nvml_{"libnvidia-ml.so.1"};
  bool nvml_started_ = false;
};

}  // namespace

std::unique_ptr<DriverApi> system_driver() { return std::make_unique<SystemDriver>(); }

Surroundings surroundings() {
  Surroundings out;
  std::error_code ignored;
  out.container = std::filesystem::exists("/.dockerenv", ignored) ||
                  std::filesystem::exists("/run/.containerenv", ignored);
  std::ifstream status("/proc/self/status");
  unsigned long long capabilities = 0;
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("CapEff:")) capabilities = std::strtoull(line.c_str() + 7, nullptr, 16);
  int scope = 0;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  constexpr unsigned long long kSysPtrace = 1ull << 19;
  out.may_trace = scope == 0 || (scope < 3 && (capabilities & kSysPtrace) != 0);
  struct statvfs shared{};
  if (statvfs("/dev/shm", &shared) == 0)
    out.shared_bytes = static_cast<std::uint64_t>(shared.f_blocks) * shared.f_frsize;
  return out;
}

}  // namespace xstage::cuda
