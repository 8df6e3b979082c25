#include "cuda/moe/tensor_map.hpp"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "cuda/probe/check.cuh"

namespace xstage::moe {

Result<CUtensorMap> byte_map(const void* data, std::int64_t rows, std::int64_t columns,
                             std::int32_t box_rows, const std::string& name) {
  if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0)
    return bad_input("an address does not suit TMA", name,
                     std::to_string(reinterpret_cast<std::uintptr_t>(data)),
                     "a multiple of 16 bytes");
  if (rows < 1 || rows >= std::int64_t{1} << 31)
    return bad_input("too many rows for a tensor map", name, std::to_string(rows),
                     "1 to 2147483647");
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  XSTAGE_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                   cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess)
    return Error{ErrorKind::kUnsupported, "this driver has no tensor maps", "driver",
                 "cuTensorMapEncodeTiled is missing", "a driver for CUDA 12 or later"};
  const auto encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  const cuuint64_t dims[5] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows), 1, 1,
                              1};
  const cuuint64_t pitch = static_cast<cuuint64_t>(columns);
  const cuuint64_t strides[4] = {pitch, pitch, pitch, pitch};
  const cuuint32_t box[5] = {128, static_cast<cuuint32_t>(box_rows), 1, 1, 1};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult code =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 5, const_cast<void*>(data), dims, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS)
    return Error{
        ErrorKind::kUnsupported,
        "the driver refused a tensor map of " + name + " (cuda " + std::to_string(code) + ")",
        {},
        {},
        {}};
  return map;
}

}  // namespace xstage::moe
