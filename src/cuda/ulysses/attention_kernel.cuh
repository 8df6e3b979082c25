// Attention forward for sm_90a, persistent: each block walks its tiles of the schedule.
//
//   producer   one thread: loads Q, K and V by TMA                        producer.cuh
//   storer     one thread: output by TMA to its owners, and tells them    storer.cuh
//   signaller  one thread: opens the launch, waits for other ranks        signals.cuh
//   consumers  two or three warpgroups: products, softmax, staging        consumer.cuh, output.cuh
//
// The schedule is xstage/schedule/ulysses.hpp. In a fused launch the output goes straight to the
// rank that owns its rows, and the kernel ends when all peers' rows for this rank have arrived.
#pragma once

#include "cuda/ptx/dependent.cuh"
#include "cuda/ulysses/consumer.cuh"
#include "cuda/ulysses/producer.cuh"
#include "cuda/ulysses/storer.cuh"
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
  for (int group = 0; group < T::kConsumers; ++group) {
    ptx::mbarrier_init(&shared.staged[group], 4);
    ptx::mbarrier_init(&shared.staging_free[group], 1);
  }
  ptx::mbarrier_init(&shared.started, 1);
  ptx::mbarrier_init(&shared.slot_known, 1);
  ptx::mbarrier_init(&shared.open, 1);
  ptx::mbarrier_init(&shared.stored, 1);
  ptx::fence_mbarrier_init();
}

template <class T>
__device__ __forceinline__ void produce(const Params& params, Shared<T>& shared) {
  static_assert(sizeof(Producer<T>) <= sizeof(shared.producer));
  auto& producer = *new (shared.producer) Producer<T>(params, shared);
  producer.run();
  wait_for(&shared.stored, 0);
}

template <class T>
__device__ __forceinline__ void store(const Params& params, Shared<T>& shared) {
  static_assert(sizeof(Storer<T>) <= sizeof(shared.storer));
  auto& storer = *new (shared.storer) Storer<T>(params, shared);
  storer.run();
}

/// The waits for other ranks begin with the launch, so that they are over when the last tile is.
template <class T>
__device__ __forceinline__ void signal(const Params& params, Shared<T>& shared) {
  static_assert(sizeof(LaunchSignals) <= sizeof(shared.signals));
  // Behind the first loads: its accesses at system scope held them up by 0.8 us.
  await(&shared.started, 0);
  shared.slot = params.fused ? LaunchSignals::slot_of(params.signals) : 0;
  ptx::mbarrier_arrive(&shared.slot_known);
  if (!params.fused) return;
  auto& signals = *new (shared.signals) LaunchSignals(params.signals, sync::Site::kOutputPieces);
  signals.begin();
  ptx::mbarrier_arrive(&shared.open);
  signals.wait();
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    attention_forward(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::uint8_t memory[];  // whole atoms of the 128-byte swizzle
  auto& shared = *reinterpret_cast<Shared<T>*>(memory);
  const int group = static_cast<int>(threadIdx.x / 128);
  ptx::dependents_may_start();
  if (threadIdx.x == 0) {
    init_barriers(shared);
    for (const InputMaps& maps : params.inputs)
      for (const CUtensorMap* map : {&maps.query, &maps.key, &maps.value})
        ptx::prefetch_tensor_map(map);
  }
  __syncthreads();

  if (group == 0) {
    ptx::set_registers_down<T::kProducerRegisters>();
    ptx::dependency_wait();  // for the consumers too: all that they do follows from a load
    if (threadIdx.x == 0) produce(params, shared);
    if (threadIdx.x == 32) store(params, shared);
    if (threadIdx.x == 64) signal(params, shared);
  } else {
    ptx::set_registers_up<T::kConsumerRegisters>();
    Consumer<T>(params, shared, group - 1).run();
  }
}

}  // namespace xstage::ulysses
