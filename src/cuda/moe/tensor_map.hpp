// Tensor maps of matrices of bytes, for the loader and the store warp.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#include "xstage/result.hpp"

namespace xstage::moe {

/// Boxes of 128 columns × `box_rows` rows of a dense [rows][columns] matrix of bytes; in shared
/// memory rows of 128 bytes, swizzled. Coordinates: column, row, 0, 0, 0. Rows outside of the
/// matrix load as zeros.
Result<CUtensorMap> byte_map(const void* data, std::int64_t rows, std::int64_t columns,
                             std::int32_t box_rows, const std::string& name);

}  // namespace xstage::moe
