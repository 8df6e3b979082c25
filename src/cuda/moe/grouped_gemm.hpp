// A plain grouped GEMM around the MoE kernel's tiles: no communication, no activation. It is the
// yardstick for what the fused kernel's products cost alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/moe/format.cuh"
#include "xstage/result.hpp"

namespace xstage::moe {

/// Row blocks of kBlockM tokens, each of one expert: out = a·bᵀ, scaled. Operands in e4m3 with
/// scales, or in bf16 without.
struct GroupedGemm {
  const void* a = nullptr;                   ///< [rows·128][k]
  const float* a_scales = nullptr;           ///< [rows][k/128][128]
  const void* b = nullptr;                   ///< [experts][n][k]
  const float* b_scales = nullptr;           ///< [experts][n/128][k/128]
  std::uint16_t* out = nullptr;              ///< [rows·128][n] bf16
  const std::int32_t* row_expert = nullptr;  ///< [rows], device
  const std::int32_t* row_tokens = nullptr;  ///< [rows], device: 1 … 128
  std::uint64_t* claimed = nullptr;          ///< one word, device; a launch clears and uses it
  std::int64_t rows = 0;
  std::int64_t experts = 0;
  std::int64_t n = 0;  ///< a multiple of 256
  std::int64_t k = 0;  ///< a multiple of 128
};

/// Compiled for W8a8 and PlainBf16.
template <class Format>
Result<bool> launch(const GroupedGemm& gemm, int blocks, cudaStream_t stream);

}  // namespace xstage::moe
