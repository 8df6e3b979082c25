// How long a tile's matrix product takes on the measured node.
//
// Grouped GEMMs were measured alone at two numbers of tokens for six layers. Their time grows as
// a + b·rows: b is the Tensor Cores', a is what weights cost that are read once however few rows
// there are. A layer of the same hidden and intermediate size takes these; every other layer is
// assumed to run at the median of the measured rates.
#pragma once

#include <cstdint>
#include <string>

#include "xstage/schedule/moe.hpp"

namespace xstage::plan {

/// The two products of a MoE layer. Sizes in elements.
struct MatrixWork {
  std::string name;  ///< of the layer; measured layers are told by name, then by size
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  double weight_bytes = 1;      ///< of an element: 1 (fp8), 2 (bf16), 0.5 (fp4)
  double activation_bytes = 1;  ///< 1 (fp8) or 2 (bf16)
};

/// Time of one tile of each linear, on one SM.
struct TileTimes {
  double linear1_us = 0;
  double linear2_us = 0;
  std::string source;
  bool assumed = false;  ///< not measured for matrices of this size
};

/// Times when a rank of `ranks` works through `rows` rows of `experts` experts in all.
TileTimes tile_times(const MatrixWork& work, std::int64_t experts, int ranks, std::int64_t rows,
                     const schedule::MoeTiling& tiling, int workers);

}  // namespace xstage::plan
