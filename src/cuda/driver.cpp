#include "cuda/driver.hpp"

#include <fmt/format.h>

#include <numeric>

namespace xstage::cuda {
namespace {

std::string pair_reason(const NodeState& node, const PairState& pair) {
  const GpuState& a = node.gpus[static_cast<std::size_t>(pair.from)];
  const GpuState& b = node.gpus[static_cast<std::size_t>(pair.to)];
  if (a.mig || b.mig)
    return "MIG is on: instances have no peer access to each other, over NVLink or PCIe";
  if (!pair.why.empty()) return pair.why;
  if (pair.links == 0)
    return "no NVLink between them, and the driver offers no peer access over PCIe";
  return "the driver refuses peer access without a reason";
}

}  // namespace

NodeState look_around(DriverApi& api) {
  NodeState node;
  if (Result<bool> started = api.start(); !started) {
    node.why_no_gpu = started.error().what;
    return node;
  }
  node.driver_loaded = true;
  node.driver_version = api.driver_version();
  const int version = api.cuda_version();
  node.cuda_version = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  const Result<int> count = api.device_count();
  if (!count) {
    node.why_no_gpu = count.error().what;
    return node;
  }
  if (*count == 0) {
    node.why_no_gpu = "the driver is there, but it shows no GPU to this process";
    return node;
  }
  for (int i = 0; i < *count; ++i) {
    Result<GpuState> gpu = api.device(i);
    if (!gpu) {
      node.why_no_gpu = fmt::format("GPU {} cannot be opened: {}", i, gpu.error().what);
      return node;
    }
    node.gpus.push_back(std::move(gpu).value());
  }
  for (int from = 0; from < *count; ++from)
    for (int to = 0; to < *count; ++to) {
      if (from == to) continue;
      PairState pair = api.pair(from, to);
      pair.from = from;
      pair.to = to;
      pair.why = pair.peer_access ? "" : pair_reason(node, pair);
      node.pairs.push_back(std::move(pair));
    }
  return node;
}

namespace {

/// Whether these GPUs can run the kernels, and reach each other.
std::optional<Error> why_not_together(const NodeState& node, const std::vector<int>& used) {
  for (const int i : used) {
    const GpuState& gpu = node.gpus[static_cast<std::size_t>(i)];
    if (gpu.mig)
      return Error{ErrorKind::kUnsupported, "MIG instances cannot reach each other's memory",
                   fmt::format("GPU {}", i), gpu.name + " with MIG on", "a GPU with MIG off"};
    if (gpu.major != 9)
      return Error{ErrorKind::kUnsupported, "the kernels are built for Hopper",
                   fmt::format("GPU {}", i),
                   fmt::format("{}, compute capability {}.{}", gpu.name, gpu.major, gpu.minor),
                   "compute capability 9.0"};
  }
  for (const PairState& pair : node.pairs) {
    bool both_used = false;
    for (const int a : used)
      for (const int b : used) both_used = both_used || (a == pair.from && b == pair.to);
    if (both_used && !pair.peer_access)
      return Error{ErrorKind::kUnsupported, "these two GPUs cannot reach each other: " + pair.why,
                   "pair", fmt::format("{} -> {}", pair.from, pair.to), "a pair with peer access"};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> why_not_calibrate(const NodeState& node, const std::vector<int>& gpus) {
  if (!node.why_no_gpu.empty())
    return Error{ErrorKind::kNoGpu, "no GPU to calibrate: " + node.why_no_gpu, {}, {}, {}};
  const int present = static_cast<int>(node.gpus.size());
  for (const int gpu : gpus)
    if (gpu < 0 || gpu >= present)
      return bad_input("no such GPU", "--gpus", std::to_string(gpu),
                       fmt::format("0 to {}", present - 1));
  std::vector<int> used = gpus;
  if (used.empty())
    for (int i = 0; i < present; ++i) used.push_back(i);
  if (used.size() < 2)
    return Error{ErrorKind::kUnsupported, "remote stores need two GPUs of one node", "GPUs",
                 std::to_string(used.size()), "2 or more, visible to this process"};
  return why_not_together(node, used);
}

std::optional<Error> why_not_ranks(const NodeState& node, int ranks) {
  const int present = static_cast<int>(node.gpus.size());
  if (ranks > present)
    return Error{ErrorKind::kUnsupported, "fewer GPUs than ranks", "--ranks", std::to_string(ranks),
                 fmt::format("1 to {}, a GPU a rank", present)};
  std::vector<int> used(static_cast<std::size_t>(ranks));
  std::iota(used.begin(), used.end(), 0);
  return why_not_together(node, used);
}

}  // namespace xstage::cuda
