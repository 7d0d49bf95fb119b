// strategies/trace/internal/variable_state.h - the state that a Variable's handles share, and locks on all
// its copies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/source_site.h"
#include "lockstep/core/variable_store.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/strategies/trace/variable_rules.h"

namespace lockstep {

class Variable;

namespace internal {

class Tracer;

struct VariableState {
  VariableDecl decl;
  Tracer* tracer = nullptr;
  SourceSite site;  // where it was made first
};

// The declaration, with the store's role for the copies.
VariableDecl declaration_in_store(VariableDecl decl, const Tracer& tracer);

// The declaration in the graph of a step. The store says how the copies form a value: a pass may have
// declared it anew. A variable that the strategy lets drift apart is declared as what it is for replicas:
// each replica's own.
VariableDecl declaration_in_step(VariableDecl decl, const Tracer& tracer);

// Does each replica have its own value of the variable?
bool has_own_copies(const Variable& variable);

// Throws InvalidArgument if the table refuses.
VariableMeaning accepted(const VariableQuestion& question, const ErrorPlace& place);

// Locks on all copies of a variable that have memory of their own, held together: no run can come in between.
// Waits for runs that use the variable; do not make one inside a node of such a run.
class CopyLocks {
 public:
  enum class Use : std::uint8_t { kRead, kWrite };
  CopyLocks(VariableStore& store, const std::string& name, std::int64_t replicas, Use use);
  ~CopyLocks() { locks_.unlock(); }
  CopyLocks(const CopyLocks&) = delete;
  CopyLocks& operator=(const CopyLocks&) = delete;

  // In the order of the replicas; a single one if they share memory, or before there are copies.
  const std::vector<StoredVariable*>& copies() const { return copies_; }

 private:
  static std::vector<StoredVariable*> find(VariableStore& store, const std::string& name,
                                           std::int64_t replicas);

  std::vector<StoredVariable*> copies_;
  RunLockSet locks_;  // the locks of the copies
};

}  // namespace internal

}  // namespace lockstep
