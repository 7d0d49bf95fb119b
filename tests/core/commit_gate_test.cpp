// Tests: core/commit_gate.cpp
#include "lockstep/core/commit_gate.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/variable_store.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSize = 4096;

// All elements change together: a reader that sees two values has seen half of a commit.
TEST(CommitGate, ReadersSeeWholeCommits) {
  VariableStore store;
  StoredVariable& variable =
      store.find_or_create("w", {DType::kI64, {kSize}}, [] { return Tensor::zeros(DType::kI64, {kSize}); });
  std::atomic<bool> done{false};
  std::atomic<int> reads{0};
  std::thread writer([&] {
    StoredVariable* const written[] = {&variable};
    for (std::int64_t round = 1; !done.load(); ++round) {
      const CommitScope scope(store.commits(), written);
      for (std::int64_t& element : variable.storage().data<std::int64_t>()) element = round;
    }
  });
  std::vector<std::thread> readers;
  for (int r = 0; r < 2; ++r) {
    readers.emplace_back([&] {
      std::int64_t last = 0;
      for (int i = 0; i < 300; ++i) {
        const Tensor seen = store.committed("w");
        const std::int64_t first = seen.data<std::int64_t>()[0];
        EXPECT_GE(first, last);
        last = first;
        for (const std::int64_t element : seen.data<std::int64_t>()) ASSERT_EQ(element, first);
        reads.fetch_add(1);
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  done.store(true);
  writer.join();
  EXPECT_EQ(reads.load(), 600);
}

TEST(CommitGate, WaitsForNoRun) {
  VariableStore store;
  StoredVariable& variable = store.find_or_create("w", {DType::kF32, {}}, [] { return Tensor::scalar(3.F); });
  ASSERT_TRUE(variable.try_lock_exclusive());  // a run that has not come to its commit stage
  EXPECT_EQ(store.committed("w").item(), 3);
  StoredVariable* const written[] = {&variable};
  std::thread reader;
  std::atomic<bool> read{false};
  {
    const CommitScope scope(store.commits(), written);
    variable.storage().data<float>()[0] = 4;
    reader = std::thread([&] {
      EXPECT_EQ(store.committed("w").item(), 4);
      read.store(true);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(read.load()) << "it read in the middle of a commit";
  }
  reader.join();
  variable.unlock_exclusive();
}

}  // namespace
}  // namespace lockstep
