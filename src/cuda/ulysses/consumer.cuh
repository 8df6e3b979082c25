// A consumer warpgroup: 64 query rows of every tile, from Q·Kᵀ to the stored output.
//
// Overlap is twofold. Within a warpgroup the softmax of step j runs while P·V of step j−1 is in the
// tensor cores. Between warpgroups a turn is passed around: who has it issues both products of a
// step and passes it on, so that one warpgroup's softmax runs under the other's products.
#pragma once

#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ulysses/output.cuh"
#include "cuda/ulysses/shared.cuh"
#include "cuda/ulysses/softmax.cuh"

namespace xstage::ulysses {

template <class T>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Params& params, Shared<T>& shared, int group)
      : params_(params), shared_(shared), group_(group), softmax_(params.scale_log2) {
    query_ = ptx::swizzled_descriptor(shared.query + group * T::kRowsPerGroup * T::kChunk, 0);
  }

  __device__ __forceinline__ void run() {
    if (group_ == T::kConsumers - 1) pass_turn();  // the first warpgroup begins
    Output<T> output(params_, shared_, group_);
    for (std::uint32_t tile = 0;; ++tile) {
      await(&shared_.query_full, tile & 1);
      if (tile == 0 && group_ == 0 && threadIdx.x % 128 == 0)
        ptx::mbarrier_arrive(&shared_.started);
      const TileNote note = uniform(shared_.note[tile & 1]);
      if (note.row < 0) break;
      float o[T::kHeadDim / 2];
#pragma unroll
      for (int i = 0; i < T::kHeadDim / 2; ++i) o[i] = 0;
      softmax_.reset();
      if (note.key_blocks > 0)
        attend(note.key_blocks, note.tail, o);
      else
        release(&shared_.query_empty);
      float inverse[2], lse[2];
      softmax_.finish(inverse, lse);
      output.store(note, o, inverse, lse);
    }
  }

 private:
  static constexpr int kTurn = 1;  // named barriers from here on, one a warpgroup
  static constexpr int kCleared = 7;

  __device__ __forceinline__ void attend(int key_blocks, int tail, float (&o)[T::kHeadDim / 2]) {
    float s[T::kBlockN / 2];
    std::uint32_t p[T::kBlockN / 4];
    await(&shared_.key_full[key_.stage()], key_.parity());
    ptx::wgmma_fence();
    issue_scores(s);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(s);
    release_key();
    if (tail < T::kBlockN) mask_columns(s, tail);
    softmax_.first(s);
    pack_weights<typename T::Element>(p, s);
    if (params_.key_lengths != nullptr && tail < T::kBlockN) clear_values(tail);

    for (int step = 1; step < key_blocks; ++step) {
      await(&shared_.key_full[key_.stage()], key_.parity());
      await(&shared_.value_full[value_.stage()], value_.parity());
      take_turn();
      ptx::hold_registers(o);
      ptx::hold_registers(p);
      ptx::wgmma_fence();
      issue_scores(s);
      ptx::wgmma_fence();
      issue_output(o, p);
      pass_turn();
      ptx::wgmma_wait<1>();
      ptx::hold_registers(s);
      release_key();
      float rescale[2];
      softmax_.next(s, rescale);
      ptx::wgmma_wait<0>();
      ptx::hold_registers(o);
      ptx::hold_registers(p);
      release_value();
#pragma unroll
      for (int i = 0; i < T::kHeadDim / 2; ++i) o[i] *= rescale[(i / 2) % 2];
      pack_weights<typename T::Element>(p, s);
    }

    release(&shared_.query_empty);  // the next tile's queries may come
    await(&shared_.value_full[value_.stage()], value_.parity());
    ptx::hold_registers(o);
    ptx::hold_registers(p);
    ptx::wgmma_fence();
    issue_output(o, p);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(o);
    release_value();
  }

  /// Values of keys without weight may be anything, and zero times NaN is NaN: the first tile's
  /// rows from `tail` on become zeros. Every warpgroup clears all of them before its own products;
  /// that the other one may clear them again, or read them, makes no difference.
  __device__ __forceinline__ void clear_values(int tail) {
    await(&shared_.value_full[value_.stage()], value_.parity());
    constexpr int kUnits = T::kChunk / 8;
    auto* const value = reinterpret_cast<uint4*>(shared_.value[value_.stage()]);
    for (int i = tail * kUnits + static_cast<int>(threadIdx.x % 128); i < T::kBlockN * kUnits;
         i += 128)
#pragma unroll
      for (int chunk = 0; chunk < T::kChunks; ++chunk)
        value[chunk * T::kBlockN * kUnits + i] = make_uint4(0, 0, 0, 0);
    ptx::fence_proxy_async_shared();
    ptx::named_barrier_sync(kCleared + group_, 128);
  }

  /// S = Q·Kᵀ, 16 columns of the head a product.
  __device__ __forceinline__ void issue_scores(float (&s)[T::kBlockN / 2]) {
    const std::uint64_t key = ptx::swizzled_descriptor(shared_.key[key_.stage()], 0);
    constexpr int kQueryChunk = T::kBlockM * T::kChunk * 2 >> 4;
    constexpr int kKeyChunk = T::kBlockN * T::kChunk * 2 >> 4;
#pragma unroll
    for (int k = 0; k < T::kHeadDim / 16; ++k) {
      const std::uint64_t a = query_ + (k / 4) * kQueryChunk + (k % 4) * 2;
      const std::uint64_t b = key + (k / 4) * kKeyChunk + (k % 4) * 2;
      if (k == 0)
        ptx::wgmma_ss<typename T::Element, false>(s, a, b);
      else
        ptx::wgmma_ss<typename T::Element, true>(s, a, b);
    }
    ptx::wgmma_commit();
  }

  /// O += P·V, 16 keys a product.
  __device__ __forceinline__ void issue_output(float (&o)[T::kHeadDim / 2],
                                               const std::uint32_t (&p)[T::kBlockN / 4]) {
    const std::uint64_t value =
        ptx::swizzled_descriptor(shared_.value[value_.stage()], T::kBlockN * T::kChunk * 2);
#pragma unroll
    for (int k = 0; k < T::kBlockN / 16; ++k)
      ptx::wgmma_rs<typename T::Element>(o, p + 4 * k, value + k * (16 * T::kChunk * 2 >> 4));
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void take_turn() { ptx::named_barrier_sync(kTurn + group_, 256); }
  __device__ __forceinline__ void pass_turn() {
    ptx::named_barrier_arrive(kTurn + (group_ + 1 == T::kConsumers ? 0 : group_ + 1), 256);
  }

  __device__ __forceinline__ void release_key() {
    release(&shared_.key_empty[key_.stage()]);
    key_.advance();
  }
  __device__ __forceinline__ void release_value() {
    release(&shared_.value_empty[value_.stage()]);
    value_.advance();
  }

  /// This warp has read it.
  __device__ __forceinline__ static void release(std::uint64_t* empty) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
  }

  const Params& params_;
  Shared<T>& shared_;
  const int group_;
  Softmax softmax_;
  std::uint64_t query_;
  RingPlace<T::kStages> key_, value_;
};

}  // namespace xstage::ulysses
