// core/variable_store.h - named state that outlives a step.
//
// A VariableStore maps names to StoredVariables: a value in the memory of a device, and a lock. Programs bind to the
// variables of their store by name when they are compiled, creating those that are missing from the graph's
// initial values. Runs lock what they touch: any number of readers, or one writer (RunLock).
//
// A caller that cannot have its locks at once waits in line (LockTurn), with these promises:
//   turns     the first in line waits for the runs that are under way when it becomes first, and for no later
//             ones: neither readers nor writers can delay it by coming back again and again. The others in
//             line wait for it too, if their locks conflict with its own.
//   order     locks are taken all together or not at all, and a waiter holds none of the locks it waits for:
//             the order in which programs name their variables does not matter.
//   nesting   a run inside a node of a run that holds locks goes ahead of the line, and so does run_async
//             called from such a node: the outer run may be waiting for it. It may read what the outer run
//             and others are reading. Once the first in line has been overtaken in this way and has waited
//             for 20 ms, all runs that need variables of the store wait for it, except those that go ahead.
//   escape    a node may also wait for a run that it started in a way nobody can see, on a thread of its own.
//             So waiters that only the line keeps waiting may pass it 100 ms after its first became first,
//             and then after twice as long each time. If runs take longer than that, the first in line waits
//             at most three times as long as the longest run.
//
// A variable can be taken back: erase() and replace() refuse while programs are bound to it (compile() binds
// a program, its end releases it); reset() restores the value that the variable was made with.
//
// Errors of its methods name the line of the call.
//
// Thread safety: a store may be used from any thread. value() returns a copy taken under the variable's lock;
// committed() returns one without waiting for runs, at most for a commit stage that is under way.
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

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/steady_time.h"
#include "lockstep/core/commit_gate.h"
#include "lockstep/core/source_site.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

class VariableStore;

// Held by a run on everything that it touches. Never blocks by itself, and knows about the line only what
// LockTurn tells it. Exclusive excludes everyone else; shared excludes writers.
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
  // Would taking it delay somebody in line?
  bool is_reserved(bool exclusive) const;
  bool try_lock_shared();
  bool try_lock_exclusive();
  void unlock_shared();
  void unlock_exclusive();

 private:
  friend class LockTurn;
  friend class RunLockSet;
  static constexpr std::uint32_t kOneReader = 1;
  static constexpr std::uint32_t kOneWriter = 1U << 16U;

  VariableStore& store_;                    // is told when the lock becomes free
  std::atomic<std::int32_t> users_{0};      // -1: a writer; n: n readers
  std::atomic<std::uint32_t> reserved_{0};  // how many it is reserved for: readers and writers
};

// Locks that are taken together: all of them or none. The set only names them and does not know who holds
// them: its destructor unlocks nothing. Thread safety: once all are added, any thread may take them through
// the set, and unlocks what it took.
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
  bool is_reserved(std::size_t i) const { return locks_[i]->is_reserved(exclusive_[i]); }
  // Fails while somebody waits for one of the locks, unless `ahead` of the line. Looks at all of them first:
  // a lock that is taken and given back for nothing wakes everyone who waits, the caller included.
  bool try_lock(bool ahead = false) const;
  void unlock() const;  // after a try_lock that succeeded

 private:
  friend class LockTurn;
  bool take(bool reserved_too) const;
  void unlock_first(std::size_t count) const;

  std::vector<RunLock*> locks_;
  std::vector<bool> exclusive_;  // by lock
  bool any_exclusive_ = false;
};

// One wait for the locks of a set, and the place in line that comes with it.
//
//   LockTurn turn(store, locks);
//   while (!turn.try_lock()) turn.wait(deadline);       // or turn.lock()
//   ...
//   locks.unlock();
//
// The first try that fails takes a place in line; success or the end of the turn gives it up. The locks of
// the first in line are reserved for it: others wait if they want them in a way that conflicts with its own.
// The store and the set must outlive the turn. Thread safety: one thread at a time.
class LOCKSTEP_API LockTurn {
 public:
  enum class Kind : std::uint8_t {
    kInLine,
    kAhead,  // goes ahead of the line: somebody who holds locks may be waiting for this one
    kRest,   // in line, for all locks of the store (core/store_at_rest.h)
  };
  LockTurn(VariableStore& store, const RunLockSet& locks, Kind kind = Kind::kInLine);
  ~LockTurn();
  LockTurn(const LockTurn&) = delete;
  LockTurn& operator=(const LockTurn&) = delete;

  bool try_lock();
  // After a failed try: waits until another one may succeed, or until the deadline.
  void wait(std::optional<SteadyTime> deadline = std::nullopt);
  void lock();
  // After a failed try: did it fail because the store has to come to rest first?
  bool waits_for_rest() const;

 private:
  friend class VariableStore;
  bool is_first() const;
  bool may_pass() const;
  void join();
  void leave();
  void reserve() const;
  void release() const;

  VariableStore& store_;
  const RunLockSet& locks_;
  Kind kind_;
  bool joined_ = false;
  bool passing_ = false;    // whether the last try could ignore reservations
  std::uint32_t seen_ = 0;  // the store's epoch before the last try
  SteadyTime since_;        // when it joined
  LockTurn *before_ = nullptr, *after_ = nullptr;
};

// How the copies of a variable make up one value, for code that reads or sets them as one.
enum class CopyRule : std::uint8_t {
  kEqual,  // every copy holds the value
  kSum,    // the value is their sum
  kMean,
  kFirst,   // the value is that of the first copy
  kOwn,     // each replica has its own; together they are not one value
  kSlices,  // one after the other along an axis; elements beyond the value's extent do not count
};

// How a variable relates to the others of its store: it is a copy of one, or stands by itself.
struct VariableRole {
  std::string copy_of = {};            // empty: it stands by itself
  CopyRule copies = CopyRule::kEqual;  // of a variable and its copies together
  std::int32_t slice_axis = 0;         // for kSlices: the axis ...
  std::int64_t slice_extent = 0;       // ... and the extent of the whole value along it
  friend bool operator==(const VariableRole&, const VariableRole&) = default;
};

// Where a variable is to live.
struct VariableHome {
  std::string device = {};                     // for messages; empty: the host
  std::shared_ptr<MemoryPool> pool = nullptr;  // null: where it is found; on the host, if it is made
};

class LOCKSTEP_API StoredVariable : public RunLock {
 public:
  // Copies the value into the memory of its home.
  StoredVariable(VariableStore& store, std::string name, const Tensor& value, VariableHome home = {});
  const std::string& name() const { return name_; }
  const TensorSpec& spec() const { return spec_; }
  MemoryId memory() const { return memory_; }
  const VariableHome& home() const { return home_; }
  // The live memory; use it only while holding the lock. It stays at one address until the variable is
  // erased, which leaves an empty tensor.
  Tensor& storage() { return value_; }
  // Where it was made: "train.cpp:12"; empty: not known.
  const std::string& made_at() const { return made_at_; }
  CommitLock& commit_lock() { return commit_lock_; }
  // Has it another dtype or shape than it was made with, because the first program that uses it declares it so?
  bool reshaped() const { return reshaped_; }

 private:
  friend class VariableStore;
  std::string name_;
  VariableHome home_;
  Tensor value_;
  TensorSpec spec_;  // of the value
  MemoryId memory_;
  Tensor start_;  // the value it was made with; empty: zeros, or that of its original
  std::string made_at_;
  CommitLock commit_lock_;
  bool reshaped_ = false;
  std::size_t programs_ = 0;  // bound to it; guarded by the store's mutex, as is the next
  bool was_bound_ = false;    // by some program, once
};

// Whether a store that already has a variable accepts another declaration of it.
enum class SameStart : std::uint8_t {
  kAny,       // it keeps its value, whatever the other declaration starts with
  kRequired,  // a declaration that starts with other bits is refused
};

class LOCKSTEP_API VariableStore {
 public:
  VariableStore();
  ~VariableStore();
  VariableStore(const VariableStore&) = delete;
  VariableStore& operator=(const VariableStore&) = delete;

  // The variable of that name; if there is none, it is made at `home` with a copy of `initial`. Throws
  // InvalidArgument if one exists with another dtype or shape, in another memory than that of `home` or, with
  // SameStart::kRequired, with another start. The store keeps what `initial` returns, without copying it if it
  // is on the host, for reset(): nobody may write into it. References stay valid
  // while the store lives. A role that is not the default replaces the one that the variable had; what the
  // role of a copy says about the copies holds for the variable and all of them. Throws FailedPrecondition if
  // programs are bound to the variable that were compiled for copies of another rule.
  //
  // One exception to dtype and shape: a variable that no program has used yet and nobody has changed gives way to
  // a declaration of the same line (`made_at`). A pass has reshaped it, and its value is in the declaration.
  StoredVariable& find_or_create(std::string_view name, const TensorSpec& spec,
                                 const std::function<Tensor()>& initial, const VariableRole& role = {},
                                 std::string_view made_at = {}, SameStart same_start = SameStart::kAny,
                                 const VariableHome& home = {});
  // A second name for an existing variable: find, value and set take either. Throws NotFound if the target is
  // missing, InvalidArgument if the name already belongs to another variable.
  StoredVariable& alias(std::string_view name, std::string_view target,
                        SourceSite site = SourceSite::current());
  bool is_alias(std::string_view name) const;
  StoredVariable* find(std::string_view name);
  bool contains(std::string_view name) const;
  std::vector<std::string> names() const;  // sorted, aliases included
  // Also by an alias; throws NotFound.
  VariableRole role(std::string_view name, SourceSite site = SourceSite::current()) const;
  // A copy of the value on the host, and a new value (of the same spec), of the variable with exactly this name;
  // copies that are equal get the new value too. If its
  // copies differ (synchronized on read, or drifting), that is the first copy; Variable::value() combines
  // them or says why it cannot. Throws NotFound. Both wait in line for runs that hold the variable: do not
  // call them for a variable from a node of a run that uses it.
  Tensor value(std::string_view name, SourceSite site = SourceSite::current());
  void set(std::string_view name, const Tensor& value, SourceSite site = SourceSite::current());

  // The same, but throws Error(kDeadlineExceeded) if the variable is not free by then.
  Tensor value(std::string_view name, SteadyTime deadline, SourceSite site = SourceSite::current());
  // The value that the last step committed, read while runs go on: waits at most for a commit stage, never
  // for a run, and may be called from a node of a run. Values of several variables may come from different
  // steps. From the first read of a variable on, commits take a lock for it; variables that are not read this
  // way cost nothing.
  Tensor committed(std::string_view name, SourceSite site = SourceSite::current());

  // --- taking back a variable together with its copies; these throw NotFound
  // Throws FailedPrecondition while programs are bound to it.
  void erase(std::string_view name, SourceSite site = SourceSite::current());
  // Restores the value it was made with. Waits in line as set() does.
  void reset(std::string_view name, SourceSite site = SourceSite::current());
  // Puts a value in its place that may have another dtype or shape; throws FailedPrecondition while programs
  // are bound to it. Its copies are erased; the next program that needs them makes them from the new value.
  void replace(std::string_view name, const Tensor& value, SourceSite site = SourceSite::current());

  // Counts a program as bound to a variable, and as no longer bound. bind() throws NotFound.
  StoredVariable& bind(std::string_view name);
  void unbind(StoredVariable& variable);

  CommitGate& commits() { return commits_; }

  // The step counter: how many steps that draw random numbers or write variables have committed. Random ops
  // draw from it; checkpoints keep it.
  std::uint64_t step() const { return step_.load(std::memory_order_acquire); }
  void set_step(std::uint64_t step) { step_.store(step, std::memory_order_release); }
  std::uint64_t advance_step() { return step_.fetch_add(1, std::memory_order_acq_rel); }
  // Steps that were counted, and then did not happen.
  void take_back_steps(std::uint64_t steps) { step_.fetch_sub(steps, std::memory_order_acq_rel); }

  // Held exclusively by a run that draws random numbers, so that no two runs draw from one step.
  RunLock& step_lock() { return step_lock_; }

  // Changes whenever a lock becomes free, and also when the line gets shorter without a lock becoming free.
  // wait_for_change() returns once it differs from `seen` or the deadline passes.
  std::uint32_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  void wait_for_change(std::uint32_t seen, std::optional<SteadyTime> deadline) const;

 private:
  friend class RunLock;
  friend class RunLockSet;
  friend class LockTurn;
  friend class StoreAtRest;
  void announce();
  void set_first(const LockTurn* turn);
  SteadyTime first_since() const;
  std::vector<std::pair<StoredVariable*, VariableRole>> originals() const;  // by name
  std::vector<StoredVariable*> group_of(std::string_view name);             // the variable and its copies
  // Takes the variable and its copies out of the names, and gives their memory back; false and nothing if the
  // condition, which is asked while all locks are held, does not hold.
  bool forget(std::string_view name, const std::vector<StoredVariable*>& group, std::string_view action,
              const std::function<bool()>& condition = {});
  // Forgets the variable if a declaration of another dtype or shape may take its place.
  bool give_way(StoredVariable& variable, std::string_view made_at);
  VariableRole find_role(std::string_view name) const;

  struct State;
  std::unique_ptr<State> state_;
  CommitGate commits_;
  std::atomic<std::uint64_t> step_{0};
  RunLock step_lock_{*this};
  std::atomic<const LockTurn*> first_{nullptr};  // in line; only its own turn may dereference this
  std::atomic<SteadyTime::rep> first_since_{0};  // when it became first
  std::atomic<bool> first_is_rest_{false};
  std::atomic<bool> first_is_late_{false};
  std::atomic<bool> first_was_overtaken_{false};
  std::atomic<std::uint32_t> epoch_{0};
  mutable std::atomic<std::uint32_t> waiters_{0};
};

}  // namespace lockstep
