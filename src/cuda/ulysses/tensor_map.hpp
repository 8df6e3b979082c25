// Tensor maps: how TMA finds boxes of a [batch, rows, heads, head_dim] tensor.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <string>

#include "xstage/layout/tensor_view.hpp"
#include "xstage/result.hpp"

namespace xstage::ulysses {

/// What of `view` TMA cannot take, if anything; the error names `name`.
std::optional<Error> why_no_box(const layout::TensorView& view, const std::string& name);

/// A box of `rows` rows of one head and batch entry, `chunks` chunks of 64 columns: in shared
/// memory chunk after chunk, rows of 128 bytes, swizzled. Coordinates: column in the chunk, row,
/// chunk, head, batch entry. Rows outside of the tensor load as zeros and are not stored.
///
/// Errors: those of why_no_box(), and no driver. The driver is asked for through the runtime, so
/// nothing links against it.
Result<CUtensorMap> box_map(const layout::TensorView& view, std::int32_t rows, std::int32_t chunks,
                            const std::string& name);

}  // namespace xstage::ulysses
