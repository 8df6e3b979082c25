#include "cpu/explorer.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace xstage::cpu {

Explorer::Explorer(std::uint64_t seed) : random_(seed, 77) {
  // Each seed has a temper of its own: stores that appear at once, or long after.
  constexpr double kChances[] = {0.02, 0.1, 0.3, 0.7};
  commit_chance_ = kChances[random_.below(4)];
}

Explorer::~Explorer() = default;

void Explorer::name_memory(const void* base, std::int64_t bytes, std::string name) {
  const auto* const begin = static_cast<const char*>(base);
  areas_.push_back({begin, begin + bytes, std::move(name)});
}

void Explorer::add_worker(std::int32_t rank, std::function<void()> body) {
  auto worker = std::make_unique<Worker>();
  worker->rank = rank;
  worker->body = std::move(body);
  // Some workers are slow, some are very slow.
  constexpr std::uint32_t kWeights[] = {1, 8, 8, 64};
  worker->weight = kWeights[random_.below(4)];
  worker->stack = std::make_unique<char[]>(kStackBytes);
  getcontext(&worker->context);
  worker->context.uc_stack.ss_sp = worker->stack.get();
  worker->context.uc_stack.ss_size = kStackBytes;
  worker->context.uc_link = &main_;
  // makecontext passes ints; a pointer travels in two of them.
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&worker->context, reinterpret_cast<void (*)()>(&Explorer::entry), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  workers_.push_back(std::move(worker));
}

void Explorer::entry(unsigned high, unsigned low) {
  // makecontext() passes whole numbers only. NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const self = reinterpret_cast<Explorer*>((static_cast<std::uintptr_t>(high) << 32) | low);
  Worker& worker = self->running();
  worker.body();
  self->drain(worker);
  self->wake_waiting();
  worker.state = State::kDone;  // uc_link leads back to resume()
}

void Explorer::resume(std::size_t worker) {
  running_ = worker;
  ++steps_;
  swapcontext(&main_, &workers_[worker]->context);
}

void Explorer::yield() { swapcontext(&running().context, &main_); }

bool Explorer::run(std::uint64_t most_steps, const std::function<void()>& on_stuck) {
  bool good = true;
  while (std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& w) { return w->state != State::kDone; })) {
    if (good && steps_ < most_steps && pick_and_step()) continue;
    if (!good && pick_and_step()) continue;
    // Nobody can go on. What was delayed is all visible; the workers leave by their stop words.
    for (auto& worker : workers_) drain(*worker);
    for (auto& worker : workers_)
      if (worker->state == State::kAtEnd) worker->state = State::kRunnable;
    good = false;
    on_stuck();
    wake_waiting();
  }
  return good;
}

/// One step of somebody; false when nothing is left to do.
bool Explorer::pick_and_step() {
  std::uint64_t total = 0;
  bool pending = false;
  for (const auto& worker : workers_) {
    if (worker->state == State::kRunnable) total += worker->weight;
    pending = pending || !worker->pending.empty();
  }
  if (total == 0 && !pending) return false;
  if (total == 0 || (pending && random_.uniform() < commit_chance_)) {
    ++steps_;
    commit_some();
    return true;
  }
  auto at = static_cast<std::uint64_t>(random_.below(static_cast<std::int64_t>(total)));
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i]->state != State::kRunnable) continue;
    if (at < workers_[i]->weight) {
      resume(i);
      return true;
    }
    at -= workers_[i]->weight;
  }
  return true;
}

/// Makes one delayed store visible: any, as far as the order that is promised allows.
void Explorer::commit_some() {
  std::vector<Worker*> candidates;
  for (const auto& worker : workers_)
    if (!worker->pending.empty()) candidates.push_back(worker.get());
  Worker& worker = *candidates[static_cast<std::size_t>(
      random_.below(static_cast<std::int64_t>(candidates.size())))];
  auto index =
      static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(worker.pending.size())));
  const auto overlap = [](const Pending& a, const Pending& b) {
    return a.to < b.to + b.bytes.size() && b.to < a.to + a.bytes.size();
  };
  for (std::size_t i = 0; i < index; ++i)
    if (overlap(worker.pending[i], worker.pending[index])) index = i;
  if (worker.pending[index].release()) index = 0;
  commit(worker, index);
}

void Explorer::commit(Worker& worker, std::size_t index) {
  const Pending entry = std::move(worker.pending[index]);
  worker.pending.erase(worker.pending.begin() + static_cast<std::ptrdiff_t>(index));
  std::uint64_t value = 0;
  if (entry.kind == Kind::kAdd || entry.kind == Kind::kAddRelease) {
    std::uint64_t sum = 0;
    std::memcpy(&value, entry.bytes.data(), sizeof value);
    std::memcpy(&sum, entry.to, sizeof sum);
    sum += value;
    std::memcpy(entry.to, &sum, sizeof sum);
    value = sum;
  } else {
    std::memcpy(entry.to, entry.bytes.data(), entry.bytes.size());
    if (entry.bytes.size() == sizeof value) std::memcpy(&value, entry.bytes.data(), sizeof value);
  }
  std::int32_t number = 0;
  while (workers_[static_cast<std::size_t>(number)].get() != &worker) ++number;
  note("visible", entry.to, value, number);
  // Waits are for words; bulk data wakes nobody.
  if (entry.bytes.size() == sizeof value) wake_waiting();
}

void Explorer::drain(Worker& worker) {
  while (!worker.pending.empty()) commit(worker, 0);
}

void Explorer::wake_waiting() {
  ++changes_;
  for (auto& worker : workers_)
    if (worker->state == State::kWaiting) worker->state = State::kRunnable;
}

void Explorer::store(void* to, const void* from, std::size_t bytes, bool release) {
  if (bytes == 0) return;
  std::uint64_t value = 0;
  std::memcpy(&value, from, std::min(bytes, sizeof value));
  note(release ? "store.release" : "store", to, value, static_cast<std::int32_t>(running_));
  const auto* const data = static_cast<const char*>(from);
  running().pending.push_back(
      {release ? Kind::kRelease : Kind::kStore, static_cast<char*>(to), {data, data + bytes}});
  yield();
}

void Explorer::add(std::uint64_t* word, std::uint64_t value, bool release) {
  note(release ? "add.release" : "add.relaxed", word, value, static_cast<std::int32_t>(running_));
  Pending entry{release ? Kind::kAddRelease : Kind::kAdd, reinterpret_cast<char*>(word), {}};
  entry.bytes.resize(sizeof value);
  std::memcpy(entry.bytes.data(), &value, sizeof value);
  running().pending.push_back(std::move(entry));
  yield();
}

std::uint64_t Explorer::fetch_add(std::uint64_t* word, std::uint64_t value) {
  drain(running());
  const std::uint64_t before = *word;
  *word += value;
  note("fetch_add", word, *word, static_cast<std::int32_t>(running_));
  wake_waiting();
  yield();
  return before;
}

void Explorer::load(void* to, const void* from, std::size_t bytes) {
  yield();
  if (bytes == 0) return;
  std::memcpy(to, from, bytes);
  // A worker sees its own stores, visible or not.
  const auto* const begin = static_cast<const char*>(from);
  for (const Pending& entry : running().pending) {
    const char* const first = std::max<const char*>(begin, entry.to);
    const char* const last = std::min<const char*>(begin + bytes, entry.to + entry.bytes.size());
    if (first >= last) continue;
    if (entry.kind == Kind::kAdd || entry.kind == Kind::kAddRelease) continue;  // a word's own case
    std::memcpy(static_cast<char*>(to) + (first - begin), entry.bytes.data() + (first - entry.to),
                static_cast<std::size_t>(last - first));
  }
}

std::uint64_t Explorer::load_word(const std::uint64_t* word) {
  yield();
  std::uint64_t value = *word;
  for (const Pending& entry : running().pending) {
    if (entry.to != reinterpret_cast<const char*>(word)) continue;
    std::uint64_t own = 0;
    std::memcpy(&own, entry.bytes.data(), sizeof own);
    value = entry.kind == Kind::kAdd || entry.kind == Kind::kAddRelease ? value + own : own;
  }
  note("load.acquire", word, value, static_cast<std::int32_t>(running_));
  return value;
}

void Explorer::wait_for_change() {
  // What became visible since the last time may be what is waited for.
  if (running().seen == changes_) running().state = State::kWaiting;
  running().seen = changes_;
  yield();
  running().seen = changes_;
}

void Explorer::end_of_launch() {
  Worker& self = running();
  drain(self);
  wake_waiting();
  self.state = State::kAtEnd;
  const auto mates = [&](auto&& visit) {
    for (auto& worker : workers_)
      if (worker->rank == self.rank) visit(*worker);
  };
  bool all = true;
  mates(
      [&](const Worker& w) { all = all && (w.state == State::kAtEnd || w.state == State::kDone); });
  if (all)
    mates([](Worker& w) {
      if (w.state == State::kAtEnd) w.state = State::kRunnable;
    });
  yield();
}

void Explorer::note(const char* what, const void* where, std::uint64_t value, std::int32_t worker) {
  const Event event{steps_, worker, what, where, value};
  if (events_.size() < kTraceEvents)
    events_.push_back(event);
  else
    events_[noted_ % kTraceEvents] = event;
  ++noted_;
}

std::string Explorer::place(const void* where) const {
  const auto* const at = static_cast<const char*>(where);
  for (const Area& area : areas_)
    if (at >= area.begin && at < area.end) return fmt::format("{}+{}", area.name, at - area.begin);
  return "unnamed memory";
}

std::string Explorer::trace() const {
  std::vector<Event> ordered = events_;
  if (noted_ > kTraceEvents)
    std::rotate(ordered.begin(),
                ordered.begin() + static_cast<std::ptrdiff_t>(noted_ % kTraceEvents),
                ordered.end());
  std::string out;
  for (const Event& event : ordered)
    out += fmt::format("step {:>7}  worker {} of rank {}  {:<14} {}  {:#x}\n", event.step,
                       event.worker, workers_[static_cast<std::size_t>(event.worker)]->rank,
                       event.what, place(event.where), event.value);
  return out;
}

}  // namespace xstage::cpu
