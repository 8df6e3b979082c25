// The output to its owners with any attention kernel that takes an output tensor: one launch for
// each piece of the sequence, into a view of its owner's buffer, then the signals. A baseline, and
// what a kernel without a segment table can do.
#pragma once

#include <vector>

#include "cuda/ulysses/attention.hpp"
#include "cuda/ulysses/exchange.hpp"

namespace xstage::ulysses {

class PerDestination {
 public:
  /// Inputs and memory as for Attention::fused.
  static Result<PerDestination> create(const AttentionInputs& in, const RankMemory& memory);

  /// `slot`: parity of the epoch that this launch will be. The launches' addresses hold it, so a
  /// captured graph must hold an even number of them.
  Result<bool> launch(void* stream, int slot) const;

 private:
  PerDestination() = default;
  std::vector<Attention> pieces_[2];  // by slot; other ranks' first
  std::vector<Exchange> arrival_;     // one
};

}  // namespace xstage::ulysses
