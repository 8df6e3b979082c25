// Waits that end: each knows its site, its limit, and a word that tells every rank to stop.
//
// A wait that passes its limit writes down who waited for what, sets the stop word of every rank,
// and returns false; so do, soon after, all other waits of the group. The caller then leaves its
// kernel (or thread); nothing is left spinning, and the host puts the records together.
#pragma once

#include <cstdint>

#include "xstage/host_device.hpp"
#include "xstage/sync/policy.hpp"

namespace xstage::sync {

/// Polls are counted up to here; policies wait longer between them the more there were.
inline constexpr std::uint32_t kManyPolls = 1 << 20;

/// Where something is waited for. `subject` is what the record's number means.
enum class Site : std::int32_t {
  kNone,
  kBarrier,         ///< this rank's other workers; subject: which barrier of the launch
  kRoutes,          ///< a source's routes; subject: source rank
  kTokens,          ///< a source's tokens; subject: source rank
  kDispatchedRow,   ///< tokens of a row; subject: row
  kLinear1Row,      ///< Linear-1 tiles of a row; subject: row
  kCombinePieces,   ///< Linear-2 results; subject: source rank
  kExchangePieces,  ///< rows of Q, K, V; subject: source rank
  kOutputPieces,    ///< rows of attention output; subject: source rank
  kInsideBlock      ///< another warp of the worker; subject: what for, seen: which warp waited
};

/// Why a worker left a wait.
enum class WaitEnd : std::int32_t {
  kNone,     ///< it did not
  kLimit,    ///< it waited too long
  kStopped,  ///< another one did
  kCorrupt   ///< what arrived cannot be: a peer runs something else, or the protocol is broken
};

/// Who waited for what; one for each worker, written when it gives up.
struct WaitRecord {
  WaitEnd end = WaitEnd::kNone;
  Site site = Site::kNone;
  std::int32_t rank = 0;
  std::int32_t worker = 0;
  std::int64_t subject = 0;
  std::uint64_t wanted = 0;  ///< smallest value that would have ended the wait
  std::uint64_t seen = 0;
  std::uint64_t epoch = 0;
  std::uint64_t waited_ns = 0;
};

/// What every wait of one worker shares during a launch.
struct WaitContext {
  std::uint64_t* const* stop_words = nullptr;  ///< [ranks], in each rank's symmetric buffer
  std::int32_t ranks = 0;
  std::int32_t rank = 0;
  std::int32_t worker = 0;
  std::uint64_t epoch = 0;
  std::uint64_t limit_ns = 0;
  WaitRecord* record = nullptr;
};

/// The value of a stop word: not zero, and it says who stopped first.
XSTAGE_HD constexpr std::uint64_t stop_value(std::int32_t rank, Site site) {
  return (std::uint64_t{1} << 63) | (static_cast<std::uint64_t>(rank) << 32) |
         static_cast<std::uint64_t>(site);
}

/// Stops every rank because of what `site` brought; as after a wait that passed its limit.
XSTAGE_HD_CALLS
template <class Policy>
XSTAGE_HD void stop_all(Policy& policy, const WaitContext& context, const WaitRecord& record) {
  *context.record = record;
  for (std::int32_t rank = 0; rank < context.ranks; ++rank)
    policy.store_release(context.stop_words[rank], stop_value(context.rank, record.site));
}

/// Waits until done(value of *word). False when the limit passed or another rank stopped; the
/// worker must then leave.
XSTAGE_HD_CALLS
template <class Policy, class Done>
XSTAGE_HD bool wait_until(Policy& policy, const WaitContext& context, const std::uint64_t* word,
                          Done&& done, std::uint64_t wanted, Site site, std::int64_t subject) {
  std::uint64_t seen = policy.load_acquire(word);
  if (done(seen)) return true;
  const std::uint64_t begin = policy.now_ns();
  std::uint64_t* const own_stop = context.stop_words[context.rank];
  for (std::uint32_t polls = 0;; polls += polls < kManyPolls ? 1 : 0) {
    policy.pause(polls);
    seen = policy.load_acquire(word);
    if (done(seen)) return true;
    const std::uint64_t waited = policy.now_ns() - begin;
    const bool stopped = policy.load_acquire(own_stop) != 0;
    if (!stopped && waited <= context.limit_ns) continue;
    const WaitRecord record{stopped ? WaitEnd::kStopped : WaitEnd::kLimit,
                            site,
                            context.rank,
                            context.worker,
                            subject,
                            wanted,
                            seen,
                            context.epoch,
                            waited};
    if (stopped)
      *context.record = record;
    else
      stop_all(policy, context, record);
    return false;
  }
}

/// Waits until *word has reached `wanted`.
XSTAGE_HD_CALLS
template <class Policy>
XSTAGE_HD bool wait_at_least(Policy& policy, const WaitContext& context, const std::uint64_t* word,
                             std::uint64_t wanted, Site site, std::int64_t subject) {
  return wait_until(
      policy, context, word, [wanted](std::uint64_t value) { return value >= wanted; }, wanted,
      site, subject);
}

}  // namespace xstage::sync
