// Kernels that signal between GPUs, and the yardsticks of a link. Arguments and launchers; every
// wait in these kernels is bounded, and a wait that ran out is reported in the result.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace xstage::comm {

/// One flag a cache line, so that two flags never share one.
struct alignas(128) Flag {
  std::uint64_t value;
};

/// Ping-pong of one block on each of two GPUs: the first sends a payload and a flag, the second
/// answers with a flag alone.
struct RoundTripArgs {
  Flag* own;                    ///< the peer writes it
  Flag* peer;                   ///< in the peer's memory
  std::uint8_t* payload;        ///< in the peer's memory
  std::uint32_t payload_bytes;  ///< multiple of 16
  std::int32_t rounds;
  std::int32_t first;  ///< 1: this side sends first and takes the time
  std::uint64_t deadline_ns;
  std::uint64_t* cycles;  ///< one entry a round, on the side that takes the time
  std::uint64_t* failed;
};
cudaError_t launch_round_trip(const RoundTripArgs& args, cudaStream_t stream);

/// How a litmus writer stores its payload, and how it signals.
enum class LitmusStore : std::int32_t { kB32, kV2, kV4, kTmaBulk };
enum class LitmusSignal : std::int32_t {
  kRelease,     ///< release at system scope behind the payload's completion: right
  kRelaxed,     ///< the flag without release: wrong
  kSourceOnly,  ///< bulk stores: the flag after local completion only: wrong
};

/// Message passing between pairs of blocks: writer blocks here, reader blocks on the peer. Each
/// channel carries one message at a time and waits for the reader's answer before the next.
struct LitmusArgs {
  // Of the channels this GPU writes:
  std::uint32_t* out_payload;  ///< in the peer's memory
  Flag* out_flag;              ///< in the peer's memory
  Flag* out_answer;            ///< here; the peer's reader writes it
  // Of the channels this GPU reads:
  std::uint32_t* in_payload;  ///< here
  Flag* in_flag;              ///< here
  Flag* in_answer;            ///< in the peer's memory
  std::int32_t channels;
  std::uint32_t payload_bytes;  ///< of a message, multiple of 16
  std::int32_t rounds;          ///< messages a channel
  LitmusStore store;
  LitmusSignal signal;
  std::uint32_t max_delay_ns;  ///< random delays before storing, signalling and reading
  std::uint64_t seed;
  std::uint64_t deadline_ns;
  unsigned long long* stale;  ///< words that were not of the message that was signalled
  std::uint64_t* failed;
};
cudaError_t launch_litmus(const LitmusArgs& args, cudaStream_t stream);

/// Plain copy by all threads of a full grid, 16 bytes each: the yardstick for the drain rate.
cudaError_t launch_copy(const void* from, void* to, std::size_t bytes, int blocks,
                        cudaStream_t stream);

}  // namespace xstage::comm
