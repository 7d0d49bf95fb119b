// Tests: core/variable_store.cpp
#include "lockstep/core/variable_store.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const TensorSpec kPair{DType::kF32, {2}};

Tensor pair(float a, float b) { return Tensor::from({2}, {a, b}); }

// A lock taken without the line: try, and wait for an unlock in between.
void lock_exclusive(VariableStore& store, StoredVariable& variable) {
  for (;;) {
    const std::uint32_t seen = store.epoch();
    if (variable.try_lock_exclusive()) return;
    store.wait_for_change(seen, std::nullopt);
  }
}
void lock_shared(VariableStore& store, StoredVariable& variable) {
  for (;;) {
    const std::uint32_t seen = store.epoch();
    if (variable.try_lock_shared()) return;
    store.wait_for_change(seen, std::nullopt);
  }
}

TEST(VariableStore, MakesAVariableOnceFromACopy) {
  VariableStore store;
  const Tensor initial = pair(1, 2);
  int asked = 0;
  const auto make = [&] {
    ++asked;
    return initial;
  };
  StoredVariable& first = store.find_or_create("w", kPair, make);
  StoredVariable& second = store.find_or_create("w", kPair, make);
  EXPECT_EQ(&first, &second);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(first.name(), "w");
  EXPECT_EQ(first.spec(), kPair);
  EXPECT_FALSE(first.storage().shares_memory_with(initial));
  EXPECT_TRUE(store.value("w").bit_equal(initial));
}

TEST(VariableStore, RefusesAnotherSpecForANameThatIsTaken) {
  VariableStore store;
  store.find_or_create("w", kPair, [] { return pair(1, 2); });
  EXPECT_THROW(store.find_or_create("w", {DType::kF64, {2}}, [] { return Tensor(); }), InvalidArgument);
  try {
    store.find_or_create("w", {DType::kF32, {3}}, [] { return Tensor(); });
    FAIL() << "another shape was taken";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.message(), HasSubstr("variable 'w' is f32[2] in this store, and is used as f32[3]"));
  }
}

TEST(VariableStore, RefusesAnInitialValueThatIsNotWhatWasDeclared) {
  VariableStore store;
  EXPECT_THROW(store.find_or_create("w", kPair, [] { return Tensor::zeros({3}); }), InvalidArgument);
  EXPECT_THROW(store.find_or_create("w", kPair, [] { return Tensor(); }), InvalidArgument);
  EXPECT_THROW(store.find_or_create("w", kPair, nullptr), InvalidArgument);
  EXPECT_FALSE(store.contains("w"));
}

TEST(VariableStore, InitialValuesMayUseTheStore) {
  VariableStore store;
  store.find_or_create("a", kPair, [] { return pair(1, 2); });
  store.find_or_create("b", kPair, [&] { return store.value("a"); });
  EXPECT_TRUE(store.value("b").bit_equal(pair(1, 2)));
}

TEST(VariableStore, ListsItsNamesSorted) {
  VariableStore store;
  EXPECT_TRUE(store.names().empty());
  for (const char* name : {"b", "a/w", "c"}) store.find_or_create(name, kPair, [] { return pair(0, 0); });
  EXPECT_THAT(store.names(), ElementsAre("a/w", "b", "c"));
  EXPECT_TRUE(store.contains("b"));
  EXPECT_FALSE(store.contains("d"));
  EXPECT_EQ(store.find("d"), nullptr);
  EXPECT_EQ(store.find("b")->name(), "b");
}

TEST(VariableStore, SetCopiesIntoTheLiveMemory) {
  VariableStore store;
  StoredVariable& variable = store.find_or_create("w", kPair, [] { return pair(1, 2); });
  const void* memory = variable.storage().raw();
  const Tensor before = store.value("w");
  store.set("w", pair(3, 4));
  EXPECT_EQ(variable.storage().raw(), memory);
  EXPECT_TRUE(store.value("w").bit_equal(pair(3, 4)));
  EXPECT_TRUE(before.bit_equal(pair(1, 2))) << "value() must be a copy";
}

TEST(VariableStore, SetRefusesAnotherSpecAndUnknownNames) {
  VariableStore store;
  store.find_or_create("w", kPair, [] { return pair(1, 2); });
  EXPECT_THROW(store.set("w", Tensor::zeros({3})), InvalidArgument);
  EXPECT_THROW(store.set("w", Tensor()), InvalidArgument);
  EXPECT_THROW(store.set("v", pair(1, 2)), NotFound);
  EXPECT_THROW(store.value("v"), NotFound);
  EXPECT_TRUE(store.value("w").bit_equal(pair(1, 2)));
}

TEST(VariableStore, CountsSteps) {
  VariableStore store;
  EXPECT_EQ(store.step(), 0U);
  EXPECT_EQ(store.advance_step(), 0U);
  EXPECT_EQ(store.step(), 1U);
  store.set_step(41);
  EXPECT_EQ(store.advance_step(), 41U);
}

TEST(StoredVariable, ReadersShareAndAWriterIsAlone) {
  VariableStore store;
  StoredVariable& variable = store.find_or_create("w", kPair, [] { return pair(1, 2); });
  EXPECT_TRUE(variable.try_lock_shared());
  EXPECT_TRUE(variable.try_lock_shared());
  EXPECT_FALSE(variable.try_lock_exclusive());
  variable.unlock_shared();
  EXPECT_FALSE(variable.try_lock_exclusive());
  variable.unlock_shared();
  EXPECT_TRUE(variable.try_lock_exclusive());
  EXPECT_FALSE(variable.try_lock_exclusive());
  EXPECT_FALSE(variable.try_lock_shared());
  variable.unlock_exclusive();
  EXPECT_TRUE(variable.try_lock_shared());
  variable.unlock_shared();
}

TEST(StoredVariable, EveryUnlockChangesTheEpoch) {
  VariableStore store;
  StoredVariable& variable = store.find_or_create("w", kPair, [] { return pair(1, 2); });
  const std::uint32_t start = store.epoch();
  ASSERT_TRUE(variable.try_lock_shared());
  EXPECT_EQ(store.epoch(), start);
  variable.unlock_shared();
  const std::uint32_t after = store.epoch();
  EXPECT_NE(after, start);
  ASSERT_TRUE(variable.try_lock_exclusive());
  variable.unlock_exclusive();
  EXPECT_NE(store.epoch(), after);
}

TEST(WaitForChange, ReturnsAtOnceWhereTheEpochDiffers) {
  const VariableStore store;
  store.wait_for_change(store.epoch() + 1, std::nullopt);
}

TEST(WaitForChange, ReturnsAtItsDeadline) {
  const VariableStore store;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
  store.wait_for_change(store.epoch(), deadline);
  EXPECT_GE(std::chrono::steady_clock::now(), deadline);
  store.wait_for_change(store.epoch(), std::chrono::steady_clock::now() - std::chrono::hours(1));
}

// One unlock wakes every waiter; were a wake-up lost, the test would run into its timeout.
TEST(WaitForChange, OneUnlockWakesEveryWaiter) {
  VariableStore store;
  StoredVariable& variable = store.find_or_create("w", kPair, [] { return pair(1, 2); });
  for (int round = 0; round < 50; ++round) {
    ASSERT_TRUE(variable.try_lock_exclusive());
    const std::uint32_t seen = store.epoch();
    std::vector<std::thread> waiters;
    std::atomic<int> woken{0};
    for (int i = 0; i < 4; ++i) {
      waiters.emplace_back([&] {
        store.wait_for_change(seen, std::nullopt);
        EXPECT_NE(store.epoch(), seen);
        woken.fetch_add(1);
      });
    }
    variable.unlock_exclusive();
    for (std::thread& waiter : waiters) waiter.join();
    EXPECT_EQ(woken.load(), 4);
  }
}

TEST(StoredVariable, WritersFromManyThreadsTakeTurns) {
  VariableStore store;
  StoredVariable& variable =
      store.find_or_create("n", {DType::kI64, {}}, [] { return Tensor::scalar(std::int64_t{0}); });
  constexpr int kThreads = 6;
  constexpr int kRounds = 300;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        lock_exclusive(store, variable);
        // Plain memory: the lock must guard it.
        std::int64_t& value = variable.storage().data<std::int64_t>()[0];
        value = value + 1;
        variable.unlock_exclusive();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store.value("n").item(), kThreads * kRounds);
}

TEST(StoredVariable, ReadersNeverSeeHalfAWrite) {
  VariableStore store;
  StoredVariable& variable = store.find_or_create("w", kPair, [] { return pair(0, 0); });
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        lock_shared(store, variable);
        const auto values = variable.storage().data<float>();
        if (values[0] != values[1]) torn.fetch_add(1);
        variable.unlock_shared();
        std::this_thread::yield();
      }
    });
  }
  for (int i = 1; i <= 200; ++i) {
    store.set("w", pair(static_cast<float>(i), static_cast<float>(i)));
    const Tensor value = store.value("w");
    EXPECT_EQ(value.data<float>()[0], static_cast<float>(i));
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(torn.load(), 0);
}

TEST(RunLockSet, TakesAllOrNone) {
  VariableStore store;
  StoredVariable& read = store.find_or_create("read", kPair, [] { return pair(0, 0); });
  StoredVariable& written = store.find_or_create("written", kPair, [] { return pair(0, 0); });
  RunLockSet locks;
  locks.add(read, false);
  EXPECT_FALSE(locks.any_exclusive());
  locks.add(written, true);
  EXPECT_TRUE(locks.any_exclusive());
  EXPECT_THAT(locks.all(), ElementsAre(&read, &written));

  ASSERT_TRUE(written.try_lock_shared());
  EXPECT_FALSE(locks.is_blocked_by(0));
  EXPECT_TRUE(locks.is_blocked_by(1));
  const std::uint32_t seen = store.epoch();
  EXPECT_FALSE(locks.try_lock());
  EXPECT_EQ(store.epoch(), seen);     // nothing was taken and given back
  EXPECT_FALSE(read.is_taken(true));  // not even as a reader
  written.unlock_shared();

  ASSERT_TRUE(locks.try_lock());
  EXPECT_TRUE(read.is_taken(true));
  EXPECT_FALSE(read.is_taken(false));  // other readers may
  EXPECT_TRUE(written.is_taken(false));
  locks.unlock();
  EXPECT_FALSE(read.is_taken(true));
  EXPECT_FALSE(written.is_taken(true));
}

TEST(RunLockSet, ClearedItTakesNothing) {
  VariableStore store;
  StoredVariable& variable = store.find_or_create("w", kPair, [] { return pair(0, 0); });
  RunLockSet locks;
  locks.add(variable, true);
  locks.clear();
  EXPECT_FALSE(locks.any_exclusive());
  EXPECT_TRUE(locks.all().empty());
  EXPECT_TRUE(locks.try_lock());
  EXPECT_FALSE(variable.is_taken(true));
  locks.unlock();
}

// Two sets that name the same locks in opposite orders: whoever gets one of them gets both, so nobody waits
// for ever.
TEST(RunLockSet, OppositeOrdersDoNotBlockEachOther) {
  VariableStore store;
  StoredVariable& a = store.find_or_create("a", kPair, [] { return pair(0, 0); });
  StoredVariable& b = store.find_or_create("b", kPair, [] { return pair(0, 0); });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      RunLockSet locks;
      locks.add(t % 2 == 0 ? a : b, true);
      locks.add(t % 2 == 0 ? b : a, true);
      for (int i = 0; i < 200; ++i) {
        for (;;) {
          const std::uint32_t seen = store.epoch();
          if (locks.try_lock()) break;
          store.wait_for_change(seen, std::nullopt);
        }
        for (StoredVariable* variable : {&a, &b}) variable->storage().data<float>()[0] += 1;
        locks.unlock();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store.value("a").data<float>()[0], 800.0F);
  EXPECT_EQ(store.value("b").data<float>()[0], 800.0F);
}

// --- the line

class LockTurnTest : public ::testing::Test {
 protected:
  LockTurnTest() {
    read_a_.add(a_, false);
    write_a_.add(a_, true);
    read_b_.add(b_, false);
    write_b_.add(b_, true);
    write_both_.add(b_, true);
    write_both_.add(a_, true);
  }
  VariableStore store_;
  StoredVariable& a_ = store_.find_or_create("a", kPair, [] { return pair(0, 0); });
  StoredVariable& b_ = store_.find_or_create("b", kPair, [] { return pair(0, 0); });
  RunLockSet read_a_, write_a_, read_b_, write_b_, write_both_;
};

TEST_F(LockTurnTest, AWaitingWriterGoesBeforeNewReaders) {
  ASSERT_TRUE(read_a_.try_lock());
  LockTurn writer(store_, write_a_);
  ASSERT_FALSE(writer.try_lock());
  EXPECT_FALSE(read_a_.try_lock());
  EXPECT_FALSE(a_.is_taken(false)) << "only the line is in the way";
  EXPECT_TRUE(read_b_.try_lock()) << "nobody waits for it";
  read_b_.unlock();
  read_a_.unlock();
  EXPECT_FALSE(read_a_.try_lock());
  ASSERT_TRUE(writer.try_lock());
  EXPECT_FALSE(a_.is_reserved(true));
  write_a_.unlock();
  EXPECT_TRUE(read_a_.try_lock());
  read_a_.unlock();
}

TEST_F(LockTurnTest, AWaitingReaderGoesBeforeNewWritersAndWithOtherReaders) {
  ASSERT_TRUE(write_a_.try_lock());
  LockTurn reader(store_, read_a_);
  ASSERT_FALSE(reader.try_lock());
  write_a_.unlock();
  EXPECT_FALSE(write_a_.try_lock());
  EXPECT_TRUE(read_a_.try_lock());
  EXPECT_TRUE(reader.try_lock());
  read_a_.unlock();
  read_a_.unlock();
}

TEST_F(LockTurnTest, TheFirstToComeIsTheFirstToGo) {
  ASSERT_TRUE(read_a_.try_lock());
  LockTurn first(store_, write_a_), second(store_, read_a_), third(store_, write_a_);
  for (LockTurn* turn : {&first, &second, &third}) ASSERT_FALSE(turn->try_lock());
  read_a_.unlock();
  EXPECT_FALSE(third.try_lock());
  EXPECT_FALSE(second.try_lock());
  ASSERT_TRUE(first.try_lock());
  write_a_.unlock();
  EXPECT_FALSE(third.try_lock());
  ASSERT_TRUE(second.try_lock());
  read_a_.unlock();
  ASSERT_TRUE(third.try_lock());
  write_a_.unlock();
}

// The second in line must not keep anything from the first: they would wait for each other.
TEST_F(LockTurnTest, OnlyTheFirstInLineHoldsOthersBack) {
  ASSERT_TRUE(read_b_.try_lock());
  LockTurn both(store_, write_both_);
  ASSERT_FALSE(both.try_lock());
  LockTurn second(store_, write_a_);
  EXPECT_FALSE(second.try_lock()) << "the first in line waits for a too";
  read_b_.unlock();
  EXPECT_TRUE(both.try_lock());
  write_both_.unlock();
  EXPECT_TRUE(second.try_lock());
  write_a_.unlock();
}

TEST_F(LockTurnTest, ATurnThatIsGivenUpLetsOthersGo) {
  ASSERT_TRUE(read_a_.try_lock());
  {
    LockTurn writer(store_, write_a_);
    ASSERT_FALSE(writer.try_lock());
    EXPECT_FALSE(read_a_.try_lock());
    const std::uint32_t seen = store_.epoch();
    { const LockTurn ends(store_, write_b_); }
    EXPECT_EQ(store_.epoch(), seen) << "nobody was held back by a turn that did not wait";
  }
  EXPECT_TRUE(read_a_.try_lock());
  read_a_.unlock();
  read_a_.unlock();
}

// Were it not woken, it would go on only after the while that the line holds back anybody.
TEST_F(LockTurnTest, ATurnThatIsGivenUpWakesThoseItHeldBack) {
  ASSERT_TRUE(read_a_.try_lock());
  std::optional<LockTurn> writer(std::in_place, store_, write_a_);
  ASSERT_FALSE(writer->try_lock());
  LockTurn reader(store_, read_a_);
  ASSERT_FALSE(reader.try_lock());
  writer.reset();
  reader.wait(std::chrono::steady_clock::now() + std::chrono::hours(1));
  EXPECT_TRUE(reader.try_lock());
  read_a_.unlock();
  read_a_.unlock();
}

TEST_F(LockTurnTest, WhoeverIsWaitedForGoesAhead) {
  ASSERT_TRUE(read_a_.try_lock());
  LockTurn writer(store_, write_a_);
  ASSERT_FALSE(writer.try_lock());
  LockTurn inner(store_, read_a_, LockTurn::Kind::kAhead);
  EXPECT_TRUE(inner.try_lock());
  read_a_.unlock();
  read_a_.unlock();
  ASSERT_TRUE(writer.try_lock());
  // What it has to wait for all the same is kept for it, beside what the line keeps.
  LockTurn again(store_, read_a_, LockTurn::Kind::kAhead);
  EXPECT_FALSE(again.try_lock());
  write_a_.unlock();
  EXPECT_FALSE(write_a_.try_lock());
  EXPECT_TRUE(again.try_lock());
  read_a_.unlock();
}

TEST_F(LockTurnTest, TheLineLetsPastThoseWhoCouldGoAfterAWhile) {
  ASSERT_TRUE(read_a_.try_lock());
  LockTurn writer(store_, write_a_);
  ASSERT_FALSE(writer.try_lock());
  const auto start = std::chrono::steady_clock::now();
  LockTurn(store_, read_a_).lock();
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(90));
  EXPECT_FALSE(read_a_.try_lock()) << "those who come later wait again";
  EXPECT_FALSE(writer.try_lock());
  read_a_.unlock();
  read_a_.unlock();
  EXPECT_TRUE(writer.try_lock());
  write_a_.unlock();
}

// A thread may lose its processor between the try and the wait. Nothing else happens then, so that one that slept would sleep
// for ever.
TEST_F(LockTurnTest, TheLineLetsPastThoseWhoseTimeComesBeforeTheyWait) {
  ASSERT_TRUE(read_a_.try_lock());
  LockTurn writer(store_, write_a_);
  ASSERT_FALSE(writer.try_lock());
  LockTurn reader(store_, read_a_);
  ASSERT_FALSE(reader.try_lock());
  std::this_thread::sleep_for(std::chrono::milliseconds(110));
  reader.wait();
  EXPECT_TRUE(reader.try_lock());
  read_a_.unlock();
  read_a_.unlock();
}

TEST_F(LockTurnTest, AllWaitForTheFirstInLineOnceItWasOvertakenAndHasWaitedForLong) {
  ASSERT_TRUE(read_a_.try_lock());
  LockTurn writer(store_, write_a_);
  const auto wait_for_long = [&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(25);
    while (std::chrono::steady_clock::now() < end) {
      ASSERT_FALSE(writer.try_lock());
      writer.wait(end);
    }
    ASSERT_FALSE(writer.try_lock());
  };
  wait_for_long();
  EXPECT_TRUE(read_b_.try_lock()) << "nobody has overtaken it";
  read_b_.unlock();
  ASSERT_TRUE(read_a_.try_lock(true));
  read_a_.unlock();
  wait_for_long();
  EXPECT_FALSE(read_b_.try_lock());
  EXPECT_TRUE(read_b_.try_lock(true)) << "it may be waiting for this one";
  read_b_.unlock();
  LockTurn reader(store_, read_b_);
  ASSERT_FALSE(reader.try_lock());
  read_a_.unlock();
  ASSERT_TRUE(writer.try_lock());
  reader.wait(std::chrono::steady_clock::now() + std::chrono::hours(1));  // it was woken
  EXPECT_TRUE(reader.try_lock());
  read_b_.unlock();
  write_a_.unlock();
}

TEST_F(LockTurnTest, SaysWhetherItWaitsForTheStoreToComeToRest) {
  ASSERT_TRUE(read_b_.try_lock());
  LockTurn rest(store_, write_both_, LockTurn::Kind::kRest);
  ASSERT_FALSE(rest.try_lock());
  EXPECT_FALSE(rest.waits_for_rest());
  LockTurn reader(store_, read_a_);
  ASSERT_FALSE(reader.try_lock());
  EXPECT_TRUE(reader.waits_for_rest());
  read_b_.unlock();
  ASSERT_TRUE(rest.try_lock());
  EXPECT_FALSE(reader.waits_for_rest());
  write_both_.unlock();
}

TEST(VariableStore, ThreadsThatMakeOneVariableGetTheSame) {
  VariableStore store;
  std::vector<StoredVariable*> made(6);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < made.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        made[t] = &store.find_or_create("v" + std::to_string(i), kPair,
                                        [t] { return pair(static_cast<float>(t), 0); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const StoredVariable* variable : made) EXPECT_EQ(variable, store.find("v19"));
  EXPECT_EQ(store.names().size(), 20U);
}

// --- taking back

TEST(VariableStore, EraseFreesTheName) {
  VariableStore store;
  StoredVariable& first = store.find_or_create("w", kPair, [] { return pair(1, 2); });
  store.find_or_create("w/replica_1", kPair, [] { return pair(1, 2); }, {.copy_of = "w"});
  store.alias("other", "w");
  store.find_or_create("b", kPair, [] { return pair(0, 0); });
  store.bind("w/replica_1");
  try {
    store.erase("w");
    FAIL() << "a program is bound to a copy";
  } catch (const FailedPrecondition& error) {
    EXPECT_THAT(error.what(), HasSubstr("variable 'w' cannot be erased: 1 program is bound to it"));
  }
  store.unbind(*store.find("w/replica_1"));
  store.erase("w");
  EXPECT_THAT(store.names(), ElementsAre("b"));
  EXPECT_FALSE(first.storage().defined()) << "its memory is given back";
  EXPECT_EQ(first.spec(), kPair);
  EXPECT_THROW(store.erase("w"), NotFound);
  store.find_or_create("w", {DType::kI64, {}}, [] { return Tensor::scalar(std::int64_t{7}); });
  EXPECT_EQ(store.value("w").item(), 7);
  EXPECT_EQ(store.role("w"), VariableRole());
}

TEST(VariableStore, ResetGivesBackTheStart) {
  VariableStore store;
  store.find_or_create("w", kPair, [] { return pair(1, 2); });
  store.find_or_create("w/replica_1", kPair, [&] { return store.value("w"); }, {.copy_of = "w"});
  store.find_or_create("zeros", kPair, [] { return pair(0, 0); });
  for (const char* name : {"w", "w/replica_1", "zeros"}) store.set(name, pair(8, 9));
  store.reset("w");
  store.reset("zeros");
  EXPECT_TRUE(store.value("w").bit_equal(pair(1, 2)));
  EXPECT_TRUE(store.value("w/replica_1").bit_equal(pair(1, 2)));
  EXPECT_TRUE(store.value("zeros").bit_equal(pair(0, 0)));
}

TEST(VariableStore, ReplaceTakesAnotherShape) {
  VariableStore store;
  store.find_or_create("w", kPair, [] { return pair(1, 2); }, {.copies = CopyRule::kMean});
  store.find_or_create("w/replica_1", kPair, [] { return pair(1, 2); }, {.copy_of = "w"});
  try {
    store.set("w", Tensor::scalar(1.F));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("replace()"));
  }
  store.replace("w", Tensor::from({3}, {1.F, 2.F, 3.F}));
  EXPECT_EQ(store.value("w").num_elements(), 3);
  EXPECT_EQ(store.role("w").copies, CopyRule::kMean);
  EXPECT_FALSE(store.contains("w/replica_1"));
  store.set("w", Tensor::from({3}, {0.F, 0.F, 0.F}));
  store.reset("w");
  EXPECT_EQ(store.value("w").data<float>()[2], 3);
}

TEST(VariableStore, ValueKeepsADeadline) {
  VariableStore store;
  StoredVariable& variable = store.find_or_create("w", kPair, [] { return pair(1, 2); });
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::milliseconds(10); };
  EXPECT_TRUE(store.value("w", soon()).bit_equal(pair(1, 2)));
  ASSERT_TRUE(variable.try_lock_exclusive());
  try {
    store.value("w", soon());
    FAIL() << "a run holds it";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(error.what(), HasSubstr("committed()"));
  }
  variable.unlock_exclusive();
  EXPECT_TRUE(store.value("w", soon()).bit_equal(pair(1, 2)));
}

TEST(VariableStore, AnotherStartIsRefusedWhereThatIsAsked) {
  VariableStore store;
  const auto declare = [&](const Tensor& start, SameStart same) {
    store.find_or_create(
        "w", kPair, [&] { return start; }, {}, "b.cpp:2", same);
  };
  store.find_or_create(
      "w", kPair, [] { return pair(1, 2); }, {}, "a.cpp:1");
  declare(pair(3, 4), SameStart::kAny);
  EXPECT_TRUE(store.value("w").bit_equal(pair(1, 2)));
  store.set("w", pair(5, 6));
  declare(pair(1, 2), SameStart::kRequired);  // the start counts, not the value
  try {
    declare(pair(3, 4), SameStart::kRequired);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("another initial value (a.cpp:1) than it is declared with (b.cpp:2)"));
  }
}

TEST(VariableStore, ACopyHasTheRuleOfItsOriginal) {
  VariableStore store;
  store.find_or_create("w", kPair, [] { return pair(1, 2); });
  const auto copy = [&](CopyRule rule) {
    store.find_or_create("w/replica_1", kPair, [] { return pair(1, 2); }, {.copy_of = "w", .copies = rule});
  };
  copy(CopyRule::kMean);
  EXPECT_EQ(store.role("w").copies, CopyRule::kMean);
  copy(CopyRule::kEqual);  // says nothing
  EXPECT_EQ(store.role("w").copies, CopyRule::kMean);
  EXPECT_EQ(store.role("w/replica_1").copies, CopyRule::kMean);
  EXPECT_EQ(store.role("w/replica_1").copy_of, "w");
}

}  // namespace
}  // namespace lockstep
