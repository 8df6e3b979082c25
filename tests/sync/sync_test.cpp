#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "xstage/sync/arrivals.hpp"
#include "xstage/sync/barrier.hpp"
#include "xstage/sync/host.hpp"
#include "xstage/sync/moe.hpp"

namespace xstage::sync {
namespace {

constexpr std::uint64_t kSecond = 1000000000;

/// Stop words and records of a few ranks.
struct Fixture {
  explicit Fixture(std::int32_t ranks) : words(static_cast<std::size_t>(ranks), 0) {
    for (auto& word : words) pointers.push_back(&word);
  }
  WaitContext context(std::int32_t rank, std::int32_t worker, WaitRecord* record,
                      std::uint64_t limit_ns) {
    WaitContext out;
    out.stop_words = pointers.data();
    out.ranks = static_cast<std::int32_t>(words.size());
    out.rank = rank;
    out.worker = worker;
    out.limit_ns = limit_ns;
    out.record = record;
    return out;
  }
  std::vector<std::uint64_t> words;
  std::vector<std::uint64_t*> pointers;
};

TEST(Wait, EndsWithARecordAndStopsAllRanks) {
  Fixture group(3);
  std::uint64_t word = 4;
  WaitRecord record, other;
  HostPolicy policy;
  const WaitContext context = group.context(1, 2, &record, kSecond / 50);
  EXPECT_FALSE(wait_at_least(policy, context, &word, 5, Site::kRoutes, 2));
  EXPECT_EQ(record.end, WaitEnd::kLimit);
  EXPECT_EQ(record.site, Site::kRoutes);
  EXPECT_EQ(record.rank, 1);
  EXPECT_EQ(record.worker, 2);
  EXPECT_EQ(record.subject, 2);
  EXPECT_EQ(record.wanted, 5u);
  EXPECT_EQ(record.seen, 4u);
  EXPECT_GE(record.waited_ns, kSecond / 50);
  for (const std::uint64_t stop : group.words) EXPECT_EQ(stop, stop_value(1, Site::kRoutes));
  // Everybody else leaves at once, saying so.
  EXPECT_FALSE(wait_at_least(policy, group.context(0, 0, &other, 1000 * kSecond), &word, 5,
                             Site::kRoutes, 2));
  EXPECT_EQ(other.end, WaitEnd::kStopped);
}

TEST(Wait, WhatIsThereIsTakenEvenAfterAStop) {
  Fixture group(1);
  group.words[0] = 1;
  std::uint64_t word = 7;
  WaitRecord record;
  HostPolicy policy;
  EXPECT_TRUE(wait_at_least(policy, group.context(0, 0, &record, 0), &word, 7, Site::kRoutes, 0));
  EXPECT_EQ(record.end, WaitEnd::kNone);
}

TEST(Barrier, AnyNumberOfWorkersLaunchAfterLaunchOnOneWord) {
  std::uint64_t word = 0;
  Fixture group(1);
  for (const std::int32_t workers : {3, 1, 4, 2}) {
    std::vector<int> phase(static_cast<std::size_t>(workers), 0);
    std::vector<WaitRecord> records(static_cast<std::size_t>(workers));
    std::vector<int> bad(static_cast<std::size_t>(workers), 0);
    {
      std::vector<std::jthread> threads;
      for (std::int32_t w = 0; w < workers; ++w)
        threads.emplace_back([&, w] {
          const auto index = static_cast<std::size_t>(w);
          HostPolicy policy;
          Barrier barrier(&word, w, workers);
          const WaitContext context = group.context(0, w, &records[index], 60 * kSecond);
          for (int round = 1; round <= 200; ++round) {
            phase[index] = round;
            barrier.arrive(policy);
            if (!barrier.wait(policy, context, round)) bad[index] = 1;
            for (const int seen : phase) bad[index] |= seen < round;  // a race without the barrier
            barrier.arrive(policy);
            if (!barrier.wait(policy, context, round)) bad[index] = 1;
          }
        });
    }
    for (const int b : bad) EXPECT_EQ(b, 0);
  }
}

TEST(Barrier, AWorkerThatIsMissingIsReported) {
  std::uint64_t word = 0;
  Fixture group(1);
  WaitRecord record;
  HostPolicy policy;
  Barrier barrier(&word, 1, 2);
  barrier.arrive(policy);
  EXPECT_FALSE(barrier.wait(policy, group.context(0, 1, &record, kSecond / 100), 0));
  EXPECT_EQ(record.site, Site::kBarrier);
}

/// Words of a group of ranks for Arrivals.
struct Words {
  std::uint64_t* arrived(std::int32_t rank, std::int32_t slot, std::int32_t source) const {
    return base + (rank * 2 + slot) * ranks + source;
  }
  std::uint64_t* epoch() const { return base + 2 * ranks * ranks + own * 2; }
  std::uint64_t* barrier() const { return base + 2 * ranks * ranks + own * 2 + 1; }
  std::uint64_t* base;
  std::int32_t ranks;
  std::int32_t own;
};

// Every launch each rank writes one value to every peer, without looking at what else they do; a
// slot must still hold its own launch's values when it is read.
TEST(Arrivals, TwoSlotsAreEnoughHoweverFastARankIs) {
  constexpr std::int32_t kRanks = 3, kWorkers = 2;
  constexpr std::uint64_t kLaunches = 300;
  std::vector<std::uint64_t> memory(2 * kRanks * kRanks + 2 * kRanks, 0);
  std::vector<std::uint64_t> data(2 * kRanks * kRanks * kWorkers, 0);
  Fixture group(kRanks);
  std::vector<WaitRecord> records(kRanks * kWorkers);
  std::vector<int> wrong(kRanks * kWorkers, 0);
  std::vector<std::uint64_t> barrier_words(kRanks, 0);
  {
    std::vector<std::jthread> threads;
    for (std::int32_t rank = 0; rank < kRanks; ++rank)
      for (std::int32_t worker = 0; worker < kWorkers; ++worker)
        threads.emplace_back([&, rank, worker] {
          const auto index = static_cast<std::size_t>(rank * kWorkers + worker);
          HostPolicy policy;
          const WaitContext context = group.context(rank, worker, &records[index], 60 * kSecond);
          Barrier end(&barrier_words[static_cast<std::size_t>(rank)], worker, kWorkers);
          const auto cell = [&](std::int32_t at, std::int32_t slot, std::int32_t from,
                                std::int32_t w) {
            return &data[static_cast<std::size_t>(((at * 2 + slot) * kRanks + from) * kWorkers +
                                                  w)];
          };
          for (std::uint64_t launch = 1; launch <= kLaunches; ++launch) {
            Arrivals<HostPolicy, Words> arrivals(policy, Words{memory.data(), kRanks, rank},
                                                 context, kWorkers, Site::kOutputPieces);
            arrivals.begin();
            wrong[index] |= arrivals.epoch() != launch || !arrivals.open();
            for (std::int32_t to = 0; to < kRanks; ++to) {
              *cell(to, arrivals.slot(), rank, worker) = launch;
              arrivals.add(to, 1);
            }
            for (std::int32_t from = 0; from < kRanks; ++from) {
              wrong[index] |= !arrivals.wait(from, kWorkers);
              for (std::int32_t w = 0; w < kWorkers; ++w)
                wrong[index] |= *cell(rank, arrivals.slot(), from, w) != launch;
            }
            // A launch ends when all workers of the rank have ended.
            end.arrive(policy);
            wrong[index] |= !end.wait(policy, context, 1);
          }
        });
  }
  for (const int w : wrong) EXPECT_EQ(w, 0);
}

}  // namespace
}  // namespace xstage::sync
