// strategies/context.h - which strategy is active on this thread, and in which context.
//
//   default        nothing is active
//   cross-replica  inside Strategy::scope(), a cross-replica function, or a merge function: code that stands for all
//                  replicas together
//   replica        inside a function that is traced once and cloned per replica
//   update         inside the function of Strategy::update(): a variable means the copy that is being updated; counts as
//                  cross-replica
//
// A call in the wrong context is an error of its own kind (FailedPrecondition):
//   a cross-replica method in replica context    "requires cross-replica context: use merge_call()"
//   another strategy is active                   "mixes strategies"
//   a replica method outside of a replica        "requires replica context"
//   a ReplicaContext of another function         "this ReplicaContext belongs to another ..."
//
// Contexts belong to the thread that entered them. While a function is traced, builder() is where its nodes go.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/builder.h"

namespace lockstep {

class Strategy;

enum class ContextKind : std::uint8_t { kDefault, kCrossReplica, kReplica, kUpdate };
LOCKSTEP_API std::string_view to_string(ContextKind kind);  // "default", "cross-replica", "replica", "update"

// What is active on this thread.
LOCKSTEP_API bool has_strategy();
LOCKSTEP_API Strategy* current_strategy();  // null: none
LOCKSTEP_API ContextKind current_context();
LOCKSTEP_API bool in_cross_replica_context();  // cross-replica or update
LOCKSTEP_API bool in_replica_context();
// The graph being traced; null where none is.
LOCKSTEP_API GraphBuilder* current_builder();

namespace internal {

// One entered context; leaves it when it goes, on the thread that made it. Contexts nest like blocks; one that goes before
// a later one leaves that one active.
class LOCKSTEP_API ContextFrame {
 public:
  ContextFrame(Strategy* strategy, ContextKind kind, GraphBuilder* builder);
  ~ContextFrame();
  ContextFrame(const ContextFrame&) = delete;
  ContextFrame& operator=(const ContextFrame&) = delete;

  Strategy* strategy() const { return strategy_; }
  ContextKind kind() const { return kind_; }
  GraphBuilder* builder() const { return builder_; }
  const ContextFrame* outer() const { return outer_; }
  std::uint64_t serial() const { return serial_; }  // unique in the process
  // Nodes (by identity) that write what replicas assign, noted with the outermost frame of a trace where it matters whether the
  // values differ, which is known when all of it is there.
  void note_assignment(std::uint64_t identity) const;
  const std::vector<std::uint64_t>& assignments() const { return assignments_; }
  static const ContextFrame* current();

 private:
  Strategy* strategy_;
  ContextKind kind_;
  GraphBuilder* builder_;
  mutable const ContextFrame* outer_;
  std::uint64_t serial_;
  mutable std::vector<std::uint64_t> assignments_;
};

// Throw FailedPrecondition where the context is another one; `method` is what was called.
LOCKSTEP_API void require_cross_replica(const Strategy* strategy, std::string_view method);
LOCKSTEP_API void require_replica(std::string_view method);

}  // namespace internal

}  // namespace lockstep
