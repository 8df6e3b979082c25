#include "cuda/moe/host_layer.hpp"
#include "cuda/moe/timed_layer.hpp"

namespace xstage::moe {
namespace {

Error no_kernels() {
  return {ErrorKind::kUnsupported, "this build has no kernels for GPUs", "--backend", "cuda",
          "cpu, or a build with the CUDA toolkit"};
}

}  // namespace

Result<std::unique_ptr<HostLayer>> open_host_layer(layout::MoeConfig, const HostWeights&,
                                                   const std::vector<HostInput>&,
                                                   const HostOptions&) {
  return no_kernels();
}

Result<std::unique_ptr<TimedLayer>> open_timed_layer(layout::MoeConfig, std::uint64_t) {
  return no_kernels();
}

}  // namespace xstage::moe
