// The fused kernel in bf16.
#include "cuda/moe/fused_kernel.cuh"

namespace xstage::moe {

template Result<bool> launch_fused<PlainBf16>(const FusedParams&, const FusedMaps&, cudaStream_t);

}  // namespace xstage::moe
