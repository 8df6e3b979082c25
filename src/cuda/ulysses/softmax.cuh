// The running softmax of one warpgroup's 64 rows.
//
// Scores lie as a wgmma leaves them: thread t of a quad has columns 8i + 2t and 8i + 2t + 1 of row
// g in s[4i], s[4i + 1] and of row g + 8 in s[4i + 2], s[4i + 3]. So a thread keeps state for two
// rows, a maximum is taken over its quad, and sums stay partial until the end.
#pragma once

#include <cstdint>

#include "cuda/ptx/element.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace xstage::ulysses {

class Softmax {
 public:
  __device__ __forceinline__ explicit Softmax(float scale_log2) : scale_(scale_log2) {}

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max_[r] = -INFINITY;
      sum_[r] = 0;
    }
  }

  /// Scores of the first step become weights. At least one key of every row is not masked.
  template <int kCount>
  __device__ __forceinline__ void first(float (&s)[kCount]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max_[r] = quad_max(row_max(s, r));
      sum_[r] = weigh(s, r);
    }
  }

  /// Later scores become weights; `rescale` is what earlier output must be multiplied by.
  template <int kCount>
  __device__ __forceinline__ void next(float (&s)[kCount], float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = max_[r];
      max_[r] = fmaxf(before, quad_max(row_max(s, r)));
      rescale[r] = ptx::exp2_approx((before - max_[r]) * scale_);
      sum_[r] = fmaf(sum_[r], rescale[r], weigh(s, r));
    }
  }

  /// Once, after the last step: 1 / sum of weights by row, and the log-sum-exp of scaled logits.
  __device__ __forceinline__ void finish(float (&inverse)[2], float (&lse)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(0xffffffff, sum, 1);
      sum += __shfl_xor_sync(0xffffffff, sum, 2);
      inverse[r] = sum > 0 ? 1.0f / sum : 0.0f;
      constexpr float kLn2 = 0.693147180559945f;
      lse[r] = sum > 0 ? (max_[r] * scale_ + log2f(sum)) * kLn2 : -INFINITY;
    }
  }

 private:
  // Two chains a row: with one, its latency shows, as only one warp a scheduler is in softmax.
  template <int kCount>
  static __device__ __forceinline__ float row_max(const float (&s)[kCount], int r) {
    float a = s[2 * r], b = s[2 * r + 1];
#pragma unroll
    for (int i = 4; i < kCount; i += 4) {
      a = fmaxf(a, s[i + 2 * r]);
      b = fmaxf(b, s[i + 2 * r + 1]);
    }
    return fmaxf(a, b);
  }

  static __device__ __forceinline__ float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffff, v, 2));
  }

  /// exp2((s − max)·scale) in place, one multiply-add and one exponential each; returns their sum.
  template <int kCount>
  __device__ __forceinline__ float weigh(float (&s)[kCount], int r) const {
    const float shift = -max_[r] * scale_;
    float a = 0, b = 0;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      s[i + 2 * r] = ptx::exp2_approx(fmaf(s[i + 2 * r], scale_, shift));
      s[i + 2 * r + 1] = ptx::exp2_approx(fmaf(s[i + 2 * r + 1], scale_, shift));
      a += s[i + 2 * r];
      b += s[i + 2 * r + 1];
    }
    return a + b;
  }

  float scale_;
  float max_[2];
  float sum_[2];
};

/// Keys from `valid` on get no weight. Only the tail of the keys needs it.
template <int kCount>
__device__ __forceinline__ void mask_columns(float (&s)[kCount], int valid) {
  const int first = 2 * static_cast<int>(threadIdx.x & 3);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = 8 * (i / 4) + (i & 1) + first;
    if (column >= valid) s[i] = -INFINITY;
  }
}

/// Weights as the A operand of the second product: four registers for 16 keys.
template <class Element, int kCount>
__device__ __forceinline__ void pack_weights(std::uint32_t (&p)[kCount / 2],
                                             const float (&s)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) p[i] = ptx::pack<Element>(s[2 * i], s[2 * i + 1]);
}

}  // namespace xstage::ulysses
