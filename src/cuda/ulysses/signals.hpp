// Addresses of the signals of one launch.
#pragma once

#include "cuda/ulysses/params.hpp"
#include "cuda/ulysses/rank_memory.hpp"

namespace xstage::ulysses {

/// The two launches of a layer have words of their own.
enum Launch : std::int32_t { kExchange, kAttention };

/// All but `expected`.
inline Signals signals_of(const RankMemory& memory, Launch launch) {
  const layout::UlyssesLayout& layout = memory.layout;
  Signals out;
  out.ranks = layout.config.ranks;
  out.rank = memory.rank;
  for (std::int32_t rank = 0; rank < out.ranks; ++rank) {
    void* const base = memory.symmetric[rank];
    out.arrived[rank] =
        launch == kExchange ? layout.exchanged_word(base, 0, 0) : layout.output_word(base, 0, 0);
    out.stop_words[rank] = layout.stop_word(base);
  }
  out.epoch = layout.word(memory.workspace, launch, layout::UlyssesWord::kEpoch);
  out.barrier = layout.word(memory.workspace, launch, layout::UlyssesWord::kBarrier);
  out.records = memory.records;
  out.limit_ns = memory.limit_ns;
  return out;
}

}  // namespace xstage::ulysses
