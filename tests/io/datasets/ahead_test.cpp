// Tests: io/datasets/ahead.cpp, io/datasets/input_arena.cpp, io/datasets/map.cpp
// Work on the threads of an input: order, bounds, errors, cancellation, what stats say.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/io/datasets/dataset.h"
#include "support/dataset_test.h"

namespace lockstep {
namespace {

using testing::all_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::numbers_of;
using testing::refusal_of;

const ElementSpec kNumber = ElementSpec(TensorSpec{DType::kI64, {}});

Element plus_one(const Element& element) {
  return Tensor::scalar(static_cast<std::int64_t>(element.tensor().item()) + 1);
}

TEST(DatasetThreads, ParallelMapsKeepTheOrder) {
  std::vector<std::int64_t> expected;
  for (std::int64_t i = 0; i < 3000; ++i) expected.push_back(i + 2);
  for (const unsigned threads : {1U, 2U, 5U}) {
    const AnyDataset dataset = datasets::range(3000)
                                   .map(plus_one, kNumber, 0)
                                   .prefetch(7)
                                   .map(plus_one, kNumber, 3)
                                   .batch(13)
                                   .prefetch(1);
    EXPECT_EQ(numbers_of(dataset, {.threads = threads}), expected);
  }
}

TEST(DatasetThreads, NoMoreIsHeldThanThereIsRoomFor) {
  std::atomic<std::int64_t> made{0};
  const AnyDataset counted = datasets::range(10'000).map(
      [&](Element element) {
        ++made;
        return element;
      },
      kNumber);
  for (const std::int64_t room : {1, 2, 3, 50}) {
    made = 0;
    DatasetIterator iterator = counted.prefetch(room).iterator();
    for (std::int64_t taken = 1; taken <= 200; ++taken) {
      ASSERT_TRUE(iterator.next());
      EXPECT_LE(made.load(), taken + room);
    }
  }
}

TEST(DatasetThreads, PrefetchWorksWhileNobodyAsks) {
  std::mutex mutex;
  std::condition_variable changed;
  int made = 0;
  const AnyDataset dataset = datasets::range(100).map(
      [&](Element element) {
        const std::lock_guard<std::mutex> lock(mutex);
        ++made;
        changed.notify_all();
        return element;
      },
      kNumber);
  DatasetIterator iterator = dataset.prefetch(8).iterator();
  ASSERT_TRUE(iterator.next());
  std::unique_lock<std::mutex> lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(50), [&] { return made >= 8; })) << made;
}

TEST(DatasetThreads, ErrorsComeInTheirPlace) {
  const AnyDataset failing = datasets::range(500).map(
      [](Element element) -> Element {
        if (element.tensor().item() >= 100) throw InvalidArgument("a hundred");
        return element;
      },
      kNumber, 0);
  for (const AnyDataset& dataset :
       {failing, failing.prefetch(3), failing.prefetch(20).map(plus_one, kNumber, 2)}) {
    DatasetIterator iterator = dataset.iterator({.threads = 3});
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(iterator.next()) << i;
    const std::string error = refusal_of([&] { iterator.next(); });
    EXPECT_THAT(error, AllOf(HasSubstr("map: element 100: a hundred"), HasSubstr("ahead_test.cpp")));
    EXPECT_EQ(refusal_of([&] { iterator.next(); }), error);
  }
}

TEST(DatasetThreads, CancellingWakesWhoWaits) {
  std::mutex mutex;
  std::condition_variable changed;
  bool waiting = false;
  std::stop_source stop;
  const AnyDataset stuck = datasets::range(1'000'000'000).filter([&](const Element& element) {
    const std::lock_guard<std::mutex> lock(mutex);
    waiting = true;
    changed.notify_all();
    return element.tensor().item() < 0;
  });
  DatasetIterator iterator =
      stuck.prefetch(2).map(plus_one, kNumber, 0).iterator({.threads = 2, .cancel = stop.get_token()});
  const std::string state = iterator.save();
  std::thread canceller([&] {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return waiting; });
    lock.unlock();
    stop.request_stop();
  });
  EXPECT_THAT(refusal_of([&] { iterator.next(); }), HasSubstr("Cancelled"));
  canceller.join();
  EXPECT_EQ(iterator.save(), state);
}

TEST(DatasetThreads, IteratorsEndWhileThreadsWork) {
  for (int round = 0; round < 50; ++round) {
    DatasetIterator iterator = datasets::range(10'000)
                                   .map(plus_one, kNumber, 0)
                                   .interleave(
                                       [](const Element& e) {
                                         return datasets::from_elements({e, e}).repeat(3);
                                       },
                                       kNumber, {.cycle = 3, .ahead = 4})
                                   .prefetch(64)
                                   .iterator({.threads = 3});
    for (int i = 0; i < round; ++i) ASSERT_TRUE(iterator.next());
  }
}

TEST(DatasetThreads, StatsNameThePlacesThatReadAhead) {
  DatasetIterator iterator = datasets::range(100).map(plus_one, kNumber, 2).batch(10).prefetch(3).iterator();
  while (iterator.next()) {
  }
  const std::vector<DatasetStage> stages = iterator.stats();
  ASSERT_EQ(stages.size(), 3U);
  EXPECT_EQ(stages[0].name, "input");
  EXPECT_EQ(stages[0].elements, 10U);
  EXPECT_EQ(stages[0].bytes, 800U);
  EXPECT_THAT(stages[1].name, HasSubstr("prefetch at"));
  EXPECT_EQ(stages[1].elements, 10U);
  EXPECT_EQ(stages[1].room, 3U);
  EXPECT_THAT(stages[2].name, HasSubstr("map at"));
  EXPECT_EQ(stages[2].elements, 100U);
}

TEST(DatasetThreads, TwoIteratorsOfOneDatasetDoNotDisturbEachOther) {
  const AnyDataset dataset =
      datasets::range(2000).shuffle(100, {.seed = 1}).map(plus_one, kNumber, 2).cache().batch(7).prefetch(3);
  const auto expected = numbers_of(dataset);
  std::vector<std::thread> threads;
  std::atomic<int> equal{0};
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { equal += numbers_of(dataset) == expected ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 3);
}

}  // namespace
}  // namespace lockstep
