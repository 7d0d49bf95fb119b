#include "lockstep/core/store_at_rest.h"

#include <utility>

namespace lockstep {

StoreAtRest::StoreAtRest(VariableStore& store, Access access) : store_(store), turn_(store.rest_mutex_) {
  const bool exclusive = access == Access::kWrite;
  locks_.add(store.step_lock_, exclusive);
  for (auto& [variable, role] : store.originals()) {
    items_.push_back({variable, std::move(role)});
    locks_.add(*variable, exclusive);
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
