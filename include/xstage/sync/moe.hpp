// The signals of one launch of the MoE layer, as one worker sees them.
//
// In the order in which a worker uses them:
//   begin()              the launch's epoch; counters of the *next* launch's slot are cleared
//   cleared()            all workers of the rank have cleared their share
//   publish()            routes for one destination, then its ready flag
//   pushed()             all workers of the rank have stored their tokens wherever they are needed
//   announce()           so says a flag at one destination
//   wait_routes()        the routes of one source are here
//   wait_landed()        the tokens of one source are here
//   dispatched(), wait_dispatched()    tokens in place in a row, by counter
//   linear1_done(), wait_linear1()     Linear-1 tiles of a row, by counter
//   combined(), wait_combined()        Linear-2 row pieces for one owner, by counter
//
// A counter of slot e%2 is cleared during launch e-1 and used in launch e. Nobody can raise a
// remote one early: a peer raises it only for tokens whose routes of launch e it has, and its owner
// publishes those after the barrier in cleared(), by which its workers have cleared it in the
// launch before. Nobody is late either: launch e-2 ended with every piece counted.
//
// Tokens may be stored at a destination that is still in the launch before: whatever read their
// places there has sent its result, or this source would not have ended that launch.
//
// A source runs at most one launch ahead: it ends a launch only with every rank's routes of that
// launch. So two slots of routes are enough, and a ready flag is waited for with "at least".
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"
#include "xstage/layout/moe.hpp"
#include "xstage/sync/barrier.hpp"
#include "xstage/sync/policy.hpp"
#include "xstage/sync/wait.hpp"

namespace xstage::sync {

template <class Policy>
class MoeSignals {
 public:
  /// `symmetric[rank]`: base of each rank's symmetric buffer; `workspace`: this rank's own.
  XSTAGE_HD_CALLS
  XSTAGE_HD MoeSignals(Policy& policy, const layout::MoeLayout& layout, void* const* symmetric,
                       void* workspace, const WaitContext& context)
      : policy_(policy),
        layout_(layout),
        symmetric_(symmetric),
        workspace_(workspace),
        context_(context),
        barrier_(layout.word(workspace, layout::MoeWord::kBarrier), context.worker,
                 layout.config.workers),
        pushed_(layout.word(workspace, layout::MoeWord::kPushed), context.worker,
                layout.config.workers) {}

  XSTAGE_HD std::uint64_t epoch() const { return context_.epoch; }
  XSTAGE_HD std::int32_t slot() const { return slot_of<Policy>(context_.epoch); }
  XSTAGE_HD const WaitContext& context() const { return context_; }

  /// Reads the epoch and clears this worker's share of the next launch's counters.
  XSTAGE_HD_CALLS
  XSTAGE_HD void begin() {
    context_.epoch = policy_.load_acquire(layout_.word(workspace_, layout::MoeWord::kEpoch)) + 1;
    const std::int32_t next = slot_of<Policy>(context_.epoch + 1);
    const std::int32_t workers = layout_.config.workers;
    const auto used = static_cast<std::int64_t>(policy_.load_acquire(used_word(next)));
    for (std::int64_t row = context_.worker; row < used; row += workers) {
      policy_.store_release(layout_.dispatched_word(workspace_, next, row), 0);
      policy_.store_release(layout_.linear1_word(workspace_, next, row), 0);
    }
    for (std::int32_t source = context_.worker; source < layout_.config.ranks; source += workers)
      policy_.store_release(layout_.arrived_word(own(), next, source), 0);
    if (context_.worker == 0) policy_.store_release(claimed_word(next), 0);
  }

  /// Every worker calls this after begin(); after it routes may be published. Between its halves a
  /// worker may store tokens.
  XSTAGE_HD_CALLS
  XSTAGE_HD bool cleared() {
    arrive_cleared();
    return wait_cleared();
  }
  XSTAGE_HD_CALLS
  XSTAGE_HD void arrive_cleared() { barrier_.arrive(policy_); }
  XSTAGE_HD_CALLS
  XSTAGE_HD bool wait_cleared() {
    if (!barrier_.wait(policy_, context_, 0)) return false;
    // All workers have read the epoch by now.
    if (context_.worker == 0 && Policy::kFault != Fault::kLostEpoch)
      policy_.store_release(layout_.word(workspace_, layout::MoeWord::kEpoch), context_.epoch);
    return true;
  }

  /// `write` stores counts and entries in the destination's slot; then the flag goes up.
  XSTAGE_HD_CALLS
  template <class Write>
  XSTAGE_HD void publish(std::int32_t destination, Write&& write) {
    std::uint64_t* const flag = layout_.ready_word(symmetric_[destination], context_.rank);
    if constexpr (Policy::kFault == Fault::kFlagBeforeData) {
      policy_.store_release(flag, context_.epoch);
      write();
    } else {
      write();
      policy_.store_release(flag, context_.epoch);
    }
  }

  /// Every worker calls this once its tokens are stored, at home and at their destinations.
  /// `arrive_pushed` and `wait_pushed` are its halves: only who announces needs the second.
  XSTAGE_HD_CALLS
  XSTAGE_HD bool pushed() {
    arrive_pushed();
    return wait_pushed();
  }
  XSTAGE_HD_CALLS
  XSTAGE_HD void arrive_pushed() { pushed_.arrive(policy_); }
  XSTAGE_HD_CALLS
  XSTAGE_HD bool wait_pushed() {
    if constexpr (Policy::kFault == Fault::kFlagBeforeData) return true;
    return pushed_.wait(policy_, context_, 1);
  }

  /// After pushed(): the tokens of this rank have landed at `destination`.
  XSTAGE_HD_CALLS
  XSTAGE_HD void announce(std::int32_t destination) {
    policy_.store_release(layout_.landed_word(symmetric_[destination], context_.rank),
                          context_.epoch);
  }

  XSTAGE_HD_CALLS
  XSTAGE_HD bool wait_routes(std::int32_t source) {
    return wait_at_least(policy_, context_, layout_.ready_word(own(), source), context_.epoch,
                         Site::kRoutes, source);
  }

  /// Once the counts of all sources are known: how many rows of counters this launch uses.
  XSTAGE_HD_CALLS
  XSTAGE_HD void record_rows(std::int64_t rows) {
    if (context_.worker == 0)
      policy_.store_release(used_word(slot()), static_cast<std::uint64_t>(rows));
  }

  XSTAGE_HD_CALLS
  XSTAGE_HD bool wait_landed(std::int32_t source) {
    return wait_at_least(policy_, context_, layout_.landed_word(own(), source), context_.epoch,
                         Site::kTokens, source);
  }

  XSTAGE_HD_CALLS
  XSTAGE_HD void dispatched(std::int64_t row, std::int64_t tokens) {
    policy_.add_release(layout_.dispatched_word(workspace_, slot(), row),
                        static_cast<std::uint64_t>(tokens));
  }
  XSTAGE_HD_CALLS
  XSTAGE_HD bool wait_dispatched(std::int64_t row, std::int64_t tokens) {
    return wait_at_least(policy_, context_, layout_.dispatched_word(workspace_, slot(), row),
                         static_cast<std::uint64_t>(tokens), Site::kDispatchedRow, row);
  }

  XSTAGE_HD_CALLS
  XSTAGE_HD void linear1_done(std::int64_t row) {
    policy_.add_release(layout_.linear1_word(workspace_, slot(), row), 1);
  }
  XSTAGE_HD_CALLS
  XSTAGE_HD bool wait_linear1(std::int64_t row) {
    return wait_at_least(policy_, context_, layout_.linear1_word(workspace_, slot(), row),
                         static_cast<std::uint64_t>(layout_.tiling.n1), Site::kLinear1Row, row);
  }

  /// `pieces` more row pieces (one row, one Linear-2 tile wide) are stored at `owner`. A kernel may
  /// call it for each tile, or once for many.
  XSTAGE_HD_CALLS
  XSTAGE_HD void combined(std::int32_t owner, std::int64_t pieces) {
    std::uint64_t* const word = layout_.arrived_word(symmetric_[owner], slot(), context_.rank);
    if constexpr (Policy::kFault == Fault::kMissingRelease)
      policy_.add_relaxed(word, static_cast<std::uint64_t>(pieces));
    else
      policy_.add_release(word, static_cast<std::uint64_t>(pieces));
  }
  /// Waits for all pieces of `rows` rows that were sent to `source`.
  XSTAGE_HD_CALLS
  XSTAGE_HD bool wait_combined(std::int32_t source, std::int64_t rows) {
    std::int64_t pieces = rows * layout_.tiling.n2;
    if (Policy::kFault == Fault::kWrongCount && pieces > 0) --pieces;
    return wait_at_least(policy_, context_, layout_.arrived_word(own(), slot(), source),
                         static_cast<std::uint64_t>(pieces), Site::kCombinePieces, source);
  }

  /// Next position of a schedule that is claimed instead of dealt out.
  XSTAGE_HD_CALLS
  XSTAGE_HD std::uint64_t claim() { return policy_.fetch_add(claimed_word(slot()), 1); }

 private:
  XSTAGE_HD void* own() const { return symmetric_[context_.rank]; }
  XSTAGE_HD std::uint64_t* used_word(std::int32_t slot) const {
    return layout_.word(workspace_, slot == 0 ? layout::MoeWord::kUsed0 : layout::MoeWord::kUsed1);
  }
  XSTAGE_HD std::uint64_t* claimed_word(std::int32_t slot) const {
    return layout_.word(workspace_,
                        slot == 0 ? layout::MoeWord::kClaimed0 : layout::MoeWord::kClaimed1);
  }

  Policy& policy_;
  const layout::MoeLayout& layout_;
  void* const* symmetric_;
  void* workspace_;
  WaitContext context_;
  Barrier barrier_;
  Barrier pushed_;
};

}  // namespace xstage::sync
