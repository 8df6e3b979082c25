// The probe kernels by name. Window kernels take (BurstArgs, ProducerRecord*, uint32_t* rings of
// kRing entries a slot); aligned kernels take (BurstArgs, ProducerRecord*, RoundRecord* rings of
// kMaxRounds entries a slot).
#pragma once

namespace xstage::probe {

/// `width` in bytes: 4, 8 or 16; null for others.
const void* window_kernel_lsu(int width);
const void* aligned_kernel_lsu(int width);

const void* window_kernel_bulk();
const void* aligned_kernel_bulk();

/// Bytes of dynamic shared memory that hold the source of the bulk stores.
inline constexpr unsigned kBulkSourceBytes = 96 * 1024;

}  // namespace xstage::probe
