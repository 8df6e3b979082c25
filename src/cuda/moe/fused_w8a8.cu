// The fused kernel in w8a8.
#include "cuda/moe/fused_kernel.cuh"

namespace xstage::moe {

template Result<bool> launch_fused<W8a8>(const FusedParams&, const FusedMaps&, cudaStream_t);

}  // namespace xstage::moe
