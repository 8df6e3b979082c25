// The epilogue of a consumer warpgroup: 64 output rows go from registers to its own staging, from
// where the storer (storer.cuh) sends them to whoever owns them. Rows that do not fall into the
// storer's pieces leave from here, 16 bytes a thread.
#pragma once

#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/element.cuh"
#include "cuda/ptx/store.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ulysses/shared.cuh"

namespace xstage::ulysses {

/// Rows that the storer sends at once: 8 rows of the swizzle pattern.
inline constexpr int kPieceRows = 8;

/// Rows of a tile that go to one rank. In 32 bits, as the storer has few registers.
struct Piece {
  std::int32_t skip = 0;  ///< rows of the tile before it
  std::int32_t rows = 0;
  std::int32_t rank = 0;
  std::int32_t row = 0;  ///< there
};

/// Whether TMA can store a piece: whole boxes, the last of which may reach beyond the end of its
/// destination.
__device__ __forceinline__ bool by_boxes(const Params& params, const Piece& piece) {
  return piece.skip % kPieceRows == 0 &&
         (piece.rows % kPieceRows == 0 || piece.row + piece.rows == params.target_rows[piece.rank]);
}

/// Calls visit(piece) for every piece of rows [begin, end) and every rank that wants it.
template <class Visit>
__device__ __forceinline__ void for_each_piece(const Params& params, std::int32_t begin,
                                               std::int32_t end, Visit&& visit) {
#pragma unroll 1
  for (std::int32_t i = 0; i < params.segment_count; ++i) {
    const layout::RowSegment& s = params.segments[i];
    const std::int32_t from = max(static_cast<std::int32_t>(s.begin), begin);
    const std::int32_t to = min(static_cast<std::int32_t>(s.end), end);
    if (from >= to) continue;
    const bool all = s.rank == layout::kAllRanks;
    const std::int32_t last = all ? params.signals.ranks : s.rank + 1;
#pragma unroll 1
    for (std::int32_t rank = all ? 0 : s.rank; rank < last; ++rank)
      visit(Piece{from - begin, to - from, rank,
                  static_cast<std::int32_t>(s.row) + from - static_cast<std::int32_t>(s.begin)});
  }
}

template <class T>
class Output {
 public:
  __device__ __forceinline__ Output(const Params& params, Shared<T>& shared, int group)
      : params_(params), shared_(shared), group_(group) {}

  /// `o` as a wgmma leaves it; `inverse` of the sum of weights and `lse` for rows g and g + 8.
  __device__ __forceinline__ void store(const TileNote& note, const float (&o)[T::kHeadDim / 2],
                                        const float (&inverse)[2], const float (&lse)[2]) {
    const std::int32_t begin = note.row + group_ * T::kRowsPerGroup;
    const std::int32_t end = min(begin + T::kRowsPerGroup, static_cast<std::int32_t>(params_.rows));
    store_lse(note, begin, lse);
    await_staging();
    stage(o, inverse);
    if (params_.straddling) store_rows(note, begin, end);
    hand_over({begin, note.head, note.batch});
  }

 private:
  static constexpr int kSync = 4;  // named barriers from here on, one a warpgroup
  static constexpr int kRowBytes = T::kChunk * 2;
  static constexpr int kPieceBytes = kPieceRows * T::kHeadDim * 2;

  __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x & 127); }

  /// The storer has read what was staged before.
  __device__ __forceinline__ void await_staging() {
    await(&shared_.staging_free[group_], parity_ ^ 1);
    parity_ ^= 1;
  }

  __device__ __forceinline__ void hand_over(const StagedNote& note) {
    if (thread() == 0) shared_.staged_note[group_] = note;
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (thread() % 32 == 0) ptx::mbarrier_arrive(&shared_.staged[group_]);
  }

  /// Where 16-byte unit `unit` of `row` lies: pieces of 8 rows, in each of them chunks of 128 bytes
  /// a row, swizzled as TMA does.
  __device__ __forceinline__ static int place(int row, int unit) {
    return row / kPieceRows * kPieceBytes + (unit / 8) * (kPieceRows * kRowBytes) +
           row % kPieceRows * kRowBytes + ((unit ^ row) & 7) * 16;
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
                       ptx::pack<typename T::Element>(a[0] * inverse[0], a[1] * inverse[0]),
                       ptx::pack<typename T::Element>(a[2] * inverse[1], a[3] * inverse[1]),
                       ptx::pack<typename T::Element>(a[4] * inverse[0], a[5] * inverse[0]),
                       ptx::pack<typename T::Element>(a[6] * inverse[1], a[7] * inverse[1]));
    }
  }

  __device__ __forceinline__ void store_lse(const TileNote& note, std::int32_t begin,
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

  /// The pieces that TMA cannot take.
  __device__ __forceinline__ void store_rows(const TileNote& note, std::int32_t begin,
                                             std::int32_t end) {
    ptx::named_barrier_sync(kSync + group_, 128);  // rows of other warps
    await(&shared_.slot_known, 0);
    const int slot = shared_.slot;
    const std::int32_t head = params_.first_head + note.head;
    for_each_piece(params_, begin, end, [&](const Piece& piece) {
      if (by_boxes(params_, piece)) return;
      const Target& target = params_.target[slot][piece.rank];
      std::uint16_t* const out =
          target.data + note.batch * target.batch_stride + head * target.head_stride;
      const auto* const staged = reinterpret_cast<const std::uint8_t*>(shared_.output[group_]);
      constexpr int kUnits = T::kHeadDim / 8;
      for (int i = thread(); i < piece.rows * kUnits; i += 128) {
        const int row = i / kUnits, unit = i % kUnits;
        const auto value = *reinterpret_cast<const uint4*>(staged + place(piece.skip + row, unit));
        ptx::st_global_v4(out + (piece.row + row) * target.row_stride + unit * 8, value);
      }
    });
  }

  const Params& params_;
  Shared<T>& shared_;
  const int group_;
  std::uint32_t parity_ = 0;
};

}  // namespace xstage::ulysses
