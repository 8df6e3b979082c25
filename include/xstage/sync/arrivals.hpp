// Pieces that arrive from every rank, launch after launch: the signals of a Ulysses exchange and of
// a fused attention output.
//
// A launch e of a rank: begin() reads the epoch and clears the counters of slot (e+1)%2; open(),
// after a barrier of the rank's workers, tells every peer that this rank is in launch e; add()
// counts pieces at their destination; wait() waits for one source. Every pair of ranks exchanges
// the opening signal even if no data passes between them. So a rank that has finished launch e+1
// knows that all peers have begun it, that is, have finished whatever came before it on their
// streams, and may overwrite slot e%2.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"
#include "xstage/sync/barrier.hpp"
#include "xstage/sync/policy.hpp"
#include "xstage/sync/wait.hpp"

namespace xstage::sync {

/// `Words` gives addresses: arrived(rank, slot, source), epoch(), barrier().
template <class Policy, class Words>
class Arrivals {
 public:
  XSTAGE_HD_CALLS
  XSTAGE_HD Arrivals(Policy& policy, const Words& words, const WaitContext& context,
                     std::int32_t workers, Site site)
      : policy_(policy),
        words_(words),
        context_(context),
        barrier_(words.barrier(), context.worker, workers),
        site_(site) {}

  XSTAGE_HD std::uint64_t epoch() const { return context_.epoch; }
  XSTAGE_HD std::int32_t slot() const { return slot_of<Policy>(context_.epoch); }

  /// Every worker calls this first. Does not wait.
  XSTAGE_HD_CALLS
  XSTAGE_HD void begin() {
    context_.epoch = policy_.load_acquire(words_.epoch()) + 1;
    if (context_.worker == 0)
      for (std::int32_t source = 0; source < context_.ranks; ++source)
        policy_.store_release(
            words_.arrived(context_.rank, slot_of<Policy>(context_.epoch + 1), source), 0);
    barrier_.arrive(policy_);
  }

  /// Every worker calls this before its first add(); tiles may be computed in between.
  XSTAGE_HD_CALLS
  XSTAGE_HD bool open() {
    if (!barrier_.wait(policy_, context_, 0)) return false;
    if (context_.worker != 0) return true;
    if (Policy::kFault != Fault::kLostEpoch) policy_.store_release(words_.epoch(), context_.epoch);
    for (std::int32_t rank = 0; rank < context_.ranks; ++rank) raise(rank, 1);
    return true;
  }

  /// `pieces` more are stored at `destination`.
  XSTAGE_HD_CALLS
  XSTAGE_HD void add(std::int32_t destination, std::int64_t pieces) { raise(destination, pieces); }

  /// `store` puts `pieces` pieces at `destination`; then they are counted there.
  XSTAGE_HD_CALLS
  template <class Store>
  XSTAGE_HD void deliver(std::int32_t destination, std::int64_t pieces, Store&& store) {
    if constexpr (Policy::kFault == Fault::kFlagBeforeData) {
      raise(destination, pieces);
      store();
    } else {
      store();
      raise(destination, pieces);
    }
  }

  /// Waits for `pieces` from `source`, and for its opening signal.
  XSTAGE_HD_CALLS
  XSTAGE_HD bool wait(std::int32_t source, std::int64_t pieces) {
    if (Policy::kFault == Fault::kWrongCount && pieces > 0) --pieces;
    return wait_at_least(policy_, context_, words_.arrived(context_.rank, slot(), source),
                         static_cast<std::uint64_t>(pieces) + 1, site_, source);
  }

 private:
  XSTAGE_HD_CALLS
  XSTAGE_HD void raise(std::int32_t rank, std::int64_t pieces) {
    std::uint64_t* const word = words_.arrived(rank, slot(), context_.rank);
    if constexpr (Policy::kFault == Fault::kMissingRelease)
      policy_.add_relaxed(word, static_cast<std::uint64_t>(pieces));
    else
      policy_.add_release(word, static_cast<std::uint64_t>(pieces));
  }

  Policy& policy_;
  Words words_;
  WaitContext context_;
  Barrier barrier_;
  Site site_;
};

}  // namespace xstage::sync
