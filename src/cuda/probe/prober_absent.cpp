// What stands in the place of the GPU prober in a build without CUDA.
#include "cuda/probe/prober.hpp"

namespace xstage::probe {
namespace {

Error no_cuda() {
  return {ErrorKind::kNoGpu,
          "this executable was built without CUDA: nvcc was not found, or XSTAGE_CUDA was off",
          {},
          {},
          {}};
}

}  // namespace

Result<std::unique_ptr<Prober>> open_cuda_prober(const std::vector<int>&) { return no_cuda(); }

Result<int> resident_blocks(int) { return no_cuda(); }

}  // namespace xstage::probe
