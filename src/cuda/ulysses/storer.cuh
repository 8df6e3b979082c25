// The storer: one thread that sends staged output to its owners by TMA, and tells them.
//
// When the SMs end a tile together, 4 MB want to cross the link at once. An SM holds 16 KB of
// stores that have not left; behind more of them its loads wait too, and with them the products
// (measured: 4 us a burst). So what goes to other ranks leaves in pieces of 8 rows, at a pace that
// keeps all SMs together below the link's rate, while the consumers compute the next tile.
#pragma once

#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/clock.cuh"
#include "cuda/ptx/tensor.cuh"
#include "cuda/ulysses/output.cuh"
#include "cuda/ulysses/signals.cuh"

namespace xstage::ulysses {

template <class T>
class Storer {
 public:
  __device__ __forceinline__ Storer(const Params& params, Shared<T>& shared)
      : params_(params), shared_(shared) {}

  __device__ __forceinline__ void run() {
    if constexpr (T::kSpans) {
      static_assert(sizeof(Spans) <= sizeof(shared_.spans));
      new (shared_.spans) Spans(params_.spans, true);
    }
    for (int rank = 0; rank < kMaxRanks; ++rank) shared_.sent[0][rank] = 0;
    await(&shared_.slot_known, 0);
    parity_ = 0;
    // The loader's tiles, by their positions in the order: blockIdx.x, + gridDim.x, + 2 gridDim.x …
    for (position_ = blockIdx.x; position_ < params_.tiles; position_ = position_ + gridDim.x) {
      tile();
      parity_ = parity_ ^ 1;
      if (position_ >= params_.remote_tiles || position_ + gridDim.x < params_.remote_tiles)
        continue;
      tell();  // it was the last one with rows of other ranks
    }
    // The end of the kernel publishes what stays here.
    ptx::mbarrier_arrive(&shared_.stored);
    if constexpr (T::kSpans) spans().~Spans();
  }

 private:
  __device__ __forceinline__ Spans& spans() const {
    return *reinterpret_cast<Spans*>(shared_.spans);
  }

  /// What every warpgroup has staged of a tile.
  __device__ __forceinline__ void tile() {
#pragma unroll 1
    for (group_ = 0; group_ < T::kConsumers; group_ = group_ + 1) {
      await(&shared_.staged[group_], parity_);
      if constexpr (T::kSpans) spans().begin();
      store(group_);
      if constexpr (T::kSpans) spans().end();
      ptx::bulk_wait_source();
      ptx::mbarrier_arrive(&shared_.staging_free[group_]);
    }
  }

  __device__ __forceinline__ void store(int group) {
    const StagedNote& note = shared_.staged_note[group];
    const std::int32_t end =
        min(note.row + T::kRowsPerGroup, static_cast<std::int32_t>(params_.rows));
    for_each_piece(params_, note.row, end, [&](const Piece& piece) {
      shared_.sent[0][piece.rank] += piece.rows;
      if (!by_boxes(params_, piece)) return;
      rank_ = piece.rank;
      row_ = piece.row;
      from_ = piece.skip;
      to_ = piece.skip + piece.rows;
      send(group);
    });
  }

  __device__ __forceinline__ void send(int group) {
    const bool paced = rank_ != params_.signals.rank && position_ + gridDim.x < params_.tiles;
#pragma unroll 1
    for (; from_ < to_; from_ = from_ + kPieceRows) {
      if (paced) keep_pace();
      const StagedNote& note = shared_.staged_note[group];
      ptx::tensor_store(&params_.output[shared_.slot][rank_],
                        shared_.output[group] + from_ * T::kHeadDim,
                        {0, row_, 0, params_.first_head + note.head, note.batch});
      ptx::bulk_commit();
      row_ = row_ + kPieceRows;
    }
  }

  __device__ __forceinline__ void keep_pace() {
    std::uint64_t now = ptx::globaltimer();
    while (static_cast<std::int64_t>(next_ns_ - now) > 0) {
      __nanosleep(64);
      now = ptx::globaltimer();
    }
    next_ns_ = now + static_cast<std::uint64_t>(params_.pace_ns);
  }

  /// All that this block has for other ranks is stored there: they may know.
  __device__ __forceinline__ void tell() {
    ptx::bulk_wait_done();
    ptx::fence_proxy_async();
    await(&shared_.open, 0);
    reinterpret_cast<LaunchSignals*>(shared_.signals)->tell(shared_.sent);
  }

  const Params& params_;
  Shared<T>& shared_;
  std::uint64_t next_ns_ = 0;
  // Volatile, so in shared memory: there are no registers for them.
  volatile std::uint32_t parity_ = 0;
  volatile std::uint32_t position_ = 0;
  volatile std::int32_t group_ = 0;
  // Of the piece that is being sent: where to, and what is left of it in the staging.
  volatile std::int32_t rank_ = 0, row_ = 0, from_ = 0, to_ = 0;
};

}  // namespace xstage::ulysses
