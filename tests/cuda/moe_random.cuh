// Random operands made on the GPU, and readers of e4m3 and bf16, for tests of the MoE kernels.
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

namespace xstage::moe_test {

inline void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::printf("FAILED %s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}

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

__device__ inline float from_e4m3(std::uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

__host__ __device__ inline float from_bf16(std::uint16_t bits) {
  union {
    std::uint32_t u;
    float f;
  } v{static_cast<std::uint32_t>(bits) << 16};
  return v.f;
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

static __global__ void fill_bf16(std::uint16_t* out, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    out[i] = to_bf16(normal(seed, static_cast<std::uint64_t>(i)));
}

template <class T>
T* device_array(std::int64_t count) {
  T* p = nullptr;
  check(cudaMalloc(&p, static_cast<std::size_t>(count) * sizeof(T) + 16), "cudaMalloc");
  return p;
}

/// Writes measured times as one JSON document: what was measured, where, and from which sources.
class Results {
 public:
  void add(const std::string& layer, long tokens, const std::string& what, double us) {
    std::printf("TIME   %-18s M=%-5ld %-24s %8.1f us\n", layer.c_str(), tokens, what.c_str(), us);
    char line[256];
    std::snprintf(line, sizeof line,
                  "    {\"layer\": \"%s\", \"tokens\": %ld, \"what\": \"%s\", \"median_us\": %.1f}",
                  layer.c_str(), tokens, what.c_str(), us);
    rows_.push_back(line);
  }
  void write(const std::string& path, const std::string& tool, const std::string& commit) const {
    if (path.empty()) return;
    cudaDeviceProp gpu{};
    int driver = 0, runtime = 0, gpus = 0;
    check(cudaGetDeviceProperties(&gpu, 0), "properties");
    check(cudaDriverGetVersion(&driver), "driver");
    check(cudaRuntimeGetVersion(&runtime), "runtime");
    check(cudaGetDeviceCount(&gpus), "count");
    const std::time_t now = std::time(nullptr);
    char date[32];
    std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
    std::FILE* const file = std::fopen(path.c_str(), "w");
    if (file == nullptr) {
      std::printf("FAILED cannot write %s\n", path.c_str());
      std::exit(1);
    }
    std::fprintf(
        file,
        "{\n  \"provenance\": {\"tool\": \"%s\", \"created_utc\": \"%s\", \"commit\": \"%s\",\n"
        "    \"gpu\": \"%s\", \"gpus\": %d, \"driver_cuda\": %d, \"runtime_cuda\": %d},\n"
        "  \"rows\": [\n",
        tool.c_str(), date, commit.c_str(), gpu.name, gpus, driver, runtime);
    for (std::size_t i = 0; i < rows_.size(); ++i)
      std::fprintf(file, "%s%s\n", rows_[i].c_str(), i + 1 < rows_.size() ? "," : "");
    std::fprintf(file, "  ]\n}\n");
    std::fclose(file);
  }

 private:
  std::vector<std::string> rows_;
};

}  // namespace xstage::moe_test
