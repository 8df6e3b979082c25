#include "cuda/moe/grouped_gemm.cuh"

namespace xstage::moe {

template Result<bool> launch<PlainBf16>(const GroupedGemm&, int, cudaStream_t);

}  // namespace xstage::moe
