// Random operands on the GPU, readers of e4m3 and bf16, and results, for tests of the MoE kernels.
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "cuda/moe/fill.cuh"

namespace xstage::moe_test {

inline void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::printf("FAILED %s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}

using moe::fill_bf16;
using moe::fill_codes;
using moe::fill_scales;
using moe::mixed;
using moe::normal;
using moe::to_bf16;
using moe::to_e4m3;

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
