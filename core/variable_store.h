// core/variable_store.h - named state that outlives a step.
//
// A VariableStore maps names to StoredVariables: a value on a device and a lock. Programs bind to the
// variables of their store by name when they are compiled, creating those that are missing from the graph's
// initial values. Runs lock what they touch: any number of readers, or one writer (RunLock).
//
// Thread safety: a store may be used from any thread. value() returns a copy taken under the variable's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/core/steady_time.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

class VariableStore;

// Held by a run on what it touches; never blocks by itself. Exclusive excludes everyone else; shared excludes
// writers.
class LOCKSTEP_API RunLock {
 public:
  explicit RunLock(VariableStore& store) : store_(store) {}
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Would a try fail at this moment?
  bool is_taken(bool exclusive) const {
    const std::int32_t users = users_.load(std::memory_order_relaxed);
    return exclusive ? users != 0 : users < 0;
  }
  bool try_lock_shared();
  bool try_lock_exclusive();
  void unlock_shared();
  void unlock_exclusive();

 private:
  VariableStore& store_;                // hears of every unlock
  std::atomic<std::int32_t> users_{0};  // -1: a writer; n: n readers
};

// Locks that are taken together: all of them or none. It names them, and does not know who holds them: it
// unlocks nothing when it goes. Thread safety: once all are added, any thread may take them by it, and
// unlocks what it took.
class LOCKSTEP_API RunLockSet {
 public:
  RunLockSet();
  ~RunLockSet();
  RunLockSet(const RunLockSet&) = delete;
  RunLockSet& operator=(const RunLockSet&) = delete;

  void add(RunLock& lock, bool exclusive);  // a lock that is not in it yet
  void clear();
  std::span<RunLock* const> all() const;
  bool any_exclusive() const { return any_exclusive_; }
  // Would a try fail at this moment because of all()[i]?
  bool is_blocked_by(std::size_t i) const { return locks_[i]->is_taken(exclusive_[i]); }
  // Looks first: a lock that is taken and given back for nothing wakes everyone who waits, the caller
  // included.
  bool try_lock() const;
  void unlock() const;  // after a try_lock that succeeded

 private:
  void unlock_first(std::size_t count) const;

  std::vector<RunLock*> locks_;
  std::vector<bool> exclusive_;  // by lock
  bool any_exclusive_ = false;
};

// What the copies of a variable are together, for whoever reads or sets them as one value.
enum class CopyRule : std::uint8_t {
  kEqual,  // every copy holds the value
  kSum,    // the value is their sum
  kMean,
  kFirst,  // the value is that of the first
  kApart,  // each replica's own; together they are no one value
};

// What a variable is beside others of its store: a copy of one, or one by itself.
struct VariableRole {
  std::string copy_of = {};  // empty: by itself
  CopyRule copies = CopyRule::kEqual;
  friend bool operator==(const VariableRole&, const VariableRole&) = default;
};

class LOCKSTEP_API StoredVariable : public RunLock {
 public:
  StoredVariable(VariableStore& store, std::string name, Tensor value);
  const std::string& name() const { return name_; }
  const TensorSpec& spec() const { return value_.spec(); }
  // The live memory: only while holding the lock. It stays at one address.
  Tensor& storage() { return value_; }

 private:
  std::string name_;
  Tensor value_;
};

class LOCKSTEP_API VariableStore {
 public:
  VariableStore();
  ~VariableStore();
  VariableStore(const VariableStore&) = delete;
  VariableStore& operator=(const VariableStore&) = delete;

  // The variable of that name, made with a copy of `initial` where there is none. Throws InvalidArgument
  // where one exists with another dtype or shape. References stay valid while the store lives. A role that
  // says something replaces the one that the variable had.
  StoredVariable& find_or_create(std::string_view name, const TensorSpec& spec,
                                 const std::function<Tensor()>& initial, const VariableRole& role = {});
  // A second name for a variable that is there: find, value and set take either. Throws NotFound where the
  // target is missing, InvalidArgument where the name belongs to a variable of its own.
  StoredVariable& alias(std::string_view name, std::string_view target);
  bool is_alias(std::string_view name) const;
  StoredVariable* find(std::string_view name);
  bool contains(std::string_view name) const;
  std::vector<std::string> names() const;          // sorted, aliases included
  VariableRole role(std::string_view name) const;  // of the variable, also by another name; throws NotFound
  // A copy of the value / a new value (same spec). Throws NotFound. They wait for runs that hold the
  // variable: do not call them for a variable from a node of a run that uses it.
  Tensor value(std::string_view name);
  void set(std::string_view name, const Tensor& value);

  // The step counter: how many steps that draw random numbers or write variables have committed. Random ops
  // draw from it; checkpoints keep it.
  std::uint64_t step() const { return step_.load(std::memory_order_acquire); }
  void set_step(std::uint64_t step) { step_.store(step, std::memory_order_release); }
  std::uint64_t advance_step() { return step_.fetch_add(1, std::memory_order_acq_rel); }

  // Held exclusively by a run that draws random numbers, so that no two runs draw from one step.
  RunLock& step_lock() { return step_lock_; }

  // May a run begin? Not while somebody waits for the whole store to come to rest (core/store_at_rest.h);
  // runs inside others go on, since those wait for them.
  bool admits_run(bool writes) const {
    const Gate gate = gate_.load(std::memory_order_relaxed);
    return gate == Gate::kAllMay || (gate == Gate::kReadersMay && !writes);
  }

  // Changes whenever a lock is released; wait_for_change returns once it differs from `seen` or the deadline
  // passes.
  std::uint32_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  void wait_for_change(std::uint32_t seen, std::optional<SteadyTime> deadline) const;

 private:
  friend class RunLock;
  friend class StoreAtRest;
  enum class Gate : std::uint8_t { kAllMay, kReadersMay, kNobodyMay };
  void announce_unlock();
  std::vector<std::pair<StoredVariable*, VariableRole>> originals() const;  // by name

  struct State;
  std::unique_ptr<State> state_;
  std::atomic<std::uint64_t> step_{0};
  RunLock step_lock_{*this};
  std::atomic<Gate> gate_{Gate::kAllMay};
  std::mutex rest_mutex_;  // one at a time brings the store to rest
  std::atomic<std::uint32_t> epoch_{0};
  mutable std::atomic<std::uint32_t> waiters_{0};
};

}  // namespace lockstep
