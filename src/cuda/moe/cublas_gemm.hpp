// cuBLAS' GEMM as a yardstick: one matrix for all rows, one scale a tensor. The library is
// loaded when it is asked for, so that the executable starts without it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "xstage/result.hpp"

namespace xstage::moe {

/// out = a·bᵀ on the current GPU.
struct DenseGemm {
  const void* a = nullptr;  ///< [m][k] e4m3, or bf16
  const void* b = nullptr;  ///< [n][k] as a
  void* out = nullptr;      ///< [m][n] bf16, or fp32
  std::int64_t m = 0, n = 0, k = 0;
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
  bool bf16 = false;
  bool fast = false;  ///< of e4m3: sums stay in the Tensor Core, which keeps fewer bits of them
  bool out_fp32 = false;
};

class CublasGemm {
 public:
  virtual ~CublasGemm() = default;
  virtual Result<bool> launch(cudaStream_t stream) = 0;
};

class Cublas {
 public:
  virtual ~Cublas() = default;
  /// Chooses an algorithm.
  virtual Result<std::unique_ptr<CublasGemm>> prepare(const DenseGemm& gemm) = 0;
};

/// Null where the library, or at build time its header, is missing.
std::unique_ptr<Cublas> open_cublas();

}  // namespace xstage::moe
