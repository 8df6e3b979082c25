// The epilogue: a warpgroup's 64 output rows go from registers through its own staging to whoever
// owns them.
#pragma once

#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/store.cuh"
#include "cuda/ptx/tensor.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ulysses/shared.cuh"

namespace xstage::ulysses {

template <class T>
class Output {
 public:
  __device__ __forceinline__ Output(const Params& params, Shared<T>& shared, int group)
      : params_(params), shared_(shared), group_(group) {}

  /// `o` as a wgmma leaves it; `inverse` of the sum of weights and `lse` for rows g and g + 8.
  __device__ __forceinline__ void store(const TileNote& note, const float (&o)[T::kHeadDim / 2],
                                        const float (&inverse)[2], const float (&lse)[2]) {
    const std::int64_t begin = note.row + group_ * T::kRowsPerGroup;
    const std::int64_t end = min(begin + T::kRowsPerGroup, params_.rows);
    store_lse(note, begin, lse);
    if (leader()) ptx::bulk_wait_source();  // the store before has read the staging
    sync();
    stage(o, inverse);
    ptx::fence_proxy_async_shared();
    sync();
    if (begin >= end) return;
    layout::for_each_piece(params_.segments, params_.segment_count, begin, end,
                           [&](const layout::SegmentPiece& piece) {
                             if (piece.rank != layout::kAllRanks)
                               return store_piece(note, begin, piece, piece.rank);
                             for (std::int32_t rank = 0; rank < params_.signals.ranks; ++rank)
                               store_piece(note, begin, piece, rank);
                           });
  }

  /// Everything sent to other ranks so far is complete; nothing more will be sent to them.
  __device__ __forceinline__ void sent_off() {
    sync();  // the pieces that other threads stored row by row
    if (leader()) {
      ptx::bulk_wait_done();
      ptx::fence_proxy_async();
      ptx::mbarrier_arrive(&shared_.sent_off);
    }
    sent_off_ = true;
  }

  /// Nothing is on its way any more.
  __device__ __forceinline__ void finish() {
    if (params_.fused && !sent_off_) sent_off();
    // The end of the kernel publishes the writes; only the staging must not vanish.
    if (leader()) ptx::bulk_wait_source();
    sync();
    if (leader()) ptx::mbarrier_arrive(&shared_.stored);
  }

 private:
  static constexpr int kSync = 4;  // named barriers from here on, one a warpgroup
  static constexpr int kRowBytes = T::kChunk * 2;
  static constexpr int kChunkBytes = T::kRowsPerGroup * kRowBytes;

  __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x & 127); }
  __device__ __forceinline__ static bool leader() { return thread() == 0; }
  __device__ __forceinline__ void sync() const { ptx::named_barrier_sync(kSync + group_, 128); }

  /// Where 16-byte unit `unit` of `row` lies: chunks of 64 rows of 128 bytes, swizzled as TMA does.
  __device__ __forceinline__ static int place(int row, int unit) {
    return (unit / 8) * kChunkBytes + row * kRowBytes + ((unit ^ row) & 7) * 16;
  }

  __device__ __forceinline__ void stage(const float (&o)[T::kHeadDim / 2],
                                        const float (&inverse)[2]) {
    const int lane = thread() & 31;
    const int row = (thread() / 32) * 16 + (lane & 15);
    const std::uint32_t base = ptx::shared_address(shared_.output[group_]);
#pragma unroll
    for (int unit = 0; unit < T::kHeadDim / 8; unit += 2) {
      const float* const a = o + 4 * unit;
      ptx::stmatrix_x4(base + place(row, unit + (lane >> 4)),
                       ptx::pack_bf16(a[0] * inverse[0], a[1] * inverse[0]),
                       ptx::pack_bf16(a[2] * inverse[1], a[3] * inverse[1]),
                       ptx::pack_bf16(a[4] * inverse[0], a[5] * inverse[0]),
                       ptx::pack_bf16(a[6] * inverse[1], a[7] * inverse[1]));
    }
  }

  __device__ __forceinline__ void store_lse(const TileNote& note, std::int64_t begin,
                                            const float (&lse)[2]) const {
    if (params_.lse == nullptr || (thread() & 3) != 0) return;
    const std::int64_t row = begin + (thread() / 32) * 16 + (thread() & 31) / 4;
    float* const out =
        params_.lse +
        (static_cast<std::int64_t>(note.batch) * params_.heads + note.head) * params_.rows;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (row + 8 * r < params_.rows) out[row + 8 * r] = lse[r];
  }

  /// Whole tiles by one TMA store, which also clips at the end of the destination; other pieces row
  /// by row.
  __device__ __forceinline__ void store_piece(const TileNote& note, std::int64_t begin,
                                              const layout::SegmentPiece& piece,
                                              std::int32_t rank) {
    const std::int64_t rows = piece.end - piece.begin;
    const std::int32_t head = params_.first_head + note.head;
    if (leader() && params_.fused) shared_.sent[group_][rank] += rows;
    if (piece.begin == begin &&
        (rows == T::kRowsPerGroup || piece.row + rows == params_.target_rows[rank])) {
      if (!leader()) return;
      ptx::tensor_store(&params_.output[note.slot][rank], shared_.output[group_],
                        {0, static_cast<std::int32_t>(piece.row), 0, head, note.batch});
      ptx::bulk_commit();
      return;
    }
    const Target& target = params_.target[note.slot][rank];
    std::uint16_t* const out =
        target.data + note.batch * target.batch_stride + head * target.head_stride;
    const auto* const staged = reinterpret_cast<const std::uint8_t*>(shared_.output[group_]);
    constexpr int kUnits = T::kHeadDim / 8;
    const int skip = static_cast<int>(piece.begin - begin);
    for (int i = thread(); i < static_cast<int>(rows) * kUnits; i += 128) {
      const int row = i / kUnits, unit = i % kUnits;
      const auto value = *reinterpret_cast<const uint4*>(staged + place(skip + row, unit));
      ptx::st_global_v4(out + (piece.row + row) * target.row_stride + unit * 8, value);
    }
  }

  const Params& params_;
  Shared<T>& shared_;
  const int group_;
  bool sent_off_ = false;
};

}  // namespace xstage::ulysses
