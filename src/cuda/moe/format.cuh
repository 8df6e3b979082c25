// What the fused kernel must know of a format of weights and activations. The rest is the same
// code: a step is kBlockK bytes deep, whatever they hold.
#pragma once

namespace xstage::moe {

/// e4m3 values; a scale for 128 values of a token and for 128×128 of the weights.
struct W8a8 {
  static constexpr int kValueBytes = 1;
  static constexpr bool kScaled = true;
};

/// bf16 values, no scales.
struct PlainBf16 {
  static constexpr int kValueBytes = 2;
  static constexpr bool kScaled = false;
};

}  // namespace xstage::moe
