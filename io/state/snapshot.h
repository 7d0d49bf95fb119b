// io/state/snapshot.h - all variables of a store at one moment, one value each.
//
//   Snapshot snapshot;
//   snapshot.take(strategy.variables());                  // between two steps: the memory of the last one is used again
//   snapshot.restore(other.variables());                  // any strategy, any number of replicas
//
// What is kept are variables as the program knows them, not their copies, and the step counter, from which
// random ops draw. So a snapshot of eight replicas fits one, and the other way round:
//
//   variable                              kept                       given back
//   mirrored, or of one replica           the value                  to every copy
//   synchronized on read: sum             the sum of the copies      value / copies to each; of integers the first copies
//                                                                    get the remainder: exact; floats are rounded
//   synchronized on read: mean            the mean of the copies     to every copy; refused for integers with more than
//                                                                    one copy, as reading them is
//   synchronized on read: first replica   the first copy             to every copy
//   synchronized on read, no aggregation  refused with more than one copy: there is no one value
//
// Optimizer slots and counts of steps are variables like others.
//
// take() and restore() wait until runs that have begun are over and hold new ones back meanwhile
// (core/store_at_rest.h), so that all values belong to one step. Do not call them from a node of a run.
// Thread safety: one thread at a time per snapshot; the store may be in use.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/core/tensor.h"
#include "lockstep/core/variable_store.h"

namespace lockstep {

struct RestoreOptions {
  // Variables of the program that are not there keep their values.
  bool allow_missing = false;
  // What is there beyond the program's variables is left aside.
  bool allow_extra = false;
};

struct RestoreReport {
  std::uint64_t step = 0;            // the step counter that was restored
  std::vector<std::string> missing;  // variables of the program that were not there, where that is allowed
  std::vector<std::string> extra;    // what was there and is no variable of the program, likewise
};

class LOCKSTEP_API Snapshot {
 public:
  struct Item {
    std::string name;
    Tensor value;
  };

  Snapshot() = default;
  // Throws InvalidArgument where a name comes twice or a value is empty.
  Snapshot(std::uint64_t step, std::vector<Item> items);

  // Throws FailedPrecondition naming every variable whose copies are no one value; the snapshot is then as it
  // was.
  void take(VariableStore& store);

  // Throws FailedPrecondition naming all variables that are missing, extra, or of another dtype or shape, and
  // changes nothing then.
  RestoreReport restore(VariableStore& store, const RestoreOptions& options = {}) const;

  std::uint64_t step() const { return step_; }
  std::span<const Item> variables() const;          // by name
  const Tensor* find(std::string_view name) const;  // null where there is none

 private:
  std::uint64_t step_ = 0;
  std::vector<Item> items_;
};

}  // namespace lockstep
