#include "cuda/ulysses/tensor_map.hpp"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "cuda/probe/check.cuh"

namespace xstage::ulysses {
namespace {

constexpr std::int64_t kChunk = 64;

Result<PFN_cuTensorMapEncodeTiled_v12000> encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  XSTAGE_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                   cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess)
    return Error{ErrorKind::kUnsupported, "this driver has no tensor maps", "driver",
                 "cuTensorMapEncodeTiled is missing", "a driver for CUDA 12 or later"};
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

std::optional<Error> why_no_box(const layout::TensorView& view, const std::string& name) {
  if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0)
    return bad_input("a tensor's address does not suit TMA", name,
                     std::to_string(reinterpret_cast<std::uintptr_t>(view.data)),
                     "a multiple of 16 bytes");
  if (view.stride[3] != 1)
    return bad_input("a tensor's last dimension must be dense", name + ".stride[3]",
                     std::to_string(view.stride[3]), "1");
  for (int i = 0; i < 3; ++i)
    if (view.stride[i] <= 0 || view.stride[i] % 8 != 0 || view.stride[i] >= std::int64_t{1} << 39)
      return bad_input("a tensor's strides do not suit TMA",
                       name + ".stride[" + std::to_string(i) + "]", std::to_string(view.stride[i]),
                       "a positive multiple of 8 elements, below 2^39");
  return {};
}

Result<CUtensorMap> box_map(const layout::TensorView& view, std::int32_t rows, std::int32_t chunks,
                            const std::string& name) {
  if (const std::optional<Error> bad = why_no_box(view, name)) return *bad;
  const auto bytes = [](std::int64_t elements) { return static_cast<cuuint64_t>(elements * 2); };
  const Result<PFN_cuTensorMapEncodeTiled_v12000> encode = encoder();
  if (!encode.ok()) return encode.error();
  const cuuint64_t dims[5] = {kChunk, static_cast<cuuint64_t>(view.shape[1]),
                              static_cast<cuuint64_t>(view.shape[3] / kChunk),
                              static_cast<cuuint64_t>(view.shape[2]),
                              static_cast<cuuint64_t>(view.shape[0])};
  const cuuint64_t strides[4] = {bytes(view.stride[1]), bytes(kChunk), bytes(view.stride[2]),
                                 bytes(view.stride[0])};
  const cuuint32_t box[5] = {kChunk, static_cast<cuuint32_t>(rows), static_cast<cuuint32_t>(chunks),
                             1, 1};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult code =
      encode.value()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, view.data, dims, strides, box,
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

}  // namespace xstage::ulysses
