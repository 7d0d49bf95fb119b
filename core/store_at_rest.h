// core/store_at_rest.h - holds all variables of a store between two steps.
//
//   {
//     const StoreAtRest rest(store, StoreAtRest::Access::kRead);
//     for (const auto& [variable, role] : rest.variables()) copy(variable->storage());
//     const std::uint64_t step = store.step();                       // the step that these values belong to
//   }
//
// While a StoreAtRest exists no run holds a variable of the store or draws random numbers (kRead: except runs
// that only read), so that the values and the step counter are those of one moment. Runs that begin meanwhile
// wait.
//
// Coming to rest takes a turn in the line for all variables (core/variable_store.h): runs that have begun
// finish and new ones wait, so that a loop of steps on another thread cannot delay it for ever.
//
// Do not make one inside a node of a run that uses the store: it waits for that run. Thread safety: any
// thread; several of one store take turns, unless all of them read. Variables made while it exists are not in
// it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/base/export.h"
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
  std::vector<Item> items_;
  RunLockSet locks_;
};

}  // namespace lockstep
