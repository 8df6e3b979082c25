#include "cuda/moe/grouped_gemm.cuh"

namespace xstage::moe {

template Result<bool> launch<W8a8>(const GroupedGemm&, int, cudaStream_t);

}  // namespace xstage::moe
