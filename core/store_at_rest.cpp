#include "lockstep/core/store_at_rest.h"

#include <algorithm>

namespace lockstep {

StoreAtRest::StoreAtRest(VariableStore& store, Access access)
    : store_(store), exclusive_(access == Access::kWrite), turn_(store.rest_mutex_) {
  {
    const std::lock_guard<std::mutex> lock(store.mutex_);
    locks_.push_back(&store.step_lock_);
    for (const auto& [name, variable] : store.variables_) {
      const auto role = store.roles_.find(variable.get());
      items_.push_back({variable.get(), role == store.roles_.end() ? VariableRole() : role->second});
      locks_.push_back(variable.get());
    }
  }
  for (std::chrono::milliseconds patience(20);; patience *= 2) {
    store.gate_ = exclusive_ ? VariableStore::Gate::kNobodyMay : VariableStore::Gate::kReadersMay;
    bool locked = lock_until(Clock::now() + patience);
    store.gate_ = VariableStore::Gate::kAllMay;
    store.announce_unlock();  // for those who were not admitted
    locked = locked || lock_until(Clock::now() + std::chrono::milliseconds(1));
    if (locked) return;
  }
}

StoreAtRest::~StoreAtRest() { unlock(locks_.size()); }

bool StoreAtRest::lock_until(Clock::time_point deadline) {
  for (;;) {
    const std::uint32_t seen = store_.epoch();
    if (try_lock()) return true;
    if (Clock::now() >= deadline) return false;
    store_.wait_for_change(seen, deadline);
  }
}

// Looks first: a lock that is taken and given back for nothing wakes everyone who waits.
bool StoreAtRest::try_lock() {
  if (std::ranges::any_of(locks_, [&](const RunLock* lock) { return lock->is_taken(exclusive_); }))
    return false;
  for (std::size_t i = 0; i < locks_.size(); ++i) {
    if (exclusive_ ? locks_[i]->try_lock_exclusive() : locks_[i]->try_lock_shared()) continue;
    unlock(i);
    return false;
  }
  return true;
}

void StoreAtRest::unlock(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (exclusive_) {
      locks_[i]->unlock_exclusive();
    } else {
      locks_[i]->unlock_shared();
    }
  }
}

}  // namespace lockstep
