#include "cuda/ulysses/per_destination.hpp"

namespace xstage::ulysses {

Result<PerDestination> PerDestination::create(const AttentionInputs& in, const RankMemory& memory) {
  if (const Result<bool> good = Attention::check_fused(in, memory); !good.ok()) return good.error();
  const layout::UlyssesLayout& l = memory.layout;
  const layout::UlyssesConfig& c = l.config;
  const layout::HeadShare own = layout::heads_of(c.heads, c.kv_heads, c.ranks, memory.rank);
  PerDestination out;
  for (std::int64_t slot = 0; slot < 2; ++slot)
    for (std::int32_t step = 1; step <= c.ranks; ++step) {
      const std::int32_t to = (memory.rank + step) % c.ranks;
      const layout::TensorView received = output_view(memory, to);
      for (std::int32_t i = 0; i < c.segment_count; ++i) {
        const layout::RowSegment& s = c.segments[i];
        if ((s.rank != to && s.rank != layout::kAllRanks) || s.begin == s.end) continue;
        AttentionInputs piece = in;
        piece.query.data =
            static_cast<std::uint16_t*>(in.query.data) + in.query.index(0, s.begin, 0);
        piece.query.shape[1] = s.end - s.begin;
        piece.lse = nullptr;
        layout::TensorView target = received;
        target.data = static_cast<std::uint16_t*>(target.data) + slot * l.output_slot +
                      target.index(0, s.row, own.query.begin);
        for (int d = 0; d < 4; ++d) target.shape[d] = piece.query.shape[d];
        const Result<Attention> made = Attention::local(piece, target);
        if (!made.ok()) return made.error();
        out.pieces_[slot].push_back(made.value());
      }
    }
  const Result<Exchange> arrival = Exchange::arrival(memory);
  if (!arrival.ok()) return arrival.error();
  out.arrival_.push_back(arrival.value());
  return out;
}

Result<bool> PerDestination::launch(void* stream, int slot) const {
  for (const Attention& piece : pieces_[slot])
    if (const Result<bool> launched = piece.launch(stream); !launched.ok()) return launched;
  return arrival_.front().launch(stream);
}

}  // namespace xstage::ulysses
