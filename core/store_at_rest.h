// core/store_at_rest.h - all variables of a store between two steps.
//
//   {
//     const StoreAtRest rest(store, StoreAtRest::Access::kRead);
//     for (const auto& [variable, role] : rest.variables()) copy(variable->storage());
//     const std::uint64_t step = store.step();                       // the step that these values belong to
//   }
//
// While it lives no run holds a variable of the store or draws random numbers (kRead: unless it only reads),
// so that the values and the step counter are those of one moment. Runs that begin meanwhile wait.
//
// Coming to rest: runs that have begun finish; new ones wait, so that a loop of steps on another thread
// cannot put it off for ever. Runs inside a node of a run go on, since that one waits for them; where a node
// waits for a run on another thread, which nobody can see, new runs are let in now and then.
//
// Do not make one inside a node of a run that uses the store: it waits for that run. Thread safety: any
// thread; those of one store take turns. Variables made while it lives are not in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/core/steady_time.h"
#include "lockstep/core/variable_store.h"

namespace lockstep {

class LOCKSTEP_API StoreAtRest {
 public:
  enum class Access : std::uint8_t { kRead, kWrite };
  struct Item {
    StoredVariable* variable = nullptr;
    VariableRole role;
  };

  StoreAtRest(VariableStore& store, Access access);
  ~StoreAtRest();
  StoreAtRest(const StoreAtRest&) = delete;
  StoreAtRest& operator=(const StoreAtRest&) = delete;

  // Originals and copies by name; aliases are not listed.
  std::span<const Item> variables() const { return items_; }

 private:
  using Clock = std::chrono::steady_clock;
  bool lock_until(Clock::time_point deadline);

  VariableStore& store_;
  std::unique_lock<std::mutex> turn_;
  std::vector<Item> items_;
  RunLockSet locks_;
};

}  // namespace lockstep
