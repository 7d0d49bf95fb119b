#include "lockstep/core/store_at_rest.h"

namespace lockstep {

StoreAtRest::StoreAtRest(VariableStore& store, Access access) : store_(store), turn_(store.rest_mutex_) {
  const bool exclusive = access == Access::kWrite;
  {
    const std::lock_guard<std::mutex> lock(store.mutex_);
    locks_.add(store.step_lock_, exclusive);
    for (const auto& [name, variable] : store.variables_) {
      const auto role = store.roles_.find(variable.get());
      items_.push_back({variable.get(), role == store.roles_.end() ? VariableRole() : role->second});
      locks_.add(*variable, exclusive);
    }
  }
  for (std::chrono::milliseconds patience(20);; patience *= 2) {
    store.gate_ = exclusive ? VariableStore::Gate::kNobodyMay : VariableStore::Gate::kReadersMay;
    bool locked = lock_until(Clock::now() + patience);
    store.gate_ = VariableStore::Gate::kAllMay;
    store.announce_unlock();  // for those who were not admitted
    locked = locked || lock_until(Clock::now() + std::chrono::milliseconds(1));
    if (locked) return;
  }
}

StoreAtRest::~StoreAtRest() { locks_.unlock(); }

bool StoreAtRest::lock_until(Clock::time_point deadline) {
  for (;;) {
    const std::uint32_t seen = store_.epoch();
    if (locks_.try_lock()) return true;
    if (Clock::now() >= deadline) return false;
    store_.wait_for_change(seen, deadline);
  }
}

}  // namespace lockstep
