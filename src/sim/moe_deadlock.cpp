// When nothing moves any more and tiles are left: who waits for whom.
#include <fmt/format.h>

#include <vector>

#include "sim/moe_run.hpp"

namespace xstage::sim {

using schedule::Linear;
using schedule::MoeTile;

/// What an SM waits for, traced to the tile that would bring it.
struct MoeRun::Missing {
  enum class Kind { kNothing, kTile, kLost } kind = Kind::kNothing;
  int sm = -1;  ///< that has to execute the tile; -1: nobody has claimed it
  MoeTile tile;
};

std::string MoeRun::describe_wait(int rank, int sm) const {
  const Worker& worker =
      ranks_[static_cast<std::size_t>(rank)].workers[static_cast<std::size_t>(sm)];
  const auto tile = [](const MoeTile& t) {
    return fmt::format("Linear-{} of row {}, column {}", t.linear == Linear::kFirst ? 1 : 2, t.row,
                       t.column);
  };
  std::string what;
  switch (worker.wait) {
    case Wait::kTokens: what = "the tokens of that row"; break;
    case Wait::kLinear1: what = "Linear-1 of that row"; break;
    case Wait::kBuffer:
      what = fmt::format("the buffer of row {} (its Linear-2)", worker.waits_for_row);
      break;
    case Wait::kNone: what = "its stores"; break;
  }
  return fmt::format("rank {} SM {} at {} waits for {}", rank, sm, tile(worker.tile), what);
}

MoeRun::Missing MoeRun::missing_for(int rank, int sm) const {
  const Rank& r = ranks_[static_cast<std::size_t>(rank)];
  const Worker& waiting = r.workers[static_cast<std::size_t>(sm)];
  if (waiting.wait == Wait::kNone || waiting.wait == Wait::kTokens)
    return {Missing::Kind::kLost, -1, {}};
  const Linear linear = waiting.wait == Wait::kLinear1 ? Linear::kFirst : Linear::kSecond;
  const auto workers = static_cast<std::uint32_t>(r.workers.size());
  const std::uint32_t rotation = r.order.rotation(workers);
  schedule::StaticTiles<schedule::MoeOrder> walk(r.order, 0, 1);
  for (MoeTile tile; walk.next(tile);) {
    if (tile.row != waiting.waits_for_row || tile.linear != linear) continue;
    if (kernel_.claimed) {
      if (tile.position >= r.counter) return {Missing::Kind::kTile, -1, tile};
      for (std::size_t w = 0; w < r.workers.size(); ++w)
        if (r.workers[w].state != State::kDone && r.workers[w].tile.position == tile.position)
          return {Missing::Kind::kTile, static_cast<int>(w), tile};
      continue;
    }
    const std::size_t owner = Fixed::worker_of(tile.position, workers, rotation);
    const Worker& worker = r.workers[owner];
    if (worker.state != State::kDone && worker.tile.position <= tile.position)
      return {Missing::Kind::kTile, static_cast<int>(owner), tile};
  }
  return {Missing::Kind::kLost, -1, {}};
}

std::optional<std::string> MoeRun::find_deadlock() const {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Rank& r = ranks_[rank];
    int sm = -1;
    std::size_t stuck = 0;
    for (std::size_t w = 0; w < r.workers.size(); ++w)
      if (r.workers[w].state != State::kDone) {
        ++stuck;
        // Start from the one that holds the smallest position: in a sound schedule it never waits.
        if (sm < 0 ||
            r.workers[w].tile.position < r.workers[static_cast<std::size_t>(sm)].tile.position)
          sm = static_cast<int>(w);
      }
    if (sm < 0) continue;
    std::string text =
        fmt::format("{} of {} SMs of rank {} wait for ever: ", stuck, r.workers.size(), rank);
    std::vector<bool> seen(r.workers.size());
    for (int hops = 0; hops < 8; ++hops) {
      const Missing missing = missing_for(static_cast<int>(rank), sm);
      seen[static_cast<std::size_t>(sm)] = true;
      text += describe_wait(static_cast<int>(rank), sm);
      if (missing.kind != Missing::Kind::kTile) {
        text += ", and every tile that could bring it has been executed: a signal was lost";
        return text;
      }
      const std::string due = fmt::format("Linear-{} of row {}, column {}",
                                          missing.tile.linear == Linear::kFirst ? 1 : 2,
                                          missing.tile.row, missing.tile.column);
      if (missing.sm < 0) {
        text += fmt::format(", whose {} nobody has claimed because every SM waits", due);
        return text;
      }
      if (missing.sm == sm) {
        text += fmt::format(", whose {} is a later tile of the same SM", due);
        return text;
      }
      text += fmt::format(", whose {} SM {} has to execute; ", due, missing.sm);
      if (seen[static_cast<std::size_t>(missing.sm)]) {
        text += "that closes the cycle";
        return text;
      }
      sm = missing.sm;
    }
    return text + "and so on";
  }
  return std::nullopt;
}

}  // namespace xstage::sim
