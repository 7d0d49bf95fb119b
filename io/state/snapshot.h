// io/state/snapshot.h - all variables of a store at one moment.
//
//   Snapshot snapshot;
//   snapshot.take(strategy.variables());                  // between two steps: the memory of the last one is used again
//   snapshot.restore(other.variables());                  // any strategy, any number of replicas
//
// A snapshot keeps the variables as the program knows them, and the step counter, from which random ops draw.
// If the copies of a variable are one value, that value is kept, so that a snapshot of eight replicas fits
// one, and the other way round; if they are not, each copy is kept for its replica:
//
//   variable                              kept                       given back
//   mirrored, or of one replica           the value                  to every copy
//   synchronized on read: sum             the sum of the copies      value / copies to each; of integers the first copies
//                                                                    get the remainder: exact; floats are rounded
//   synchronized on read: mean            the mean of the copies     to every copy
//   synchronized on read: first replica   the first copy             to every copy
//   synchronized on read: slices          the slices, joined         to each copy its slice, on any number of replicas
//   that may drift; synchronized on read  each copy                  to the same replica; on another number of replicas
//   without an aggregation; means of                                 it is refused by name
//   integers, sums of truth values
//
// The role of a variable in its store says what its copies are together. Optimizer slots and counts of steps
// are variables like others.
//
// A snapshot can also hold named states that are not variables, such as how far an input was read: bytes that
// their owner puts in and takes out. Checkpoints keep them.
//
// take() and restore() wait until runs that have begun are over and hold new ones back meanwhile
// (core/store_at_rest.h), so that all values belong to one step. Do not call them from a node of a run.
// Thread safety: one thread at a time per snapshot; the store may be in use.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/tensor.h"
#include "lockstep/core/variable_store.h"

namespace lockstep {

struct RestoreOptions {
  // Variables of the program that were not saved keep their values.
  bool allow_missing = false;
  // Saved variables that the program does not have are ignored.
  bool allow_extra = false;
  // One value may go to every copy of a variable whose copies are each replica's own: from one replica to
  // several, and from checkpoints of version 1, which kept only the first copy of a variable that may drift.
  bool spread_values = false;
  // Called with the named states, and their bytes, when all variables fit and none has changed yet. If it throws, none changes.
  std::function<void(const std::vector<std::pair<std::string, Tensor>>& states)> check_states = {};
};

struct RestoreReport {
  std::uint64_t step = 0;            // the step counter that was restored
  std::vector<std::string> missing;  // variables of the program that were not saved, if that is allowed
  std::vector<std::string> extra;    // saved variables that the program does not have, likewise
  // The named states that were saved, with their bytes (u8[n]), for their owners to take.
  std::vector<std::pair<std::string, Tensor>> states;
};

class LOCKSTEP_API Snapshot {
 public:
  struct Item {
    std::string name;
    Tensor value;                     // empty if there are copies
    std::vector<Tensor> copies = {};  // by replica, of one spec; none if they are one value
  };
  struct State {
    std::string name;
    Tensor bytes;  // u8[n]
  };

  Snapshot() = default;
  // Throws InvalidArgument if a name comes twice, a value is empty, copies differ in their spec, or a state
  // is not a list of bytes.
  Snapshot(std::uint64_t step, std::vector<Item> items, std::vector<State> states = {});

  // Takes the variables; named states stay as they are. Throws FailedPrecondition naming every variable that
  // lacks some of its slices; on any error the snapshot stays as it was.
  void take(VariableStore& store);

  // Throws FailedPrecondition naming all variables that are missing, extra, of another dtype or shape, or of
  // another number of copies, and changes nothing then.
  RestoreReport restore(VariableStore& store, const RestoreOptions& options = {},
                        SourceSite site = SourceSite::current()) const;

  std::uint64_t step() const { return step_; }
  std::span<const Item> variables() const;  // by name
  // The value of a variable; null if there is none, or if its copies are each replica's own.
  const Tensor* find(std::string_view name) const;

  // Adds a named state, or replaces the one of that name. Throws InvalidArgument if `bytes` is not u8[n].
  void set_state(std::string_view name, Tensor bytes);
  // The named states of another snapshot, which loses them, instead of its own. Cannot fail.
  void take_states_of(Snapshot& other) noexcept { states_ = std::move(other.states_); }
  std::span<const State> states() const;                  // by name
  const Tensor* find_state(std::string_view name) const;  // null if there is none

 private:
  const Item* find_item(std::string_view name) const;

  std::uint64_t step_ = 0;
  std::vector<Item> items_;
  std::vector<State> states_;
};

}  // namespace lockstep
