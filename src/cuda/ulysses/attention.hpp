// Attention forward on Hopper (compute capability 9.0): bf16 or fp16, head_dim 64 or 128, no mask
// but a key length per batch entry.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/ulysses/rank_memory.hpp"
#include "xstage/layout/tensor_view.hpp"
#include "xstage/result.hpp"

namespace xstage::ulysses {

struct Params;

/// Tensors [batch, rows, heads, head_dim] in device memory, of this rank's heads; any strides that
/// are multiples of 8 elements, the last dimension dense.
struct AttentionInputs {
  layout::TensorView query, key, value;
  /// Inputs in two slots, this many elements apart, of which the parity of `*input_epoch` (device
  /// memory, read when the kernel starts) chooses one. Null: the tensors above.
  const std::uint64_t* input_epoch = nullptr;
  std::int64_t query_slot = 0, key_slot = 0;
  /// Query heads a key head, and how many of the first key head's come before these; 0: as many as
  /// the heads say. They differ where a rank has only part of a key head's group.
  std::int64_t group = 0, group_begin = 0;
  /// [batch] in device memory: keys from there on have no weight, whatever they and their values
  /// are. 0 gives zeros and a log-sum-exp of −inf. Null: all keys.
  const std::int32_t* key_lengths = nullptr;
  float scale = 0;       ///< of the logits, positive; 0 means 1/sqrt(head_dim)
  float* lse = nullptr;  ///< [batch][heads][rows] fp32 in device memory, or null: not wanted
  int sms = 0;           ///< as RankMemory's
};

/// The inputs of `memory.rank` as an exchange leaves them; replicated keys as they are given.
AttentionInputs exchanged_inputs(const RankMemory& memory, const layout::TensorView& key = {},
                                 const layout::TensorView& value = {});

/// A launch, made ready once: it may then be repeated and captured. Nothing is allocated later.
class Attention {
 public:
  /// To `output`, a tensor of the shape of the queries. The current device is used.
  static Result<Attention> local(const AttentionInputs& in, const layout::TensorView& output);

  /// Each output row to the rank that owns it. All ranks must launch the same number of times, and
  /// their launches must be able to run at the same time: one GPU a rank, or RankMemory::sms. The
  /// kernel ends when this rank's own rows have arrived.
  static Result<Attention> fused(const AttentionInputs& in, const RankMemory& output);

  /// Whether fused() would take these, without asking a driver anything.
  static Result<bool> check_fused(const AttentionInputs& in, const RankMemory& output);

  /// `stream`: a cudaStream_t.
  Result<bool> launch(void* stream) const;

  int blocks() const { return grid_; }

 private:
  Attention() = default;
  std::shared_ptr<const Params> params_;
  std::int64_t head_dim_ = 0;
  bool half_ = false;
  int grid_ = 0;
  bool early_ = true;
};

}  // namespace xstage::ulysses
