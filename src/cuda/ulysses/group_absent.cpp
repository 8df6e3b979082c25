// In a build without nvcc there are no kernels.
#include "cuda/ulysses/group.hpp"

namespace xstage::ulysses {

Result<std::unique_ptr<Group>> Group::create(const layout::UlyssesConfig&, std::uint64_t, int) {
  return Error{ErrorKind::kUnsupported, "this build has no kernels (it was made without nvcc)",
               "--backend", "cuda", "cpu, or a build with a CUDA toolkit"};
}

}  // namespace xstage::ulysses
