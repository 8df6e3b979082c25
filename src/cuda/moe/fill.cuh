// Random operands made on the GPU.
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace xstage::moe {

__host__ __device__ inline std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Nearly normal: the sum of four uniform numbers, variance 1.
__host__ __device__ inline float normal(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = mixed(seed * 0x100000001b3ull + index);
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xffff);
  return (sum / 65536.0f - 2.0f) * 1.7320508f;
}

__device__ inline std::uint8_t to_e4m3(float value) {
  return static_cast<std::uint8_t>(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
}

__device__ inline std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// e4m3 codes of normal values times `spread`.
static __global__ void fill_codes(std::uint8_t* out, std::int64_t count, std::uint64_t seed,
                                  float spread) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    out[i] = to_e4m3(spread * normal(seed, static_cast<std::uint64_t>(i)));
}

/// Scales between `low` and `high`.
static __global__ void fill_scales(float* out, std::int64_t count, std::uint64_t seed, float low,
                                   float high) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    out[i] = low + (high - low) *
                       static_cast<float>(mixed(seed + static_cast<std::uint64_t>(i)) >> 40) /
                       16777216.0f;
}

/// Normal values times `spread`.
static __global__ void fill_bf16(std::uint16_t* out, std::int64_t count, std::uint64_t seed,
                                 float spread = 1) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    out[i] = to_bf16(spread * normal(seed, static_cast<std::uint64_t>(i)));
}

}  // namespace xstage::moe
