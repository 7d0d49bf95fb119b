// core/store_at_rest.cpp - holds all variables of a store between two steps.
#include "lockstep/core/store_at_rest.h"

#include <utility>

namespace lockstep {

StoreAtRest::StoreAtRest(VariableStore& store, Access access) {
  const bool exclusive = access == Access::kWrite;
  for (auto& [variable, role] : store.originals()) {
    items_.push_back({variable, std::move(role)});
    locks_.add(*variable, exclusive);
  }
  locks_.add(store.step_lock_, exclusive);
  LockTurn(store, locks_, LockTurn::Kind::kRest).lock();
}

StoreAtRest::~StoreAtRest() { locks_.unlock(); }

}  // namespace lockstep
