// Tests: core/store_at_rest.cpp
#include "lockstep/core/store_at_rest.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Access = StoreAtRest::Access;

StoredVariable& make(VariableStore& store, const std::string& name, const VariableRole& role = {}) {
  return store.find_or_create(
      name, {DType::kI64, {}}, [] { return Tensor::scalar(std::int64_t{0}); }, role);
}

TEST(StoreAtRest, ListsVariablesWithTheirRolesAndNoAliases) {
  VariableStore store;
  make(store, "w");
  store.alias("w/replica_1", "w");
  make(store, "seen");
  make(store, "seen", {"", CopyRule::kSum});  // said later
  make(store, "seen/replica_1", {"seen", CopyRule::kSum});
  make(store, "seen");  // says nothing
  EXPECT_EQ(store.role("seen"), (VariableRole{"", CopyRule::kSum}));
  EXPECT_EQ(store.role("w/replica_1"), VariableRole());
  EXPECT_THROW(store.role("absent"), NotFound);

  const StoreAtRest rest(store, Access::kRead);
  std::vector<std::string> seen;
  for (const StoreAtRest::Item& item : rest.variables()) {
    seen.push_back(item.variable->name() + " of '" + item.role.copy_of + "'");
  }
  EXPECT_THAT(seen, testing::ElementsAre("seen of ''", "seen/replica_1 of 'seen'", "w of ''"));
}

TEST(StoreAtRest, LocksOutWritersOrEveryone) {
  VariableStore store;
  StoredVariable& w = make(store, "w");
  for (const Access access : {Access::kRead, Access::kWrite}) {
    {
      const StoreAtRest rest(store, access);
      EXPECT_FALSE(w.try_lock_exclusive());
      EXPECT_FALSE(store.step_lock().try_lock_exclusive());
      const bool read = w.try_lock_shared();
      EXPECT_EQ(read, access == Access::kRead);
      if (read) w.unlock_shared();
    }
    ASSERT_TRUE(w.try_lock_exclusive());
    w.unlock_exclusive();
    EXPECT_FALSE(w.is_reserved(true));
  }
}

// Two variables that every writer changes together, and writers that leave no gap a waiter could find by luck
// alone.
TEST(StoreAtRest, SeesOneMomentThroughALoopOfWriters) {
  VariableStore store;
  StoredVariable& a = make(store, "a");
  StoredVariable& b = make(store, "b");
  std::atomic<bool> stop{false};
  const auto write = [&] {
    RunLockSet locks;
    locks.add(a, true);
    locks.add(b, true);
    while (!stop) {
      LockTurn(store, locks).lock();
      ++a.storage().data<std::int64_t>()[0];
      ++b.storage().data<std::int64_t>()[0];
      store.advance_step();
      locks.unlock();
    }
  };
  std::thread first(write), second(write);
  for (int i = 0; i < 100; ++i) {
    const StoreAtRest rest(store, i % 2 == 0 ? Access::kRead : Access::kWrite);
    const auto value = a.storage().data<std::int64_t>()[0];
    EXPECT_EQ(value, b.storage().data<std::int64_t>()[0]);
    EXPECT_EQ(static_cast<std::uint64_t>(value), store.step());
  }
  stop = true;
  first.join();
  second.join();
}

TEST(StoreAtRest, LetsRunsInThatARunningOneMayWaitFor) {
  VariableStore store;
  StoredVariable& outer = make(store, "outer");
  StoredVariable& inner = make(store, "inner");
  ASSERT_TRUE(outer.try_lock_exclusive());
  std::thread saver([&] { const StoreAtRest rest(store, Access::kRead); });
  // The run that holds `outer` ends once another one has run, on a thread that nobody can know of.
  while (!inner.is_reserved(true)) std::this_thread::yield();
  RunLockSet locks;
  locks.add(inner, true);
  LockTurn(store, locks).lock();
  locks.unlock();
  outer.unlock_exclusive();
  saver.join();
}

}  // namespace
}  // namespace lockstep
