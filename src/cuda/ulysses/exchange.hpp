// The push All-to-All of a Ulysses layer: rows that change owner go straight to their place there,
// with the permutation folded into the addresses.
#pragma once

#include <memory>

#include "cuda/ulysses/rank_memory.hpp"
#include "xstage/layout/tensor_view.hpp"
#include "xstage/result.hpp"

namespace xstage::ulysses {

struct ExchangeParams;

/// A launch, made ready once: it may then be repeated and captured. The kernel ends when everything
/// that this rank is to receive has arrived. All ranks must launch it, each on a GPU of its
/// own or with its part of one (RankMemory::sms).
class Exchange {
 public:
  /// This rank's rows of Q, K and V, all heads: [batch, own rows, heads, head_dim], row by row as
  /// the layout's segments say. They arrive in the layout's query, key and value.
  static Result<Exchange> inputs(const RankMemory& memory, const layout::TensorView& query,
                                 const layout::TensorView& key, const layout::TensorView& value);

  /// What this rank's attention left in its own memory, [batch, rows, heads of this rank,
  /// head_dim], to the owners of the rows: what a fused launch does on its way. It uses the fused
  /// launch's signals and arrives in the same place.
  static Result<Exchange> output(const RankMemory& memory, const layout::TensorView& output);

  /// Nothing but the signals for an output that launches before this one, in the same stream, have
  /// stored at its owners.
  static Result<Exchange> arrival(const RankMemory& memory);

  /// `stream`: a cudaStream_t.
  Result<bool> launch(void* stream) const;

 private:
  Exchange() = default;
  std::shared_ptr<const ExchangeParams> params_;
  int grid_ = 0;
  bool early_ = true;
};

}  // namespace xstage::ulysses
