// Tile sizes of the attention kernel, and what they cost in registers and shared memory.
#pragma once

#include <cstdint>

#include "cuda/ptx/element.cuh"

namespace xstage::ulysses {

/// One shape of the kernel. A block (one per SM) computes kBlockM query rows; each consumer
/// warpgroup has 64 of them. K and V come in tiles of kBlockN keys.
template <int kHeadDim_, int kBlockN_, int kConsumers_, class Element_>
struct Tiling {
  using Element = Element_;  ///< of all tensors: ptx::Bf16 or ptx::Fp16
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kBlockN = kBlockN_;
  static constexpr int kConsumers = kConsumers_;  ///< warpgroups that compute

  static constexpr int kRowsPerGroup = 64;  ///< of a wgmma
  static constexpr int kBlockM = kConsumers * kRowsPerGroup;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kStages = 2;      ///< K tiles held at once, and V tiles
  static constexpr bool kSpans = false;  ///< records its tile stores (xstage/span.cuh)

  /// Columns of one swizzled chunk: 128 bytes.
  static constexpr int kChunk = 64;
  static constexpr int kChunks = kHeadDim / kChunk;

  // What setmaxnreg gives: 128 · (kConsumers · consumer + producer) is at most 65536.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160;

  static constexpr int kQueryElements = kBlockM * kHeadDim;
  static constexpr int kKeyElements = kBlockN * kHeadDim;
  /// Q, the K and V rings, and the output's own staging: it shares memory with nothing that the
  /// next tile loads, so that a store that stalls on the link stalls nothing else.
  static constexpr int kTileBytes = 2 * (2 * kQueryElements + 2 * kStages * kKeyElements);
  /// Scores and probabilities of one step beside the output: fp32, bf16, fp32.
  static constexpr int kTileRegisters = kBlockN / 2 + kBlockN / 4 + kHeadDim / 2;

  static_assert(kHeadDim % kChunk == 0 && kHeadDim <= 128, "head_dim is 64 or 128");
  static_assert(kBlockN % 16 == 0 && kBlockN <= 256, "a wgmma's width, in whole steps of P·V");
  static_assert(kBlockM <= 256, "one TMA box of queries");
  static_assert(kConsumers == 2 || kConsumers == 3);
  static_assert(kTileBytes + 1024 + 1024 <= 232448, "shared memory of one SM");
  static_assert(kTileRegisters + 24 <= kConsumerRegisters, "would spill");
  static_assert(128 * (kConsumers * kConsumerRegisters + kProducerRegisters) <= 65536);
};

// The shapes in use, with the reason for each.
//
// D = 128: two warpgroups with 232 registers. Q 32 + K 2·36 + V 2·36 + O 32 = 208 KiB. 160 keys
// would fit too (224 KiB), but take 1.5 to 2.5 % more cycles; 128 take 2 to 3 % more.
template <class Element = ptx::Bf16>
using Tiling128 = Tiling<128, 144, 2, Element>;
// D = 64: the exponentials, not the products, are the limit, so three warpgroups (192 rows) halve
// nothing but K and V traffic and give the exponential unit always one warpgroup that feeds it.
template <class Element = ptx::Bf16>
using Tiling64 = Tiling<64, 128, 3, Element>;

/// The same with the times of their tile stores (bf16 only); the kernels above have no code for it.
struct Spanned128 : Tiling128<> {
  static constexpr bool kSpans = true;
};
struct Spanned64 : Tiling64<> {
  static constexpr bool kSpans = true;
};

}  // namespace xstage::ulysses
