#include "cpu/group.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>

#include "cpu/wait_report.hpp"
#include "xstage/sync/host.hpp"

namespace xstage::cpu {

Result<Group> Group::create(std::int32_t ranks, std::int32_t workers, std::int64_t symmetric_bytes,
                            std::int64_t workspace_bytes) {
  Group out;
  out.workers_ = workers;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    auto symmetric = Pages::allocate(symmetric_bytes, "symmetric buffer");
    if (!symmetric) return symmetric.error();
    auto workspace = Pages::allocate(workspace_bytes, "workspace");
    if (!workspace) return workspace.error();
    out.symmetric_.push_back(symmetric->base());
    out.symmetric_pages_.push_back(std::move(*symmetric));
    out.workspaces_.push_back(std::move(*workspace));
  }
  return out;
}

Result<bool> Group::launch(const std::vector<std::uint64_t*>& stop_words,
                           const LaunchOptions& options, const Work& work) {
  const std::uint64_t limit_ns = launches_++ == 0 ? options.first_limit_ns : options.limit_ns;
  const auto count = static_cast<std::size_t>(ranks()) * static_cast<std::size_t>(workers_);
  waits_.assign(count, {});
  std::vector<char> done(count, 0);
  std::mutex failure_mutex;
  std::string failure;
  const auto stop_everybody = [&](std::int32_t rank, std::string why) {
    {
      const std::lock_guard lock(failure_mutex);
      if (failure.empty()) failure = std::move(why);
    }
    for (std::uint64_t* word : stop_words)
      sync::HostPolicy().store_release(word, sync::stop_value(rank, sync::Site::kNone));
  };
  const auto body = [&](std::int32_t rank, std::int32_t worker) {
    const auto index = static_cast<std::size_t>(std::int64_t{rank} * workers_ + worker);
    sync::WaitContext context;
    context.stop_words = stop_words.data();
    context.ranks = ranks();
    context.rank = rank;
    context.worker = worker;
    context.limit_ns = limit_ns;
    context.record = &waits_[index];
    if (rank == options.late_rank)
      std::this_thread::sleep_for(std::chrono::nanoseconds(options.late_ns));
    try {
      done[index] = work(context);
    } catch (const std::exception& error) {
      stop_everybody(rank, error.what());
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (std::int32_t rank = 0; rank < ranks(); ++rank)
        for (std::int32_t worker = 0; worker < workers_; ++worker)
          threads.emplace_back(body, rank, worker);
    } catch (const std::system_error& error) {
      stop_everybody(0, std::string("a worker's thread cannot be started: ") + error.what());
    }
  }
  if (std::all_of(done.begin(), done.end(), [](char ok) { return ok != 0; })) return true;
  // Flags and counters of a launch that broke off say nothing; all ranks begin again together.
  for (Pages& pages : symmetric_pages_) pages.clear();
  for (Pages& pages : workspaces_) pages.clear();
  launches_ = 0;
  if (!failure.empty()) return Error{ErrorKind::kCheckFailed, failure, {}, {}, {}};
  return wait_error(waits_, limit_ns);
}

}  // namespace xstage::cpu
