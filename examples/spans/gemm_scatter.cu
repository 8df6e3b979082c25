// A kernel of a kind that people have: a persistent GEMM whose epilogue stores every output tile
// straight into a peer's memory. Runs it with and without spans, says what recording costs, and
// writes the spans as JSON (for `xstage plan --from-spans`) and as a timeline.
//
//   gemm_scatter [SPANS.json [TRACE.json]]
//
// The multiplication is plain WMMA from global memory: what matters here is the epilogue.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "xstage/span.cuh"

namespace {

constexpr int kTile = 128;     // rows and columns of an output tile
constexpr int kThreads = 256;  // 8 warps, each 32x64 of the tile
constexpr int kTileBytes = kTile * kTile * 2;

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "gemm_scatter: %s: %s\n", what, cudaGetErrorString(code));
  std::exit(code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ? 3 : 1);
}

/// C = A·B with A (m x k) row major, B (k x n) row major; C goes to the peer, tile by tile.
__global__ void __launch_bounds__(kThreads)
    gemm_scatter(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* peer_c, int m,
                 int n, int k, xstage::SpanBuffer buffer) {
  using namespace nvcuda;
  __shared__ __align__(16) float piece[kThreads / 32][16 * 16];
  __shared__ __align__(16) __nv_bfloat16 tile[kTile * kTile / 2];
  xstage::Spans spans(buffer);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tiles_n = n / kTile, tiles = m / kTile * tiles_n;
  for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int row = t / tiles_n * kTile, column = t % tiles_n * kTile;
    // A tile in two halves of 64 columns, so that its bf16 form fits static shared memory.
    uint4 held[2][kTile * kTile / 2 * 2 / 16 / kThreads];
    for (int half = 0; half < 2; ++half) {
      const int r0 = row + warp / 2 * 32, c0 = column + half * 64 + warp % 2 * 32;
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2];
      for (auto& line : sum)
        for (auto& one : line) wmma::fill_fragment(one, 0.0f);
      for (int kk = 0; kk < k; kk += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> fa[2];
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> fb[2];
        for (int i = 0; i < 2; ++i) {
          wmma::load_matrix_sync(fa[i], a + static_cast<size_t>(r0 + 16 * i) * k + kk, k);
          wmma::load_matrix_sync(fb[i], b + static_cast<size_t>(kk) * n + c0 + 16 * i, n);
        }
        for (int i = 0; i < 2; ++i)
          for (int j = 0; j < 2; ++j) wmma::mma_sync(sum[i][j], fa[i], fb[j], sum[i][j]);
      }
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) {
          wmma::store_matrix_sync(piece[warp], sum[i][j], 16, wmma::mem_row_major);
          __syncwarp();
          for (int e = lane; e < 256; e += 32)
            tile[(warp / 2 * 32 + 16 * i + e / 16) * 64 + warp % 2 * 32 + 16 * j + e % 16] =
                __float2bfloat16(piece[warp][e]);
          __syncwarp();
        }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        held[half][i] = reinterpret_cast<const uint4*>(tile)[i * kThreads + threadIdx.x];
      __syncthreads();
    }
    spans.begin();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = i * kThreads + threadIdx.x;  // 8 pieces of 16 bytes a half row
        *reinterpret_cast<uint4*>(peer_c + static_cast<size_t>(row + at / 8) * n + column +
                                  half * 64 + at % 8 * 8) = held[half][i];
      }
    spans.end();
  }
}

__global__ void fill(__nv_bfloat16* p, size_t count, unsigned seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const unsigned x = (static_cast<unsigned>(i) ^ seed) * 2654435761u;
    p[i] = __float2bfloat16(static_cast<float>(x >> 20) / 4096.0f - 0.5f);
  }
}

/// Largest difference to a double-precision product, over a sample of elements.
double worst_error(const std::vector<__nv_bfloat16>& a, const std::vector<__nv_bfloat16>& b,
                   const std::vector<__nv_bfloat16>& c, int m, int n, int k) {
  double worst = 0;
  for (int s = 0; s < 400; ++s) {
    const int i = s * 7919 % m, j = s * 104729 % n;
    double sum = 0;
    for (int x = 0; x < k; ++x)
      sum += static_cast<double>(__bfloat162float(a[static_cast<size_t>(i) * k + x])) *
             __bfloat162float(b[static_cast<size_t>(x) * n + j]);
    worst = std::max(worst, std::abs(sum - __bfloat162float(c[static_cast<size_t>(i) * n + j])));
  }
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  int gpus = 0;
  check(cudaGetDeviceCount(&gpus), "no GPU");
  const int peer = gpus > 1 ? 1 : 0;
  if (peer == 0) std::printf("one GPU only: the tiles go to its own memory\n");
  cudaDeviceProp prop{};
  check(cudaGetDeviceProperties(&prop, 0), "properties");
  const int m = 4096, n = 8448, k = 256;
  __nv_bfloat16 *a = nullptr, *b = nullptr, *c = nullptr;
  check(cudaSetDevice(peer), "device");
  check(cudaMalloc(&c, sizeof(*c) * m * n), "memory");
  check(cudaMemset(c, 0xff, sizeof(*c) * m * n), "memory");
  check(cudaDeviceSynchronize(), "memory");
  check(cudaSetDevice(0), "device");
  if (peer != 0) check(cudaDeviceEnablePeerAccess(peer, 0), "peer access");
  check(cudaMalloc(&a, sizeof(*a) * m * k), "memory");
  check(cudaMalloc(&b, sizeof(*b) * k * n), "memory");
  fill<<<512, 256>>>(a, static_cast<size_t>(m) * k, 1);
  fill<<<512, 256>>>(b, static_cast<size_t>(k) * n, 2);
  const int blocks = prop.multiProcessorCount;
  xstage::SpanCollector collector(static_cast<std::uint32_t>(blocks), 256);

  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  const auto median_us = [&](xstage::SpanBuffer buffer) {
    std::vector<float> times;
    for (int i = 0; i < 31; ++i) {
      check(cudaEventRecord(begin), "event");
      gemm_scatter<<<blocks, kThreads>>>(a, b, c, m, n, k, buffer);
      check(cudaGetLastError(), "launch");
      check(cudaEventRecord(end), "event");
      check(cudaEventSynchronize(end), "kernel");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end), "event");
      times.push_back(ms * 1e3f);
    }
    std::sort(times.begin(), times.end());
    return static_cast<double>(times[times.size() / 2]);
  };
  median_us({});
  const double without = median_us({}), with = median_us(collector.buffer()), again = median_us({});
  std::printf(
      "%d tiles of %d bytes by %d blocks: %.1f us without spans (%.1f again), %.1f us with, "
      "%+.2f %%\n",
      m / kTile * (n / kTile), kTileBytes, blocks, without, again, with,
      (with / (0.5 * (without + again)) - 1) * 100);

  std::vector<__nv_bfloat16> ha(static_cast<size_t>(m) * k), hb(static_cast<size_t>(k) * n),
      hc(static_cast<size_t>(m) * n);
  check(cudaMemcpy(ha.data(), a, ha.size() * 2, cudaMemcpyDeviceToHost), "copy");
  check(cudaMemcpy(hb.data(), b, hb.size() * 2, cudaMemcpyDeviceToHost), "copy");
  check(cudaMemcpy(hc.data(), c, hc.size() * 2, cudaMemcpyDeviceToHost), "copy");
  const double error = worst_error(ha, hb, hc, m, n, k);
  std::printf(
      "largest error of 400 elements at the peer: %.4f (products of up to %d terms in bf16)\n",
      error, k);

  xstage::SpanLabels labels;
  labels.kernel = "gemm_scatter";
  labels.bytes = kTileBytes;
  labels.threads = kThreads;
  if (argc > 1) std::ofstream(argv[1]) << collector.json(labels);
  if (argc > 2) std::ofstream(argv[2]) << collector.trace(labels);
  return error < 0.1 ? 0 : 1;
}
