// How exact Linear-1 is before its result is quantised, and what limits it: the product code of the
// fused kernel, its sums written in fp32, against sums in double precision over the same codes and
// scales; beside it single products of the Tensor Core, other depths between additions in fp32, and
// cuBLAS. Then the same for what SwiGLU and the quantisation make of the sums.
//   moe_accuracy_device
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cuda/moe/cublas_gemm.hpp"
#include "cuda/moe/loader.cuh"
#include "cuda/moe/numbers.cuh"
#include "cuda/moe/product.cuh"
#include "cuda/moe/tensor_map.hpp"
#include "cuda/ptx/warpgroup.cuh"
#include "moe_random.cuh"

namespace xstage::moe_test {
namespace {

using moe::kBlockK;
using moe::kBlockM;
using moe::kGroupRows;
using moe::kHalfN;
using moe::kStages;

/// Linear-1 of one expert: `rows` blocks of 128 tokens, weights of 2·intermediate rows.
struct Linear1 {
  std::uint8_t* a;
  float* a_scales;  ///< [rows][hidden/128][128]
  std::uint8_t* b;
  float* b_scales;  ///< [2·intermediate/128][hidden/128]
  float* sums;      ///< [rows·128][2·intermediate]
  double* exact;    ///< the same in double precision
  int rows, hidden, intermediate;
};

/// The product code, or `kChain` products of depth 32 between two additions in fp32.
template <int kChain>
__device__ void multiply(moe::TileShared& s, moe::Ring<kStages>& ring, int steps, const float* b0,
                         const float* b1, moe::Sums& sums) {
  if constexpr (kChain == 0) {
    moe::WeightScales scales{{b0, b1}, steps, {}};
    scales.load(0);
    moe::multiply_tile(s, ring, scales, sums);
    return;
  }
  const int group = static_cast<int>(threadIdx.x / 128);
  const int row = group * kGroupRows + moe::first_row();
  for (int i = 0; i < 64; ++i) sums.half[0][i] = sums.half[1][i] = 0;
  for (int step = 0; step < steps; ++step) {
    const int i = ring.index;
    moe::wait(s, &s.full[i], ring.parity, moe::Awaited::kStep);
    const float a0 = s.a_scales[i][row], a1 = s.a_scales[i][row + 8];
    const std::uint64_t a = ptx::swizzled_descriptor(&s.a[i][group * kGroupRows * kBlockK], 16);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = half == 0 ? b0[step] : b1[step];
      const std::uint64_t b = ptx::swizzled_descriptor(s.b[i][half], 16);
#pragma unroll
      for (int part = 0; part < 4; part += kChain == 0 ? 4 : kChain) {
        float product[64];
        ptx::hold_registers(product);
        ptx::wgmma_fence();
        ptx::wgmma_m64n128k32_e4m3<false>(product, a + 2 * part, b + 2 * part);
#pragma unroll
        for (int j = 1; j < kChain; ++j)
          ptx::wgmma_m64n128k32_e4m3<true>(product, a + 2 * (part + j), b + 2 * (part + j));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::hold_registers(product);
        moe::add_scaled(sums.half[half], product, a0 * scale, a1 * scale);
      }
    }
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&s.empty[i]);
    ring.advance();
  }
}

/// A block a tile.
template <int kChain>
__global__ void __launch_bounds__(moe::kThreads, 1)
    write_sums(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
               const Linear1 p) {
  extern __shared__ __align__(1024) std::uint8_t raw[];
  moe::TileShared& s = *reinterpret_cast<moe::TileShared*>(raw);
  if (threadIdx.x == 0) moe::init_barriers(s, 1000000000);
  __syncthreads();
  const int row = static_cast<int>(blockIdx.x), column = static_cast<int>(blockIdx.y);
  const int steps = p.hidden / kBlockK;
  const int blocks[2] = {column, p.intermediate / kHalfN + column};
  moe::Ring<kStages> ring;
  if (threadIdx.x == 32 * moe::kMathWarps)
    moe::load_tile(s, ring,
                   {&a,
                    &b,
                    row * kBlockM,
                    {blocks[0] * kHalfN, blocks[1] * kHalfN},
                    p.a_scales + row * steps * kBlockM,
                    steps,
                    kBlockM},
                   [] {});
  if (threadIdx.x >= 32 * moe::kMathWarps) return;
  moe::Sums sums;
  multiply<kChain>(s, ring, steps, p.b_scales + blocks[0] * steps, p.b_scales + blocks[1] * steps,
                   sums);
  const int first = row * kBlockM + static_cast<int>(threadIdx.x / 128) * kGroupRows;
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int token = first + moe::first_row() + 8 * (i % 4 / 2);
      const int at = blocks[half] * kHalfN + i / 4 * 8 + static_cast<int>(threadIdx.x % 4) * 2;
      p.sums[std::int64_t{token} * 2 * p.intermediate + at + i % 2] = sums.half[half][i];
    }
}

/// A block a token.
__global__ void exact_sums(const Linear1 p) {
  const int token = static_cast<int>(blockIdx.x), steps = p.hidden / 128;
  for (int n = static_cast<int>(threadIdx.x); n < 2 * p.intermediate;
       n += static_cast<int>(blockDim.x)) {
    double sum = 0;
    for (int step = 0; step < steps; ++step) {
      double part = 0;
      for (int i = step * 128; i < (step + 1) * 128; ++i)
        part += static_cast<double>(from_e4m3(p.a[std::int64_t{token} * p.hidden + i])) *
                static_cast<double>(from_e4m3(p.b[std::int64_t{n} * p.hidden + i]));
      sum += part *
             static_cast<double>(p.a_scales[(token / 128 * steps + step) * 128 + token % 128]) *
             static_cast<double>(p.b_scales[n / 128 * steps + step]);
    }
    p.exact[std::int64_t{token} * 2 * p.intermediate + n] = sum;
  }
}

/// Clears what does not belong to the first `used` of 128 values.
__global__ void keep_first(std::uint8_t* codes, std::int64_t count, int used) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    if (i % 128 >= used) codes[i] = 0;
}

template <class T>
std::vector<T> download(const T* from, std::int64_t count) {
  std::vector<T> out(static_cast<std::size_t>(count));
  check(cudaMemcpy(out.data(), from, out.size() * sizeof(T), cudaMemcpyDeviceToHost), "copy");
  return out;
}

template <class A, class B>
double relative(const std::vector<A>& got, const std::vector<B>& wanted) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto w = static_cast<double>(wanted[i]), d = static_cast<double>(got[i]) - w;
    difference += d == d ? d * d : 1e30;
    norm += w * w;
  }
  return std::sqrt(difference / norm);
}

float e4m3_rounded(float value) {
  return __half2float(__half(
      __nv_cvt_fp8_to_halfraw(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3), __NV_E4M3)));
}

/// What follows the sums, a token's groups behind each other.
struct Middle {
  std::vector<double> values, largest, quantised;
};
template <class T>
Middle middle_of(const std::vector<T>& sums, int intermediate) {
  Middle out;
  for (std::size_t at = 0; at < sums.size(); at += 2 * static_cast<std::size_t>(intermediate))
    for (int first = 0; first < intermediate; first += 128) {
      double largest = 0;
      for (int i = first; i < first + 128; ++i) {
        const auto gate = static_cast<double>(sums[at + static_cast<std::size_t>(i)]);
        const auto up = static_cast<double>(sums[at + static_cast<std::size_t>(i + intermediate)]);
        out.values.push_back(gate / (1 + std::exp(-gate)) * up);
        largest = std::max(largest, std::abs(out.values.back()));
      }
      out.largest.push_back(largest);
      const float scale = static_cast<float>(largest) / 448.0f;
      for (std::size_t i = out.values.size() - 128; i < out.values.size(); ++i)
        out.quantised.push_back(
            static_cast<double>(scale * e4m3_rounded(static_cast<float>(out.values[i]) / scale)));
    }
  return out;
}

template <int kChain>
std::vector<float> sums_of(const Linear1& p, const CUtensorMap& a, const CUtensorMap& b) {
  const std::int64_t count = std::int64_t{p.rows} * 128 * 2 * p.intermediate;
  check(cudaMemset(p.sums, 0xff, static_cast<std::size_t>(count) * 4), "poison");
  check(cudaFuncSetAttribute(write_sums<kChain>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(moe::TileShared)),
        "shared memory");
  write_sums<kChain>
      <<<dim3(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.intermediate / kHalfN)),
         moe::kThreads, sizeof(moe::TileShared)>>>(a, b, p);
  check(cudaDeviceSynchronize(), "sums");
  return download(p.sums, count);
}

/// Every mantissa of bf16 over every mantissa of a largest magnitude, at some exponents.
__global__ void count_wrong_quotients(unsigned long long* wrong) {
  const float largest =
      ldexpf(128.0f + static_cast<float>(blockIdx.x), static_cast<int>(blockIdx.y) * 9 - 81);
  const float value = ldexpf(128.0f + static_cast<float>(threadIdx.x),
                             static_cast<int>(blockIdx.y) * 9 - 81 - static_cast<int>(threadIdx.y));
  if (value > largest) return;
  const float scale = moe::scale_of_group(largest);
  if (moe::quotient(value, scale, 1.0f / scale) != value / scale) atomicAdd(wrong, 1ull);
}

/// What the prologue quantises with is the division of the format.
bool quotients() {
  auto* const wrong = device_array<unsigned long long>(1);
  check(cudaMemset(wrong, 0, 8), "memset");
  count_wrong_quotients<<<dim3(128, 19), dim3(128, 8)>>>(wrong);
  unsigned long long host = 1;
  check(cudaMemcpy(&host, wrong, 8, cudaMemcpyDeviceToHost), "quotients");
  check(cudaFree(wrong), "free");
  std::printf("%s %llu quotients are not those of a division\n", host == 0 ? "ok    " : "WRONG ",
              host);
  return host == 0;
}

/// `used`: of 128 values, those that are not zero.
struct Case {
  int hidden, used;
};

bool run(const Case& c, std::uint64_t seed) {
  Linear1 p{};
  p.rows = 2, p.hidden = c.hidden, p.intermediate = 256;
  const std::int64_t tokens = p.rows * 128, n = 2 * p.intermediate, steps = p.hidden / 128;
  p.a = device_array<std::uint8_t>(tokens * p.hidden);
  p.b = device_array<std::uint8_t>(n * p.hidden);
  p.a_scales = device_array<float>(p.rows * steps * 128);
  p.b_scales = device_array<float>(n / 128 * steps);
  p.sums = device_array<float>(tokens * n);
  p.exact = device_array<double>(tokens * n);
  fill_codes<<<512, 256>>>(p.a, tokens * p.hidden, seed, 150.0f);
  fill_codes<<<512, 256>>>(p.b, n * p.hidden, seed + 1, 60.0f);
  fill_scales<<<64, 256>>>(p.a_scales, tokens * steps, seed + 2, 0.5f / 150, 1.5f / 150);
  const float about = 2 / std::sqrt(static_cast<float>(p.hidden)) / 60;
  fill_scales<<<64, 256>>>(p.b_scales, n / 128 * steps, seed + 3, 0.5f * about, 1.5f * about);
  keep_first<<<512, 256>>>(p.a, tokens * p.hidden, c.used);
  exact_sums<<<static_cast<unsigned>(tokens), 256>>>(p);
  check(cudaDeviceSynchronize(), "exact");
  const auto a = moe::byte_map(p.a, tokens, p.hidden, kBlockM, "a");
  const auto b = moe::byte_map(p.b, n, p.hidden, kHalfN, "b");
  if (!a || !b) {
    std::printf("FAILED tensor maps\n");
    std::exit(1);
  }
  const auto exact = download(p.exact, tokens * n);
  const auto sums = sums_of<0>(p, *a, *b);
  const double error = relative(sums, exact);
  const bool ok = error <= 1e-3;
  std::printf("%s H=%-5d of 128 values %-3d  sums %.2e  added every 32: %.2e  64: %.2e  128: %.2e",
              ok ? "ok    " : "WRONG ", c.hidden, c.used, error,
              relative(sums_of<1>(p, *a, *b), exact), relative(sums_of<2>(p, *a, *b), exact),
              relative(sums_of<4>(p, *a, *b), exact));
  if (c.used == 128) {
    const Middle got = middle_of(sums, p.intermediate), wanted = middle_of(exact, p.intermediate);
    std::printf("  after SwiGLU %.2e  largest %.2e  quantised %.2e  (by quantising %.2e)",
                relative(got.values, wanted.values), relative(got.largest, wanted.largest),
                relative(got.quantised, wanted.quantised),
                relative(wanted.quantised, wanted.values));
  }
  std::printf("\n");
  for (void* array :
       {static_cast<void*>(p.a), static_cast<void*>(p.b), static_cast<void*>(p.a_scales),
        static_cast<void*>(p.b_scales), static_cast<void*>(p.sums), static_cast<void*>(p.exact)})
    check(cudaFree(array), "free");
  return ok;
}

/// cuBLAS over codes without scales, both ways of adding.
void run_cublas(moe::Cublas& cublas, int hidden, std::uint64_t seed) {
  Linear1 p{};
  p.rows = 4, p.hidden = hidden, p.intermediate = 256;
  const std::int64_t tokens = p.rows * 128, n = 2 * p.intermediate, steps = hidden / 128;
  p.a = device_array<std::uint8_t>(tokens * hidden);
  p.b = device_array<std::uint8_t>(n * hidden);
  p.a_scales = device_array<float>(tokens * steps);
  p.b_scales = device_array<float>(n / 128 * steps);
  p.sums = device_array<float>(tokens * n);
  p.exact = device_array<double>(tokens * n);
  constexpr std::int64_t kWorkspace = 32 << 20;
  auto* const workspace = device_array<std::uint8_t>(kWorkspace);
  fill_codes<<<512, 256>>>(p.a, tokens * hidden, seed, 150.0f);
  fill_codes<<<512, 256>>>(p.b, n * hidden, seed + 1, 60.0f);
  fill_scales<<<64, 256>>>(p.a_scales, tokens * steps, seed, 1, 1);
  fill_scales<<<64, 256>>>(p.b_scales, n / 128 * steps, seed, 1, 1);
  exact_sums<<<static_cast<unsigned>(tokens), 256>>>(p);
  check(cudaDeviceSynchronize(), "exact");
  const auto exact = download(p.exact, tokens * n);
  std::printf("       H=%-5d cuBLAS", hidden);
  for (const bool fast : {false, true}) {
    moe::DenseGemm gemm{p.a, p.b, p.sums, tokens, n, hidden, workspace, kWorkspace};
    gemm.fast = fast;
    gemm.out_fp32 = true;
    auto prepared = cublas.prepare(gemm);
    if (!prepared || !(*prepared)->launch(nullptr)) {
      std::printf("  %s: refused (%s)", fast ? "fast" : "exact",
                  prepared ? "launch" : prepared.error().message().c_str());
      continue;
    }
    check(cudaDeviceSynchronize(), "cuBLAS");
    std::printf("  %s %.2e", fast ? "all in the Tensor Core's sums" : "sums in fp32",
                relative(download(p.sums, tokens * n), exact));
  }
  std::printf("\n");
  for (void* array :
       {static_cast<void*>(p.a), static_cast<void*>(p.b), static_cast<void*>(p.a_scales),
        static_cast<void*>(p.b_scales), static_cast<void*>(p.sums), static_cast<void*>(p.exact),
        static_cast<void*>(workspace)})
    check(cudaFree(array), "free");
}

}  // namespace
}  // namespace xstage::moe_test

int main() {
  using namespace xstage::moe_test;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("SKIP: no GPU\n");
    return 77;
  }
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  bool ok = quotients();
  for (const int used : {32, 64, 128}) ok = run({128, used}, seed) && ok;
  for (const int hidden : {256, 512, 1024, 2048, 4096, 7168}) ok = run({hidden, 128}, seed) && ok;
  if (const auto cublas = xstage::moe::open_cublas())
    for (const int hidden : {512, 2048, 7168}) run_cublas(*cublas, hidden, seed);
  std::printf("%s\n", ok ? "PASSED" : "FAILED");
  return ok ? 0 : 1;
}
