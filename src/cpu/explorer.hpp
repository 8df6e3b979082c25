// Runs workers in every order that a seed can think of, with their stores delayed and reordered.
//
// Workers are fibres of one thread. Each operation on shared memory is a step: the explorer picks
// which worker makes the next one, or which delayed store becomes visible. A store becomes visible
// at any later time and in any order, except that stores to the same place keep theirs, a release
// comes after all earlier stores of its worker, and an acquire-release operation waits for them.
// Memory is the same for everybody once a store is visible, as it is on one NVLink node. What a
// seed did once it does again, so a failure is its seed and its trace.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shapes/random.hpp"
#include "xstage/sync/policy.hpp"

namespace xstage::cpu {

class Explorer {
 public:
  explicit Explorer(std::uint64_t seed);
  ~Explorer();
  Explorer(const Explorer&) = delete;
  Explorer& operator=(const Explorer&) = delete;

  /// Names an area of memory for traces.
  void name_memory(const void* base, std::int64_t bytes, std::string name);

  /// Adds a worker. All workers of a rank take part in its end_of_launch().
  void add_worker(std::int32_t rank, std::function<void()> body);

  /// Steps until all workers have ended. When nobody can go on any more, `on_stuck` must make them
  /// leave (by setting their stop words); returns false if that happened or `most_steps` passed.
  bool run(std::uint64_t most_steps, const std::function<void()>& on_stuck);

  std::uint64_t steps() const { return steps_; }
  /// The last operations, oldest first, one a line.
  std::string trace() const;

  // What ExplorerMemory does, for the worker that is running.
  void store(void* to, const void* from, std::size_t bytes, bool release);
  void add(std::uint64_t* word, std::uint64_t value, bool release);
  std::uint64_t fetch_add(std::uint64_t* word, std::uint64_t value);
  void load(void* to, const void* from, std::size_t bytes);
  std::uint64_t load_word(const std::uint64_t* word);
  void wait_for_change();
  /// Ends the running worker's launch: its stores become visible, and it goes on when all workers
  /// of its rank have come here, as launches on one stream do.
  void end_of_launch();

 private:
  enum class Kind : std::uint8_t { kStore, kRelease, kAdd, kAddRelease };
  struct Pending {
    Kind kind;
    char* to;
    std::vector<char> bytes;  // of an addition: the value
    bool release() const { return kind == Kind::kRelease || kind == Kind::kAddRelease; }
  };
  enum class State : std::uint8_t { kRunnable, kWaiting, kAtEnd, kDone };
  struct Worker {
    std::int32_t rank = 0;
    std::function<void()> body;
    State state = State::kRunnable;
    std::uint32_t weight = 1;
    std::uint64_t seen = 0;  // changes of memory when it last began to wait
    std::deque<Pending> pending;
    ucontext_t context;
    std::unique_ptr<char[]> stack;
  };
  struct Event {
    std::uint64_t step;
    std::int32_t worker;
    const char* what;
    const void* where;
    std::uint64_t value;
  };

  static void entry(unsigned high, unsigned low);
  void yield();
  void resume(std::size_t worker);
  bool pick_and_step();
  void commit_some();
  void commit(Worker& worker, std::size_t index);
  void drain(Worker& worker);
  void wake_waiting();
  void note(const char* what, const void* where, std::uint64_t value, std::int32_t worker);
  std::string place(const void* where) const;
  Worker& running() { return *workers_[running_]; }

  static constexpr std::size_t kStackBytes = 512 * 1024;  // Eigen keeps 128 KiB of a product there
  static constexpr std::size_t kTraceEvents = 400;

  shapes::Random random_;
  double commit_chance_ = 0.3;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::size_t running_ = 0;
  ucontext_t main_;
  std::uint64_t steps_ = 0;
  std::uint64_t changes_ = 1;
  std::vector<Event> events_;  // a ring
  std::uint64_t noted_ = 0;
  struct Area {
    const char* begin;
    const char* end;
    std::string name;
  };
  std::vector<Area> areas_;
};

/// The policy and memory of a worker under the explorer, with a planted fault or none.
template <sync::Fault kPlanted>
class ExplorerMemory {
 public:
  static constexpr sync::Fault kFault = kPlanted;
  explicit ExplorerMemory(Explorer& explorer) : explorer_(explorer) {}

  std::uint64_t load_acquire(const std::uint64_t* word) { return explorer_.load_word(word); }
  void store_release(std::uint64_t* word, std::uint64_t value) {
    explorer_.store(word, &value, sizeof value, true);
  }
  void add_release(std::uint64_t* word, std::uint64_t value) { explorer_.add(word, value, true); }
  void add_relaxed(std::uint64_t* word, std::uint64_t value) { explorer_.add(word, value, false); }
  std::uint64_t fetch_add(std::uint64_t* word, std::uint64_t value) {
    return explorer_.fetch_add(word, value);
  }
  std::uint64_t now_ns() { return explorer_.steps(); }
  void pause(std::uint32_t) { explorer_.wait_for_change(); }
  void store(void* to, const void* from, std::size_t bytes) {
    explorer_.store(to, from, bytes, false);
  }
  void load(void* to, const void* from, std::size_t bytes) { explorer_.load(to, from, bytes); }

 private:
  Explorer& explorer_;
};

}  // namespace xstage::cpu
