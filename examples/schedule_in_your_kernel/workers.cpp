// The same loop on CPU threads: what each worker would do, and in which order.
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "tile_loop.hpp"

using namespace xstage::schedule;

namespace {

struct Threads {
  std::vector<std::atomic<int>>& linear1_done;
  std::atomic<int>& sent;
  int n1;

  void wait_for_tokens(std::int64_t) {}
  void wait_for_linear1(std::int64_t row) {
    while (linear1_done[static_cast<std::size_t>(row)].load(std::memory_order_acquire) < n1)
      std::this_thread::yield();
  }
  void linear1(const MoeTile& tile) {
    linear1_done[static_cast<std::size_t>(tile.row)].fetch_add(1, std::memory_order_release);
  }
  void linear2(const MoeTile&) { sent.fetch_add(1, std::memory_order_relaxed); }
};

}  // namespace

int main() {
  const std::vector<std::uint32_t> tokens{300, 0, 129, 512};
  const MoeTiling tiling = moe_tiling(2048, 768, 128, 128);
  const int workers = 4;
  for (const MoeSchedule& schedule :
       {MoeSchedule::wave(2), MoeSchedule::interleaved(covering_lead(tiling, workers))}) {
    const MoeOrder order(tiling, schedule, tokens.data(), static_cast<std::int32_t>(tokens.size()));
    std::vector<std::atomic<int>> linear1_done(static_cast<std::size_t>(order.rows()));
    std::atomic<int> sent = 0;
    std::vector<std::thread> threads;
    for (std::uint32_t w = 0; w < workers; ++w)
      threads.emplace_back([&, w] {
        StaticTiles tiles(order, w, workers);
        Threads work{linear1_done, sent, tiling.n1};
        tile_loop(tiles, work);
      });
    for (std::thread& thread : threads) thread.join();
    const auto due = order.rows() * tiling.n2;
    std::printf("%s: %d of %lld Linear-2 tiles sent, at most %lld rows live\n",
                schedule.kind == MoeScheduleKind::kWave ? "wave" : "interleaved", sent.load(),
                static_cast<long long>(due), static_cast<long long>(order.live_rows()));
    if (sent != due) return 1;
  }
}
