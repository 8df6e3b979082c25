// The grouped GEMM of the MoE tiles on a GPU: right against a plain fp32 product.
//   moe_gemm_device                            checks
//   moe_gemm_device --time [FILE [COMMIT]]     also times, and writes them as JSON
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/moe/grouped_gemm.hpp"
#include "moe_random.cuh"

namespace xstage::moe_test {
namespace {

struct Layer {
  const char* name;
  std::int64_t hidden, intermediate, experts, topk;
};

constexpr Layer kLayers[] = {
    {"lingbot-video", 2048, 768, 128, 8}, {"qwen3.5-397b", 4096, 1024, 512, 10},
    {"hy3", 4096, 1536, 192, 8},          {"deepseek-v4-flash", 4096, 2048, 256, 6},
    {"glm-5", 6144, 2048, 256, 8},        {"deepseek-v4-pro", 7168, 3072, 384, 6}};

/// Relative squared error of sampled rows, and the worst row's.
__global__ void compare(moe::GroupedGemm g, int step, double* sums, float* worst) {
  const std::int64_t token = std::int64_t{blockIdx.x} * step;
  const std::int64_t row = token / 128;
  if (token % 128 >= g.row_tokens[row]) return;
  const std::int64_t expert = g.row_expert[row], steps = g.k / 128;
  const auto* const a = static_cast<const std::uint8_t*>(g.a);
  const auto* const b = static_cast<const std::uint8_t*>(g.b);
  __shared__ double block_error, block_norm;
  if (threadIdx.x == 0) block_error = block_norm = 0;
  __syncthreads();
  double error = 0, norm = 0;
  for (std::int64_t n = threadIdx.x; n < g.n; n += blockDim.x) {
    float sum = 0;
    for (std::int64_t k = 0; k < steps; ++k) {
      float part = 0;
      for (int i = 0; i < 128; ++i)
        part += from_e4m3(a[token * g.k + k * 128 + i]) *
                from_e4m3(b[(expert * g.n + n) * g.k + k * 128 + i]);
      sum += part * g.a_scales[(row * steps + k) * 128 + token % 128] *
             g.b_scales[(expert * (g.n / 128) + n / 128) * steps + k];
    }
    const float got = from_bf16(g.out[token * g.n + n]);
    const double difference = static_cast<double>(got) - sum;
    error += got == got ? difference * difference : 1e30;
    norm += static_cast<double>(sum) * sum;
  }
  atomicAdd(&block_error, error);
  atomicAdd(&block_norm, norm);
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(&sums[0], block_error);
    atomicAdd(&sums[1], block_norm);
    atomicMax(reinterpret_cast<int*>(worst),
              __float_as_int(static_cast<float>(sqrt(block_error / block_norm))));
  }
}

struct Problem {
  moe::GroupedGemm g;
  std::vector<void*> arrays;
  std::int64_t tokens = 0;
};

Problem make(const std::vector<std::int32_t>& counts, std::int64_t n, std::int64_t k,
             std::uint64_t seed) {
  Problem p;
  std::vector<std::int32_t> experts, tokens;
  for (std::size_t e = 0; e < counts.size(); ++e)
    for (std::int32_t at = 0; at < counts[e]; at += 128) {
      experts.push_back(static_cast<std::int32_t>(e));
      tokens.push_back(std::min(128, counts[e] - at));
      p.tokens += tokens.back();
    }
  const auto rows = static_cast<std::int64_t>(experts.size());
  const auto groups = static_cast<std::int64_t>(counts.size());
  auto* a = device_array<std::uint8_t>(rows * 128 * k);
  auto* as = device_array<float>(rows * k);
  auto* b = device_array<std::uint8_t>(groups * n * k);
  auto* bs = device_array<float>(groups * (n / 128) * (k / 128));
  auto* out = device_array<std::uint16_t>(rows * 128 * n);
  auto* re = device_array<std::int32_t>(rows);
  auto* rt = device_array<std::int32_t>(rows);
  auto* claimed = device_array<std::uint64_t>(1);
  fill_codes<<<2048, 256>>>(a, rows * 128 * k, seed, 60.0f);
  fill_scales<<<512, 256>>>(as, rows * k, seed + 1, 0.005f, 0.02f);
  fill_codes<<<2048, 256>>>(b, groups * n * k, seed + 2, 60.0f);
  fill_scales<<<512, 256>>>(bs, groups * (n / 128) * (k / 128), seed + 3, 0.0001f, 0.0005f);
  check(cudaMemcpy(re, experts.data(), static_cast<std::size_t>(rows) * 4, cudaMemcpyHostToDevice),
        "copy");
  check(cudaMemcpy(rt, tokens.data(), static_cast<std::size_t>(rows) * 4, cudaMemcpyHostToDevice),
        "copy");
  check(cudaMemset(out, 0xff, static_cast<std::size_t>(rows * 128 * n) * 2), "poison");
  check(cudaDeviceSynchronize(), "fill");
  p.g = {a, as, b, bs, out, re, rt, claimed, rows, groups, n, k};
  p.arrays = {a, as, b, bs, out, re, rt, claimed};
  return p;
}

void release(Problem& p) {
  for (void* array : p.arrays) check(cudaFree(array), "free");
}

bool right(const Problem& p, int step, const char* name) {
  double* sums = device_array<double>(3);
  check(cudaMemset(sums, 0, 24), "memset");
  const auto blocks = static_cast<unsigned>((p.g.rows * 128 + step - 1) / step);
  compare<<<blocks, 256>>>(p.g, step, sums, reinterpret_cast<float*>(sums + 2));
  check(cudaDeviceSynchronize(), "compare");
  double host[3];
  check(cudaMemcpy(host, sums, 24, cudaMemcpyDeviceToHost), "copy");
  check(cudaFree(sums), "free");
  float worst;
  std::memcpy(&worst, host + 2, 4);
  const double error = std::sqrt(host[0] / host[1]);
  const bool ok = error < 3e-3 && host[1] > 0;
  std::printf("%s %-28s relative error %.2e, worst row %.2e\n", ok ? "ok    " : "WRONG ", name,
              error, static_cast<double>(worst));
  return ok;
}

void run(const Problem& p, int blocks) {
  const auto done = moe::launch<moe::W8a8>(p.g, blocks, nullptr);
  if (!done) {
    std::printf("FAILED %s\n", done.error().message().c_str());
    std::exit(1);
  }
}

double median_us(const Problem& p, int blocks, int repeats) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < repeats + 3; ++i) {
    check(cudaEventRecord(begin), "record");
    run(p, blocks);
    check(cudaEventRecord(end), "record");
    check(cudaEventSynchronize(end), "gemm");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 3) times.push_back(ms * 1000);
  }
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]);
}

std::vector<std::int32_t> balanced(std::int64_t pairs, std::int64_t experts, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(experts), 0);
  for (std::int64_t i = 0; i < pairs; ++i) ++counts[random() % counts.size()];
  return counts;
}

}  // namespace
}  // namespace xstage::moe_test

int main(int argc, char** argv) {
  using namespace xstage::moe_test;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cudaDeviceProp device{};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) {
    std::printf("SKIP: no GPU\n");
    return 77;
  }
  const int blocks = device.multiProcessorCount;
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  bool ok = true;
  {
    Problem p = make({1, 63, 64, 0, 65, 127, 128, 129, 500}, 512, 384, seed);
    run(p, blocks);
    check(cudaDeviceSynchronize(), "gemm");
    ok = right(p, 1, "1,63,64,0,65,127,128,129,500") && ok;
    release(p);
    p = make({300}, 256, 128, seed + 9);
    run(p, blocks);
    check(cudaDeviceSynchronize(), "gemm");
    ok = right(p, 1, "one expert, one step") && ok;
    release(p);
  }
  if (argc > 1 && std::string(argv[1]) == "--time") {
    Results results;
    for (const std::int64_t tokens : {8192, 1024})
      for (const Layer& layer : kLayers) {
        const std::int64_t pairs = tokens * layer.topk;  // of two ranks, half of them here
        const auto counts = balanced(pairs, layer.experts / 2, seed);
        double us[2];
        for (int linear = 0; linear < 2; ++linear) {
          const std::int64_t n = linear == 0 ? 2 * layer.intermediate : layer.hidden;
          const std::int64_t k = linear == 0 ? layer.hidden : layer.intermediate;
          Problem p = make(counts, n, k, seed + static_cast<std::uint64_t>(linear));
          us[linear] = median_us(p, blocks, 15);
          const double flops = 2.0 * static_cast<double>(pairs) * static_cast<double>(n * k);
          const std::string name =
              std::string(layer.name) + (linear == 0 ? " L1 " : " L2 ") + std::to_string(tokens);
          ok = right(p, 4099, name.c_str()) && ok;
          std::printf("       %8.1f us  %6.0f TFLOP/s\n", us[linear], flops / us[linear] * 1e-6);
          release(p);
        }
        results.add(layer.name, static_cast<long>(tokens), "linear1", us[0]);
        results.add(layer.name, static_cast<long>(tokens), "linear2", us[1]);
      }
    results.write(argc > 2 ? argv[2] : "", "moe_gemm_device --time", argc > 3 ? argv[3] : "");
  }
  std::printf("%s\n", ok ? "PASSED" : "FAILED");
  return ok ? 0 : 1;
}
