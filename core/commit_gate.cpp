// core/commit_gate.cpp - reading the last committed value of a variable while runs go on.
#include "lockstep/core/commit_gate.h"

#include <thread>

#include "lockstep/core/variable_store.h"

namespace lockstep {

// A commit raises its counter before it looks for first readers, and a first reader raises its own before it
// looks for commits. All of this is in one total order, so at least one of the two sees the other.
void CommitGate::begin(std::span<StoredVariable* const> written) {
  for (;;) {
    commits_.fetch_add(1, std::memory_order_seq_cst);
    if (first_reads_.load(std::memory_order_seq_cst) == 0) break;
    commits_.fetch_sub(1, std::memory_order_seq_cst);
    while (first_reads_.load(std::memory_order_relaxed) != 0) std::this_thread::yield();
  }
  if (!any_used_.load(std::memory_order_relaxed)) return;
  for (StoredVariable* variable : written) {
    if (variable->commit_lock().is_used()) variable->commit_lock().lock();
  }
}

// While a commit is counted no lock comes into use: the locks in use now are those that begin() took.
void CommitGate::end(std::span<StoredVariable* const> written) {
  if (any_used_.load(std::memory_order_relaxed)) {
    for (StoredVariable* variable : written) {
      if (variable->commit_lock().is_used()) variable->commit_lock().unlock();
    }
  }
  commits_.fetch_sub(1, std::memory_order_seq_cst);
}

bool CommitGate::read(StoredVariable& variable, Tensor& into) {
  CommitLock& lock = variable.commit_lock();
  if (!lock.is_used()) {
    first_reads_.fetch_add(1, std::memory_order_seq_cst);
    while (commits_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
    lock.used_.store(true, std::memory_order_release);
    any_used_.store(true, std::memory_order_relaxed);
    first_reads_.fetch_sub(1, std::memory_order_seq_cst);
  }
  lock.lock();
  const bool there = variable.storage().defined();
  if (there) into.assign(variable.storage());
  lock.unlock();
  return there;
}

}  // namespace lockstep
