// What the GPU tests of attention share: inputs, an independent reference, comparisons.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/ulysses/attention.hpp"

namespace xstage::ulysses::test {

#define CUDA_OK(call) ASSERT_EQ(cudaSuccess, (call)) << cudaGetErrorString(cudaPeekAtLastError())

/// Usable GPUs of compute capability 9.0; 0 where there is no driver.
inline int gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
  for (int i = 0; i < count; ++i) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) != cudaSuccess ||
        major != 9)
      return i;
  }
  return count;
}

/// Device memory that frees itself, on the device that was current.
template <class V>
class DeviceArray {
 public:
  explicit DeviceArray(std::int64_t count) : count_(count) {
    if (cudaGetDevice(&device_) != cudaSuccess ||
        cudaMalloc(&data_, static_cast<std::size_t>(count) * sizeof(V)) != cudaSuccess)
      throw std::bad_alloc();
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  V* get() const { return data_; }
  std::int64_t count() const { return count_; }
  void set_bytes(int value) {
    cudaMemset(data_, value, static_cast<std::size_t>(count_) * sizeof(V));
  }

 private:
  V* data_ = nullptr;
  std::int64_t count_ = 0;
  int device_ = 0;
};

__device__ inline float to_float(std::uint16_t bits, bool half = false) {
  return half ? __half2float(__ushort_as_half(bits))
              : __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

/// Nearly normal values, a pure function of seed and index.
__global__ void fill_kernel(std::uint16_t* out, std::int64_t count, std::uint64_t seed,
                            float amplitude, bool half) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    std::uint64_t x = seed * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(i);
    float sum = 0;
    for (int k = 0; k < 4; ++k) {
      x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
      x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
      x ^= x >> 31;
      sum += static_cast<float>(x >> 40) * 0x1p-24f - 0.5f;
    }
    const float value = sum * 1.7320508f * amplitude;
    out[i] = half ? __half_as_ushort(__float2half(value))
                  : static_cast<std::uint16_t>(__float_as_uint(value) >> 16);
  }
}

inline void fill(std::uint16_t* out, std::int64_t count, std::uint64_t seed, float amplitude = 1,
                 bool half = false) {
  fill_kernel<<<1024, 256>>>(out, count, seed, amplitude, half);
}

struct View {
  const std::uint16_t* data;
  std::int64_t batch, row, head;
  bool half;
  explicit View(const layout::TensorView& v)
      : data(static_cast<const std::uint16_t*>(v.data)),
        batch(v.stride[0]),
        row(v.stride[1]),
        head(v.stride[2]),
        half(v.type == layout::ScalarType::kFp16) {}
  __device__ const std::uint16_t* at(std::int64_t b, std::int64_t s, std::int64_t h) const {
    return data + b * batch + s * row + h * head;
  }
};

/// What a comparison found.
struct Difference {
  double error = 0, norm = 0;  ///< squared norms of output − reference, and of the reference
  double worst_lse = 0;        ///< largest absolute difference
  unsigned long long not_finite = 0, wrong_lse = 0;
};

/// One block a query row, straight from the definition, in double precision.
__global__ void compare_kernel(View query, View key, View value, View output, const float* lse,
                               const std::int32_t* key_lengths, int rows, int keys, int heads,
                               int group, int head_dim, double scale, std::int64_t row_step,
                               Difference* out) {
  extern __shared__ double logits[];
  __shared__ double partial[128];
  const std::int64_t s = blockIdx.x * row_step;
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int t = static_cast<int>(threadIdx.x);
  if (key_lengths != nullptr) keys = min(keys, key_lengths[b]);
  const std::uint16_t* const q = query.at(b, s, h);
  double most = -INFINITY;
  for (int j = t; j < keys; j += 128) {
    const std::uint16_t* const k = key.at(b, j, h / group);
    double dot = 0;
    for (int d = 0; d < head_dim; ++d)
      dot += static_cast<double>(to_float(q[d], query.half)) *
             static_cast<double>(to_float(k[d], query.half));
    logits[j] = dot * scale;
    most = fmax(most, logits[j]);
  }
  partial[t] = most;
  __syncthreads();
  for (int i = 0; i < 128; ++i) most = fmax(most, partial[i]);
  __syncthreads();
  double sum = 0;
  for (int j = t; j < keys; j += 128) {
    logits[j] = exp(logits[j] - most);
    sum += logits[j];
  }
  partial[t] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < 128; ++i) sum += partial[i];
  if (t < head_dim) {
    double wanted = 0;
    for (int j = 0; j < keys; ++j)
      wanted += logits[j] * static_cast<double>(to_float(value.at(b, j, h / group)[t], query.half));
    if (keys > 0) wanted /= sum;
    const double got = static_cast<double>(to_float(output.at(b, s, h)[t], query.half));
    if (!isfinite(got)) atomicAdd(&out->not_finite, 1ull);
    atomicAdd(&out->error, (got - wanted) * (got - wanted));
    atomicAdd(&out->norm, wanted * wanted);
  }
  if (t == 0 && lse != nullptr) {
    const double got =
        static_cast<double>(lse[(static_cast<std::int64_t>(b) * heads + h) * rows + s]);
    if (keys <= 0) {
      if (got != -INFINITY) atomicAdd(&out->wrong_lse, 1ull);
    } else if (!(fabs(got - (most + log(sum))) < 1e-3)) {
      atomicAdd(&out->wrong_lse, 1ull);
    }
  }
}

/// Compares every `row_step`-th row.
inline Difference compare(const AttentionInputs& in, const layout::TensorView& output,
                          std::int64_t row_step = 1) {
  DeviceArray<Difference> found(1);
  found.set_bytes(0);
  const auto heads = static_cast<unsigned>(in.query.shape[2]);
  const dim3 grid(static_cast<unsigned>((in.query.shape[1] + row_step - 1) / row_step), heads,
                  static_cast<unsigned>(in.query.shape[0]));
  const double scale = in.scale != 0 ? static_cast<double>(in.scale)
                                     : 1 / sqrt(static_cast<double>(in.query.shape[3]));
  const auto bytes = static_cast<std::size_t>(in.key.shape[1]) * sizeof(double);
  cudaFuncSetAttribute(compare_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024);
  compare_kernel<<<grid, 128, bytes>>>(
      View(in.query), View(in.key), View(in.value), View(output), in.lse, in.key_lengths,
      static_cast<int>(in.query.shape[1]), static_cast<int>(in.key.shape[1]),
      static_cast<int>(heads), static_cast<int>(in.query.shape[2] / in.key.shape[2]),
      static_cast<int>(in.query.shape[3]), scale, row_step, found.get());
  Difference host;
  EXPECT_EQ(cudaSuccess, cudaMemcpy(&host, found.get(), sizeof host, cudaMemcpyDeviceToHost));
  return host;
}

}  // namespace xstage::ulysses::test
