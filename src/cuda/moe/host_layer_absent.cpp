#include "cuda/moe/host_layer.hpp"

namespace xstage::moe {

Result<std::unique_ptr<HostLayer>> open_host_layer(layout::MoeConfig, const HostWeights&,
                                                   const std::vector<HostInput>&, std::uint64_t,
                                                   std::uint64_t) {
  return Error{ErrorKind::kUnsupported, "this build has no kernels for GPUs", "--backend", "cuda",
               "cpu, or a build with the CUDA toolkit"};
}

}  // namespace xstage::moe
