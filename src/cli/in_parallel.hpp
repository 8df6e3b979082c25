// A loop on all cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace xstage::cli {

/// Calls `work(i)` for every i below `count`, on as many threads as there are cores. What `work`
/// throws first ends the loop and is thrown here, behind the last call.
inline void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr thrown;  // written by the one that set `failed`, read when all have joined
  const auto run = [&] {
    try {
      for (std::size_t i; !failed && (i = next.fetch_add(1)) < count;) work(i);
    } catch (...) {
      if (!failed.exchange(true)) thrown = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    const std::size_t threads =
        std::min<std::size_t>(count, std::max(1u, std::thread::hardware_concurrency()));
    for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back(run);
    run();
  }
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace xstage::cli
