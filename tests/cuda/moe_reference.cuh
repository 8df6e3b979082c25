// The MoE layer in plain fp32 on a GPU, with the kernel's quantisation points, and comparisons with
// it. Shares no code with the kernels.
#pragma once

#include "cuda/moe/layer.hpp"
#include "moe_random.cuh"

namespace xstage::moe_test {

/// Weights as the reference reads them: every rank's, through peer access.
struct AllWeights {
  moe::RankWeights of[moe::kMaxRanks];
  std::int64_t hidden, intermediate, local;
};

/// One warp: the product of a token of floats in shared memory with row `row` of a weight matrix,
/// e4m3 with the scales of that row's blocks, or bf16 without.
__device__ inline float dot(const float* x, const void* matrix, std::int64_t row,
                            const float* scales, std::int64_t depth) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float sum = 0;
  if (scales == nullptr) {
    const auto* const w = static_cast<const std::uint16_t*>(matrix) + row * depth;
    for (std::int64_t k = lane; k < depth; k += 32) sum += x[k] * from_bf16(w[k]);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
  }
  const auto* const codes = static_cast<const std::uint8_t*>(matrix) + row * depth;
  for (std::int64_t k = 0; k < depth; k += 128) {
    const uchar4 c = *reinterpret_cast<const uchar4*>(codes + k + 4 * lane);
    const float* const v = x + k + 4 * lane;
    sum += scales[k / 128] * (v[0] * from_e4m3(c.x) + v[1] * from_e4m3(c.y) +
                              v[2] * from_e4m3(c.z) + v[3] * from_e4m3(c.w));
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

/// Values as they are after quantisation by groups of 128, and each group's largest magnitude
/// before it; whole block.
__device__ inline void quantise(float* values, std::int64_t count, float* magnitudes = nullptr) {
  for (std::int64_t g = threadIdx.x / 32; g < count / 128; g += blockDim.x / 32) {
    float* const v = values + g * 128 + 4 * (threadIdx.x % 32);
    float largest = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    for (int step = 16; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    if (magnitudes != nullptr && threadIdx.x % 32 == 0) magnitudes[g] = largest;
    const float scale = fmaxf(largest, 1e-30f) / 448.0f;
    for (int i = 0; i < 4; ++i) v[i] = scale * from_e4m3(to_e4m3(v[i] / scale));
  }
  __syncthreads();
}

/// middle[pair][I], Linear-1 as Linear-2 reads it; largest[pair][I/128], the largest magnitude of
/// each group before quantisation. A block a pair.
static __global__ void reference_linear1(AllWeights w, const std::uint16_t* x,
                                         const std::int32_t* experts, const float* weights,
                                         const std::int64_t* pairs, int topk, float clamp,
                                         float* middle, float* largest) {
  extern __shared__ float values[];
  const std::int64_t pair = pairs[blockIdx.x], token = pair / topk;
  float* const out = middle + blockIdx.x * w.intermediate;
  const std::int32_t expert = experts[pair];
  for (std::int64_t i = threadIdx.x; i < w.hidden; i += blockDim.x)
    values[i] = from_bf16(x[token * w.hidden + i]);
  __syncthreads();
  if (expert < 0) {
    for (std::int64_t i = threadIdx.x; i < w.intermediate; i += blockDim.x) out[i] = 0;
    for (std::int64_t g = threadIdx.x; g < w.intermediate / 128; g += blockDim.x)
      largest[blockIdx.x * (w.intermediate / 128) + g] = 0;
    return;
  }
  const bool bf16 = w.of[0].w1_scales == nullptr;
  if (!bf16) quantise(values, w.hidden);
  const moe::RankWeights& r = w.of[expert / w.local];
  const std::int64_t e = expert % w.local, groups = w.hidden / 128;
  for (std::int64_t i = threadIdx.x / 32; i < w.intermediate; i += blockDim.x / 32) {
    float part[2];
    for (int up = 0; up < 2; ++up) {
      const std::int64_t row = i + up * w.intermediate;
      part[up] =
          dot(values, r.w1, e * 2 * w.intermediate + row,
              bf16 ? nullptr : r.w1_scales + (e * 2 * w.intermediate / 128 + row / 128) * groups,
              w.hidden);
    }
    if (clamp > 0) {
      part[0] = fminf(part[0], clamp);
      part[1] = fminf(fmaxf(part[1], -clamp), clamp);
    }
    if (threadIdx.x % 32 == 0)
      out[i] = weights[pair] * (part[0] / (1.0f + expf(-part[0])) * part[1]);
  }
  __syncthreads();
  if (bf16) {
    for (std::int64_t i = threadIdx.x; i < w.intermediate; i += blockDim.x)
      out[i] = from_bf16(to_bf16(out[i]));
    return;
  }
  quantise(out, w.intermediate, largest + blockIdx.x * (w.intermediate / 128));
}

/// slots[pair][H], rounded to bf16.
static __global__ void reference_linear2(AllWeights w, const std::int32_t* experts,
                                         const std::int64_t* pairs, const float* middle,
                                         float* slots) {
  extern __shared__ float values[];
  const std::int32_t expert = experts[pairs[blockIdx.x]];
  float* const out = slots + blockIdx.x * w.hidden;
  for (std::int64_t i = threadIdx.x; i < w.intermediate; i += blockDim.x)
    values[i] = middle[blockIdx.x * w.intermediate + i];
  __syncthreads();
  if (expert < 0) {
    for (std::int64_t i = threadIdx.x; i < w.hidden; i += blockDim.x) out[i] = 0;
    return;
  }
  const moe::RankWeights& r = w.of[expert / w.local];
  const std::int64_t e = expert % w.local, groups = w.intermediate / 128;
  for (std::int64_t i = threadIdx.x / 32; i < w.hidden; i += blockDim.x / 32) {
    const float sum = dot(
        values, r.w2, e * w.hidden + i,
        r.w2_scales == nullptr ? nullptr : r.w2_scales + (e * (w.hidden / 128) + i / 128) * groups,
        w.intermediate);
    if (threadIdx.x % 32 == 0) out[i] = from_bf16(to_bf16(sum));
  }
}

/// errors: squared difference, squared norm; the worst row's relative error in the third.
static __global__ void compare_rows(const std::uint16_t* out, const std::uint16_t* addend,
                                    const std::int64_t* pairs, int topk, const float* slots,
                                    std::int64_t hidden, double* errors) {
  const std::int64_t token = pairs[std::int64_t{blockIdx.x} * topk] / topk;
  __shared__ double difference, norm;
  if (threadIdx.x == 0) difference = norm = 0;
  __syncthreads();
  double d = 0, n = 0;
  for (std::int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    float sum = 0;
    for (int slot = 0; slot < topk; ++slot)
      sum += slots[(std::int64_t{blockIdx.x} * topk + slot) * hidden + i];
    if (addend != nullptr) sum += from_bf16(addend[token * hidden + i]);
    const double wanted = from_bf16(to_bf16(sum)), got = from_bf16(out[token * hidden + i]);
    d += got == got ? (got - wanted) * (got - wanted) : 1e30;
    n += wanted * wanted;
  }
  atomicAdd(&difference, d);
  atomicAdd(&norm, n);
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(&errors[0], difference);
    atomicAdd(&errors[1], norm);
    const double row = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    atomicMax(reinterpret_cast<unsigned long long*>(errors + 2),
              static_cast<unsigned long long>(__double_as_longlong(row)));
  }
}

static __global__ void compare_values(const float* a, const float* b, std::int64_t count,
                                      double* errors) {
  double d = 0, n = 0;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const double difference = static_cast<double>(a[i]) - b[i];
    d += difference == difference ? difference * difference : 1e30;
    n += static_cast<double>(b[i]) * b[i];
  }
  atomicAdd(&errors[0], d);
  atomicAdd(&errors[1], n);
}

/// What the kernel's Linear-2 read for a pair: codes times scale, or bf16; and what the scales say
/// of each group's largest value before quantisation. A block a pair; -1: nothing.
static __global__ void own_middle(layout::MoeLayout layout, const std::int64_t* places,
                                  void* const* workspaces, const std::int32_t* owners,
                                  float* middle, float* largest) {
  const std::int64_t place = places[blockIdx.x], count = layout.config.intermediate;
  void* const base = workspaces[owners[blockIdx.x] < 0 ? 0 : owners[blockIdx.x]];
  if (layout.intermediate_groups == 0) {
    const auto* const values =
        reinterpret_cast<const std::uint16_t*>(layout.intermediate_token(base, place));
    for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x)
      middle[blockIdx.x * count + i] = place < 0 ? 0.0f : from_bf16(values[i]);
    return;
  }
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x)
    middle[blockIdx.x * count + i] =
        place < 0
            ? 0.0f
            : from_e4m3(static_cast<std::uint8_t>(layout.intermediate_token(base, place)[i])) *
                  layout.intermediate_scales_of(base, place / 128, i / 128)[place % 128];
  for (std::int64_t g = threadIdx.x; g < count / 128; g += blockDim.x)
    largest[blockIdx.x * (count / 128) + g] =
        place < 0 ? 0.0f
                  : 448.0f * layout.intermediate_scales_of(base, place / 128, g)[place % 128];
}

static __global__ void count_different(const std::uint32_t* a, const std::uint32_t* b,
                                       std::int64_t count, unsigned long long* different) {
  unsigned long long sum = 0;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    sum += a[i] != b[i];
  if (sum != 0) atomicAdd(different, sum);
}

}  // namespace xstage::moe_test
