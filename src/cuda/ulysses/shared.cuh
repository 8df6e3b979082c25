// Shared memory of a block, and the waits of its roles on each other.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ulysses/params.hpp"

namespace xstage::ulysses {

/// What the producer tells the consumers about a tile, with the tile's queries.
struct TileNote {
  std::int32_t row = 0;   ///< first query row of this block's tile; negative: no more tiles
  std::int32_t head = 0;  ///< of this rank
  std::int32_t batch = 0;
  std::int32_t key_blocks = 0;  ///< tiles of keys; 0 where every key is masked
  std::int32_t tail = 0;        ///< valid keys of the last one
};

/// What a consumer warpgroup tells the storer about 64 rows that it has staged.
struct StagedNote {
  std::int32_t row = 0;
  std::int32_t head = 0;
  std::int32_t batch = 0;
};

/// The same values, known to be equal in all lanes: products in a loop whose bound might differ
/// between lanes would be serialised (C7520).
__device__ __forceinline__ TileNote uniform(const TileNote& note) {
  const auto same = [](std::int32_t value) { return __shfl_sync(0xffffffff, value, 0); };
  return {same(note.row), same(note.head), same(note.batch), same(note.key_blocks),
          same(note.tail)};
}

template <class T>
struct alignas(1024) Shared {
  std::uint16_t query[T::kQueryElements];
  std::uint16_t key[T::kStages][T::kKeyElements];
  std::uint16_t value[T::kStages][T::kKeyElements];
  std::uint16_t output[T::kConsumers][T::kRowsPerGroup * T::kHeadDim];
  std::uint64_t query_full, query_empty;
  std::uint64_t key_full[T::kStages], key_empty[T::kStages];
  std::uint64_t value_full[T::kStages], value_empty[T::kStages];
  std::uint64_t staged[T::kConsumers], staging_free[T::kConsumers];
  std::uint64_t started;           ///< the first queries are there
  std::uint64_t slot_known, open;  ///< of the launch's signals
  std::uint64_t stored;            ///< all output has left the staging
  TileNote note[2];
  StagedNote staged_note[T::kConsumers];
  std::int32_t slot;  ///< of the output in this launch
  /// The loader's and the storer's objects live here: they would not stay in their few registers.
  alignas(16) std::uint8_t producer[64];
  alignas(16) std::uint8_t tiles[256];
  alignas(16) std::uint8_t storer[64];
  alignas(16) std::uint8_t spans[T::kSpans ? 64 : 16];
  alignas(16) std::uint8_t signals[256];
  std::int64_t sent[1][kMaxRanks];  ///< pieces (rows of one head) by destination
};

/// Place in a ring of K or V tiles.
template <int kStages>
class RingPlace {
 public:
  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ std::uint32_t parity() const { return parity_; }
  __device__ __forceinline__ void advance() {
    if (++stage_ == kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

/// A wait of the producer on this block's consumers. It ends within microseconds unless the kernel
/// is wrong; then the trap makes the launch fail instead of hang. (Each poll waits in hardware:
/// this is seconds.) Waits for other GPUs are those of sync/wait.hpp and end with a record.
__device__ __forceinline__ void wait_for(std::uint64_t* barrier, std::uint32_t parity) {
  constexpr std::uint32_t kMostPolls = 1u << 24;
  for (std::uint32_t polls = 0; !ptx::mbarrier_try_wait(barrier, parity); ++polls)
    if (polls == kMostPolls) __trap();
}

/// A wait of a consumer. Without a limit of its own: a way out of it, while products are in flight,
/// makes the compiler serialise them (C7512). The producer's waits, the last of which is for the
/// consumers' end, trap for it.
__device__ __forceinline__ void await(std::uint64_t* barrier, std::uint32_t parity) {
  while (!ptx::mbarrier_try_wait(barrier, parity)) {
  }
}

}  // namespace xstage::ulysses
