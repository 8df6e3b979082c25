// Launching one rank of the fused kernel.
#pragma once

#include <cuda_runtime.h>

#include "cuda/moe/format.cuh"
#include "cuda/moe/fused.hpp"
#include "xstage/result.hpp"

namespace xstage::moe {

/// Asynchronous. Every rank of the group must launch; whoever waits longer than its limit stops
/// them all and leaves a record. Compiled for W8a8 and PlainBf16.
template <class Format>
Result<bool> launch_fused(const FusedParams& params, const FusedMaps& maps, cudaStream_t stream);

}  // namespace xstage::moe
