// The probe kernels by name. Window kernels take (BurstArgs, ProducerRecord*, uint32_t* rings of
// kRing entries a slot); aligned kernels take (BurstArgs, ProducerRecord*, RoundRecord* rings of
// kMaxRounds entries a slot).
#pragma once

namespace xstage::probe {

/// `width` in bytes and threads a block: 16 with 64, 128, 256, 512 or 1024; 4 and 8 with 256. Null
/// for others: the distance between a thread's stores is a constant of the kernel.
const void* window_kernel_lsu(int width, int threads);
const void* aligned_kernel_lsu(int width, int threads);

const void* window_kernel_bulk();
const void* aligned_kernel_bulk();

/// (BurstArgs, ProducerRecord*, const uint32_t* tiles of each SM or null, tiles in all, counter):
/// every SM stores its tiles, or claims them from the counter. `gap_cycles` is the work of a tile.
const void* split_kernel();

/// Bytes of dynamic shared memory that hold the source of the bulk stores.
inline constexpr unsigned kBulkSourceBytes = 96 * 1024;

}  // namespace xstage::probe
