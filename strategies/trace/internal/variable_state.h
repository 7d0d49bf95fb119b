// strategies/trace/internal/variable_state.h - what a Variable's handles share, and locking all copies of
// one.
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

// The declaration, with what the store says of the copies.
VariableDecl as_store_has_it(VariableDecl decl, const Tracer& tracer);

// The declaration in the graph of a step. What the copies are together is what the store says: a pass may have
// declared it anew. A variable that the strategy lets drift apart is there what it is for replicas: each one's
// own.
VariableDecl as_step_has_it(VariableDecl decl, const Tracer& tracer);

// Has each replica a value of its own in it?
bool is_own(const Variable& variable);

// Throws InvalidArgument where the table refuses.
VariableMeaning accepted(const VariableQuestion& question, const std::string& name, const SourceSite& site);

// All copies of a variable that have memory of their own, held together: no run comes in between. Runs that
// use it are waited for; do not make one inside a node of such a run.
class CopyLocks {
 public:
  enum class Use : std::uint8_t { kRead, kWrite };
  CopyLocks(VariableStore& store, const std::string& name, std::int64_t replicas, Use use);
  ~CopyLocks() { locks_.unlock(); }
  CopyLocks(const CopyLocks&) = delete;
  CopyLocks& operator=(const CopyLocks&) = delete;

  // In the order of the replicas; one for all where they share memory, or before there are copies.
  const std::vector<StoredVariable*>& copies() const { return copies_; }

 private:
  static std::vector<StoredVariable*> find(VariableStore& store, const std::string& name,
                                           std::int64_t replicas);

  std::vector<StoredVariable*> copies_;
  RunLockSet locks_;  // theirs
};

}  // namespace internal

}  // namespace lockstep
