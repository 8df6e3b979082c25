#include "cpu/wait_report.hpp"

#include <fmt/format.h>

namespace xstage::cpu {
namespace {

std::string awaited(const sync::WaitRecord& record) {
  switch (record.site) {
    case sync::Site::kNone: return "nothing";
    case sync::Site::kBarrier: return fmt::format("the other workers of rank {}", record.rank);
    case sync::Site::kRoutes: return fmt::format("the routes of rank {}", record.subject);
    case sync::Site::kTokens: return fmt::format("the tokens of rank {}", record.subject);
    case sync::Site::kDispatchedRow: return fmt::format("the tokens of row {}", record.subject);
    case sync::Site::kLinear1Row: return fmt::format("Linear-1 of row {}", record.subject);
    case sync::Site::kCombinePieces: return fmt::format("results from rank {}", record.subject);
    case sync::Site::kExchangePieces: return fmt::format("Q, K and V from rank {}", record.subject);
    case sync::Site::kOutputPieces: return fmt::format("output rows from rank {}", record.subject);
    case sync::Site::kInsideBlock: return fmt::format("its own part {}", record.subject);
  }
  return "something unknown";
}

const char* name(sync::Site site) {
  switch (site) {
    case sync::Site::kNone: return "none";
    case sync::Site::kBarrier: return "barrier";
    case sync::Site::kRoutes: return "routes";
    case sync::Site::kTokens: return "tokens";
    case sync::Site::kDispatchedRow: return "dispatched_row";
    case sync::Site::kLinear1Row: return "linear1_row";
    case sync::Site::kCombinePieces: return "combine_pieces";
    case sync::Site::kExchangePieces: return "exchange_pieces";
    case sync::Site::kOutputPieces: return "output_pieces";
    case sync::Site::kInsideBlock: return "inside_block";
  }
  return "unknown";
}

/// A wait for another rank, rather than for this rank's own workers.
bool names_a_rank(const sync::WaitRecord& record) {
  return record.site == sync::Site::kRoutes || record.site == sync::Site::kTokens ||
         record.site == sync::Site::kCombinePieces || record.site == sync::Site::kExchangePieces ||
         record.site == sync::Site::kOutputPieces;
}

}  // namespace

std::string describe(const sync::WaitRecord& record) {
  if (record.end == sync::WaitEnd::kCorrupt)
    return fmt::format(
        "rank {}, worker {} was sent something that cannot be by rank {}: {}, at most {}",
        record.rank, record.worker, record.subject, record.seen, record.wanted);
  return fmt::format("rank {}, worker {} waited {} ms for {} in launch {}: wanted {}, saw {}",
                     record.rank, record.worker, record.waited_ns / 1000000, awaited(record),
                     record.epoch, record.wanted, record.seen);
}

Error wait_error(const std::vector<sync::WaitRecord>& records, std::uint64_t limit_ns) {
  const sync::WaitRecord* first = nullptr;   // the cause
  const sync::WaitRecord* remote = nullptr;  // the longest wait for another rank
  int others = -1;
  for (const sync::WaitRecord& record : records) {
    if (record.end == sync::WaitEnd::kNone) continue;
    ++others;
    const bool cause = record.end != sync::WaitEnd::kStopped;
    // Somebody who waits for another rank says more than its mates who wait for it.
    if (!first || (cause && (first->end == sync::WaitEnd::kStopped ||
                             (names_a_rank(record) && !names_a_rank(*first)))))
      first = &record;
    if (names_a_rank(record) && (!remote || record.waited_ns > remote->waited_ns)) remote = &record;
  }
  if (!first)
    return {ErrorKind::kTimeout, "a rank stopped answering, and nobody waited for it", {}, {}, {}};
  Error error;
  error.kind =
      first->end == sync::WaitEnd::kCorrupt ? ErrorKind::kCheckFailed : ErrorKind::kTimeout;
  error.what = describe(*first);
  if (remote && !names_a_rank(*first)) error.what += "; " + describe(*remote);
  if (others > 0) error.what += fmt::format("; {} more workers stopped", others);
  error.field = name(first->site);
  error.value = fmt::format("{}", first->seen);
  error.allowed = fmt::format("{} within {} ms", first->wanted, limit_ns / 1000000);
  return error;
}

}  // namespace xstage::cpu
