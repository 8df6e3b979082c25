// Attention forward for sm_90a, persistent: each block walks its tiles of the schedule.
//
//   producer   one thread: loads Q, K and V by TMA                        producer.cuh
//   signaller  one thread: tells other ranks, waits for them              signals.cuh
//   consumers  two or three warpgroups: products, softmax, output        consumer.cuh, output.cuh
//
// The schedule is xstage/schedule/ulysses.hpp. In a fused launch the output goes straight to the
// rank that owns its rows, and the kernel ends when all peers' rows for this rank have arrived.
#pragma once

#include "cuda/ulysses/consumer.cuh"
#include "cuda/ulysses/producer.cuh"
#include "cuda/ulysses/signals.cuh"
#include "cuda/ulysses/tiling.hpp"

namespace xstage::ulysses {

template <class T>
__device__ __forceinline__ void init_barriers(Shared<T>& shared) {
  constexpr int kWarps = 4 * T::kConsumers;
  ptx::mbarrier_init(&shared.query_full, 1);
  ptx::mbarrier_init(&shared.query_empty, kWarps);
  for (int i = 0; i < T::kStages; ++i) {
    ptx::mbarrier_init(&shared.key_full[i], 1);
    ptx::mbarrier_init(&shared.value_full[i], 1);
    ptx::mbarrier_init(&shared.key_empty[i], kWarps);
    ptx::mbarrier_init(&shared.value_empty[i], kWarps);
  }
  ptx::mbarrier_init(&shared.stored, T::kConsumers);
  ptx::mbarrier_init(&shared.sent_off, T::kConsumers);
  ptx::fence_mbarrier_init();
  for (int group = 0; group < T::kConsumers; ++group)
    for (int rank = 0; rank < kMaxRanks; ++rank) shared.sent[group][rank] = 0;
}

template <class T>
__device__ __forceinline__ void produce(const Params& params, Shared<T>& shared) {
  static_assert(sizeof(Producer<T>) <= sizeof(shared.producer));
  auto& producer = *new (shared.producer) Producer<T>(params, shared);
  producer.run();
  wait_for(&shared.stored, 0);
}

template <class T>
__device__ __forceinline__ void signal(const Params& params, Shared<T>& shared) {
  static_assert(sizeof(LaunchSignals) <= sizeof(shared.signals));
  auto& signals = *new (shared.signals) LaunchSignals(params.signals, sync::Site::kOutputPieces);
  signals.begin();
  await(&shared.sent_off, 0);
  signals.end(shared.sent);
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    attention_forward(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::uint8_t memory[];  // whole atoms of the 128-byte swizzle
  auto& shared = *reinterpret_cast<Shared<T>*>(memory);
  const int group = static_cast<int>(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    const int slot = params.fused ? LaunchSignals::slot_of(params.signals) : 0;
    init_barriers(shared);
    shared.slot = slot;
  }
  __syncthreads();

  if (group == 0) {
    ptx::set_registers_down<T::kProducerRegisters>();
    if (threadIdx.x == 0) produce(params, shared);
    if (threadIdx.x == 32 && params.fused) signal(params, shared);
  } else {
    ptx::set_registers_up<T::kConsumerRegisters>();
    Consumer<T>(params, shared, group - 1).run();
  }
}

}  // namespace xstage::ulysses
