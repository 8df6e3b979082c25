// Kernels that signal between GPUs, and the yardsticks of a link. Arguments and launchers; every
// wait in these kernels is bounded, and a wait that ran out is reported in the result.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "xstage/sync/wait.hpp"

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

/// How the litmus stores its payloads, and how it signals them.
enum class LitmusStore : std::int32_t { kB32, kV2, kV4, kTmaBulk };
enum class LitmusSignal : std::int32_t {
  kRelease,  ///< released at system scope, when every thread has stored its part: right
  kRelaxed,  ///< the same without release (bulk stores: without their completion): wrong
  kEarly,    ///< released by a thread that waited for its own stores alone (bulk stores: counted as
             ///< soon as the copies are started): wrong
};

/// Words of one channel on one GPU, a cache line each.
struct LitmusWords {
  Flag arrived[2][2];  ///< [slot][source]
  Flag epoch, barrier;
};

/// Message passing between pairs of blocks, one on each GPU, by the protocol of a Ulysses exchange
/// (sync::Arrivals): in epoch e a block stores a message into slot e%2 on the peer, signals it,
/// waits for the peer's and compares every word.
struct LitmusArgs {
  std::uint8_t* payload[2];   ///< on GPU 0 and 1: `channels` times two slots of payload_bytes
  LitmusWords* words[2];      ///< on GPU 0 and 1: `channels` of them, zeroed
  std::uint64_t* stop[2];     ///< on GPU 0 and 1: one word, zeroed
  sync::WaitRecord* records;  ///< here: one a channel, zeroed
  std::int32_t self;          ///< 0 or 1
  std::int32_t channels;
  std::uint32_t payload_bytes;  ///< of a message, multiple of 16
  std::int32_t rounds;          ///< messages a channel and direction
  LitmusStore store;
  LitmusSignal signal;
  std::uint32_t max_delay_ns;  ///< random delays before storing, signalling and reading
  std::uint64_t seed;
  std::uint64_t deadline_ns;
  unsigned long long* stale;           ///< words that were not of the message that was signalled
  unsigned long long* stale_messages;  ///< messages with such words
};
cudaError_t launch_litmus(const LitmusArgs& args, cudaStream_t stream);

/// Plain copy by all threads of a full grid, 16 bytes each: the yardstick for the drain rate.
cudaError_t launch_copy(const void* from, void* to, std::size_t bytes, int blocks,
                        cudaStream_t stream);

}  // namespace xstage::comm
