// What a tile order promises, as checks on a whole order. Host only.
//
// Each returns an empty string, or one sentence that names the first tile at fault.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "xstage/schedule/moe.hpp"

namespace xstage::schedule {

/// The whole order, position by position.
inline std::vector<MoeTile> all_tiles(const MoeOrder& order) {
  std::vector<MoeTile> tiles;
  tiles.reserve(order.size());
  StaticTiles<MoeOrder> walk(order, 0, 1);
  for (MoeTile tile; walk.next(tile);) tiles.push_back(tile);
  return tiles;
}

inline std::string describe(const MoeTile& tile) {
  return "position " + std::to_string(tile.position) + ": Linear-" +
         (tile.linear == Linear::kFirst ? "1" : "2") + " of row " + std::to_string(tile.row) +
         " column " + std::to_string(tile.column);
}

/// Every tile of every row exactly once, at consecutive positions, with the right expert, block and
/// number of tokens.
inline std::string check_every_tile_once(const std::vector<MoeTile>& tiles, const MoeTiling& tiling,
                                         const std::vector<std::uint32_t>& tokens) {
  struct Row {
    std::int32_t expert;
    std::int64_t block;
    std::int64_t tokens;
  };
  std::vector<Row> rows;
  for (std::size_t expert = 0; expert < tokens.size(); ++expert)
    for (std::int64_t at = 0; at < tokens[expert]; at += tiling.block_m)
      rows.push_back({static_cast<std::int32_t>(expert), at / tiling.block_m,
                      std::min<std::int64_t>(tiling.block_m, tokens[expert] - at)});
  const auto per_row = static_cast<std::size_t>(tiling.n1 + tiling.n2);
  if (tiles.size() != rows.size() * per_row)
    return std::to_string(tiles.size()) + " tiles where " + std::to_string(rows.size() * per_row) +
           " are due";
  std::vector<bool> seen(tiles.size());
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const MoeTile& tile = tiles[i];
    if (tile.position != i) return describe(tile) + " stands at place " + std::to_string(i);
    const std::int32_t columns = tile.linear == Linear::kFirst ? tiling.n1 : tiling.n2;
    if (tile.row < 0 || tile.row >= static_cast<std::int64_t>(rows.size()) || tile.column < 0 ||
        tile.column >= columns)
      return describe(tile) + " does not exist";
    const Row& row = rows[static_cast<std::size_t>(tile.row)];
    if (row.expert != tile.expert || row.block != tile.block || row.tokens != tile.tokens)
      return describe(tile) + " has a wrong expert, block or token count";
    const std::size_t index =
        static_cast<std::size_t>(tile.row) * per_row +
        static_cast<std::size_t>(tile.column + (tile.linear == Linear::kFirst ? 0 : tiling.n1));
    if (seen[index]) return describe(tile) + " comes twice";
    seen[index] = true;
  }
  return {};
}

/// Linear-2 of a row only after all of that row's Linear-1; with `lead` > 0 also only after all
/// Linear-1 of the `lead` rows from it on, as long as there are rows.
inline std::string check_linear2_after_linear1(const std::vector<MoeTile>& tiles,
                                               const MoeTiling& tiling, std::int64_t rows,
                                               std::int64_t lead = 0) {
  std::vector<std::int32_t> issued(static_cast<std::size_t>(rows));
  std::int64_t complete = 0;  // rows below this one have all Linear-1 tiles issued
  for (const MoeTile& tile : tiles) {
    if (tile.linear == Linear::kFirst) {
      ++issued[static_cast<std::size_t>(tile.row)];
      while (complete < rows && issued[static_cast<std::size_t>(complete)] == tiling.n1) ++complete;
    } else {
      if (issued[static_cast<std::size_t>(tile.row)] != tiling.n1)
        return describe(tile) + " comes before its row's Linear-1";
      if (complete < std::min(rows, tile.row + lead))
        return describe(tile) + " comes when Linear-1 leads by " +
               std::to_string(complete - tile.row) + " rows, not " + std::to_string(lead);
    }
  }
  return {};
}

/// The most rows at any position with a Linear-1 tile issued and a Linear-2 tile still to come.
inline std::int64_t live_rows_in_order(const std::vector<MoeTile>& tiles, const MoeTiling& tiling,
                                       std::int64_t rows) {
  std::vector<std::int32_t> first(static_cast<std::size_t>(rows)), second(first);
  std::int64_t live = 0, most = 0;
  for (const MoeTile& tile : tiles) {
    const auto row = static_cast<std::size_t>(tile.row);
    if (tile.linear == Linear::kFirst && first[row]++ == 0) most = std::max(most, ++live);
    if (tile.linear == Linear::kSecond && ++second[row] == tiling.n2) --live;
  }
  return most;
}

/// How workers get their tiles in run_with_waits().
enum class Sharing { kStatic, kClaimed };

struct WaitingRun {
  bool deadlock = false;
  std::string stuck;  ///< with a deadlock: the first worker's tile and what it waits for
  std::int64_t most_live =
      0;  ///< rows with Linear-1 finished and Linear-2 not, at the worst moment
};

/// Executes an order with `workers` workers that block: Linear-2 until its row's Linear-1 is
/// finished, Linear-1 of row r until Linear-2 of row r - `buffers` is (`buffers` Linear-1 outputs
/// in a ring). `pick(n)` chooses which of n runnable workers goes on; all its choices must end
/// without deadlock.
template <class Pick>
WaitingRun run_with_waits(const MoeOrder& order, std::uint32_t workers, Sharing sharing,
                          std::int64_t buffers, Pick&& pick) {
  const MoeTiling tiling = order.tiling();
  const auto rows = static_cast<std::size_t>(order.rows());
  std::vector<std::int32_t> first(rows), second(rows);
  std::vector<std::vector<std::uint32_t>> waiting_first(rows), waiting_second(rows);
  std::uint64_t counter = 0;
  const auto claim = [&counter] { return counter++; };
  std::vector<StaticTiles<MoeOrder>> fixed;
  std::vector<ClaimedTiles<MoeOrder, decltype(claim)>> claimed;
  for (std::uint32_t w = 0; w < workers; ++w) {
    if (sharing == Sharing::kStatic)
      fixed.emplace_back(order, w, workers);
    else
      claimed.emplace_back(order, claim);
  }
  // A runnable worker either fetches its next tile (and may block on it) or finishes the one it
  // holds.
  std::vector<MoeTile> held(workers);
  std::vector<bool> holds(workers);
  std::vector<std::uint32_t> runnable;
  for (std::uint32_t w = 0; w < workers; ++w) runnable.push_back(w);
  std::uint64_t finished = 0;
  std::int64_t live = 0;
  WaitingRun run;
  while (!runnable.empty()) {
    const std::size_t chosen = pick(runnable.size());
    const std::uint32_t worker = runnable[chosen];
    runnable[chosen] = runnable.back();
    runnable.pop_back();
    MoeTile& tile = held[worker];
    if (!holds[worker]) {
      const bool more =
          sharing == Sharing::kStatic ? fixed[worker].next(tile) : claimed[worker].next(tile);
      if (!more) continue;
      holds[worker] = true;
      const auto row = static_cast<std::size_t>(tile.row);
      if (tile.linear == Linear::kSecond && first[row] < tiling.n1)
        waiting_first[row].push_back(worker);
      else if (tile.linear == Linear::kFirst && tile.row >= buffers &&
               second[row - static_cast<std::size_t>(buffers)] < tiling.n2)
        waiting_second[row - static_cast<std::size_t>(buffers)].push_back(worker);
      else
        runnable.push_back(worker);
      continue;
    }
    holds[worker] = false;
    ++finished;
    runnable.push_back(worker);
    const auto row = static_cast<std::size_t>(tile.row);
    auto& counts = tile.linear == Linear::kFirst ? first : second;
    auto& waiters = tile.linear == Linear::kFirst ? waiting_first : waiting_second;
    if (++counts[row] == (tile.linear == Linear::kFirst ? tiling.n1 : tiling.n2)) {
      live += tile.linear == Linear::kFirst ? 1 : -1;
      run.most_live = std::max(run.most_live, live);
      runnable.insert(runnable.end(), waiters[row].begin(), waiters[row].end());
      waiters[row].clear();
    }
  }
  run.deadlock = finished != order.size();
  for (std::uint32_t w = 0; run.deadlock && run.stuck.empty() && w < workers; ++w)
    if (holds[w])
      run.stuck = "worker " + std::to_string(w) + " at " + describe(held[w]) + " waits for " +
                  (held[w].linear == Linear::kSecond
                       ? "Linear-1 of its row"
                       : "Linear-2 of row " + std::to_string(held[w].row - buffers));
  return run;
}

}  // namespace xstage::schedule
