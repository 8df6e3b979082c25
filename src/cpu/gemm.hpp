// Dense products of one tile, in fp32.
#pragma once

#include <cstdint>

namespace xstage::cpu {

/// c[m][n] = a[m][k] · b[n][k]ᵀ, all row-major and contiguous. Each result depends on its sizes and
/// inputs alone: one thread, and buffers that are aligned alike on every call.
void multiply_transposed(const float* a, const float* b, float* c, std::int64_t m, std::int64_t n,
                         std::int64_t k);

/// c[m][n] += a[m][k] · b[k][n], likewise.
void multiply_add(const float* a, const float* b, float* c, std::int64_t m, std::int64_t n,
                  std::int64_t k);

}  // namespace xstage::cpu
