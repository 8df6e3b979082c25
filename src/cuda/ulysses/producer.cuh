// The producer: one thread that loads Q, K and V of one tile after the other.
#pragma once

#include <new>

#include "cuda/ptx/tensor.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ulysses/shared.cuh"
#include "xstage/schedule/workers.hpp"

namespace xstage::ulysses {

template <class T>
class Producer {
 public:
  __device__ __forceinline__ Producer(const Params& params, Shared<T>& shared)
      : params_(params),
        shared_(shared),
        maps_(params.inputs[params.input_epoch == nullptr ? 0 : *params.input_epoch & 1]) {}

  /// Loads every tile of this block.
  __device__ __forceinline__ void run() {
    using Tiles = schedule::StaticTiles<schedule::UlyssesOrder>;
    static_assert(sizeof(Tiles) <= sizeof(shared_.tiles));
    Tiles& tiles = *new (shared_.tiles) Tiles(params_.order, blockIdx.x, gridDim.x);
    schedule::UlyssesTile tile;
    while (tiles.next(tile)) {
      TileNote note;
      note.row = static_cast<std::int32_t>(tile.block) * T::kBlockM;
      note.batch = static_cast<std::int32_t>(tile.head) / params_.heads;
      note.head = static_cast<std::int32_t>(tile.head) - note.batch * params_.heads;
      int keys = params_.key_rows;
      if (params_.key_lengths != nullptr) keys = max(0, min(keys, params_.key_lengths[note.batch]));
      note.key_blocks = (keys + T::kBlockN - 1) / T::kBlockN;
      note.tail = keys - (note.key_blocks - 1) * T::kBlockN;
      load_tile(note);
    }
    TileNote last;
    last.row = -1;
    announce(last, 0);
  }

 private:
  // K runs one tile ahead of V, as the consumers do. The tail comes first: so the loop over all
  // other tiles needs no mask. Q comes behind the first K, whose place is free earlier.
  __device__ __forceinline__ void load_tile(const TileNote& note) {
    const std::int32_t key_head = (params_.group_begin + note.head) / params_.group;
    int block = note.key_blocks - 1;
    if (block >= 0) load_key(block, key_head, note.batch);
    announce(note, T::kQueryElements * 2);
    ptx::tensor_load(shared_.query, &maps_.query, &shared_.query_full,
                     {0, note.row, 0, note.head, note.batch});
    for (; block > 0; --block) {
      load_key(block - 1, key_head, note.batch);
      load_value(block, key_head, note.batch);
    }
    if (block == 0) load_value(0, key_head, note.batch);
  }

  /// Waits until the consumers have done with the queries before; the note goes with the new ones.
  __device__ __forceinline__ void announce(const TileNote& note, std::uint32_t bytes) {
    wait_for(&shared_.query_empty, (tile_ & 1) ^ 1);
    shared_.note[tile_ & 1] = note;
    ptx::mbarrier_arrive_expect(&shared_.query_full, bytes);
    ++tile_;
  }

  __device__ __forceinline__ void load_key(int block, std::int32_t head, std::int32_t batch) {
    load(maps_.key, shared_.key, shared_.key_full, shared_.key_empty, key_, block, head, batch);
  }
  __device__ __forceinline__ void load_value(int block, std::int32_t head, std::int32_t batch) {
    load(maps_.value, shared_.value, shared_.value_full, shared_.value_empty, value_, block, head,
         batch);
  }

  __device__ __forceinline__ void load(const CUtensorMap& map,
                                       std::uint16_t (&ring)[T::kStages][T::kKeyElements],
                                       std::uint64_t* full, std::uint64_t* empty,
                                       RingPlace<T::kStages>& place, int block, std::int32_t head,
                                       std::int32_t batch) {
    const int stage = place.stage();
    wait_for(&empty[stage], place.parity() ^ 1);
    ptx::mbarrier_arrive_expect(&full[stage], T::kKeyElements * 2);
    ptx::tensor_load(ring[stage], &map, &full[stage], {0, block * T::kBlockN, 0, head, batch});
    place.advance();
  }

  const Params& params_;
  Shared<T>& shared_;
  const InputMaps& maps_;
  RingPlace<T::kStages> key_, value_;
  std::uint32_t tile_ = 0;
};

}  // namespace xstage::ulysses
