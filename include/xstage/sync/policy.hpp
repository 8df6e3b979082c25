// What the protocol needs of a machine, and the faults that tests plant in it.
//
// Flags, counters and barriers are written once, over a policy object that reads, writes and waits:
//
//   std::uint64_t load_acquire(const std::uint64_t* word);    // system scope
//   void store_release(std::uint64_t* word, std::uint64_t v); // system scope
//   void add_release(std::uint64_t* word, std::uint64_t v);   // result not wanted (a `red`)
//   std::uint64_t fetch_add(std::uint64_t* word, std::uint64_t v);  // acquire and release
//   std::uint64_t now_ns();                                   // of this rank's clock
//   void pause(std::uint32_t polls);                          // after that many polls of a wait
//   static constexpr Fault kFault;                            // Fault::kNone outside of tests
//
// On a CPU these are std::atomic_ref operations with the ordering on the atomic itself (a
// stand-alone fence is not understood by ThreadSanitizer), on a GPU ld.acquire.sys, st.release.sys,
// red.release.sys and %globaltimer; the explorer delays and reorders the stores behind them.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"

namespace xstage::sync {

/// Protocol bugs that tests plant to see that they are found.
enum class Fault : std::int32_t {
  kNone,
  kMissingRelease,  ///< a counter is raised without ordering the stores before it
  kEarlySlotReuse,  ///< both epoch parities share one slot
  kLostEpoch,       ///< a launch does not record its epoch
  kWrongCount,      ///< a consumer waits for one piece too few
  kFlagBeforeData   ///< the flag is written before what it announces
};

/// Slot of what launches use in turn.
template <class Policy>
XSTAGE_HD constexpr std::int32_t slot_of(std::uint64_t epoch) {
  return Policy::kFault == Fault::kEarlySlotReuse ? 0 : static_cast<std::int32_t>(epoch & 1);
}

}  // namespace xstage::sync
