// core/commit_gate.h - reading the last committed value of a variable while runs go on.
//
// A run changes the memory of variables in its commit stage only. A reader that is kept out during commit
// stages, and at no other time, therefore reads what the last step committed:
//
//   {
//     const CommitScope scope(store.commits(), written);     // around every change of those variables
//     ...
//   }
//   store.commits().read(variable, into);                    // waits at most for a commit stage
//
// A variable that nobody reads this way costs a commit nothing; one that is read this way costs it one lock,
// which readers hold while they copy. Code that changes a variable also holds its RunLock exclusively.
// Thread safety: any thread. A scope may end on another thread than it began on.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "lockstep/core/base/export.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

class StoredVariable;

// Taken by code that changes a variable, and by code that reads it while runs go on.
class LOCKSTEP_API CommitLock {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) held_.wait(true, std::memory_order_relaxed);
  }
  void unlock() {
    held_.store(false, std::memory_order_release);
    held_.notify_one();
  }
  bool is_used() const { return used_.load(std::memory_order_acquire); }

 private:
  friend class CommitGate;
  std::atomic<bool> held_{false};
  std::atomic<bool> used_{false};  // by readers
};

class LOCKSTEP_API CommitGate {
 public:
  void begin(std::span<StoredVariable* const> written);
  void end(std::span<StoredVariable* const> written);
  // A copy into a tensor of the variable's spec; false if the variable was erased.
  bool read(StoredVariable& variable, Tensor& into);

 private:
  // The first reader of a variable waits until no commit is under way, and commits that arrive meanwhile wait
  // for it. From then on everyone uses the variable's lock.
  std::atomic<std::uint32_t> commits_{0};
  std::atomic<std::uint32_t> first_reads_{0};
  std::atomic<bool> any_used_{false};
};

class LOCKSTEP_API CommitScope {
 public:
  CommitScope(CommitGate& gate, std::span<StoredVariable* const> written) : gate_(gate), written_(written) {
    gate_.begin(written_);
  }
  ~CommitScope() { gate_.end(written_); }
  CommitScope(const CommitScope&) = delete;
  CommitScope& operator=(const CommitScope&) = delete;

 private:
  CommitGate& gate_;
  std::span<StoredVariable* const> written_;  // owned by the caller
};

}  // namespace lockstep
