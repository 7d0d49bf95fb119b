// strategies/trace/context.h - which strategy is active on this thread, and in which context.
//
//   default        nothing is active
//   cross-replica  inside Strategy::scope(), a cross-replica function, or a merge function: code that stands for all
//                  replicas together
//   replica        inside a function that is traced once and cloned per replica
//   update         inside the function of Strategy::update(): a variable means the copy that is being updated; counts as
//                  cross-replica, but what makes nodes for all replicas (run(), update(), ...) has no place there; a scope
//                  that is entered in it leaves it an update
//
// A call in the wrong context is an error of its own kind (FailedPrecondition):
//   a cross-replica method in replica context    "requires cross-replica context: use merge_call()"
//                                                (so is one that makes nodes for all replicas in an update)
//   another strategy is active                   "mixes strategies"
//   a replica method outside of a replica        "requires replica context" (a collective in an update, too)
//   a ReplicaContext of another function         "this ReplicaContext belongs to another ..."
//
// While a function is traced, its nodes go into current_builder().
//
// Thread safety: contexts belong to the thread that entered them; every question here is about the calling
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/strategies/trace/values.h"

namespace lockstep {

class Strategy;

enum class ContextKind : std::uint8_t { kDefault, kCrossReplica, kReplica, kUpdate };
LOCKSTEP_API std::string_view to_string(ContextKind kind);  // "default", "cross-replica", "replica", "update"

// The active strategy and context of this thread.
LOCKSTEP_API bool has_strategy();
LOCKSTEP_API Strategy* current_strategy();  // null: none
LOCKSTEP_API ContextKind current_context();
LOCKSTEP_API bool in_cross_replica_context();  // cross-replica or update
LOCKSTEP_API bool in_replica_context();
// The graph being traced; null if there is none.
LOCKSTEP_API GraphBuilder* current_builder();

namespace internal {

// The context that a scope entered here gets: cross-replica, except that an update stays one.
LOCKSTEP_API ContextKind kind_of_scope();

class Tracer;       // strategies/trace/tracer.h
class RegionKinds;  // strategies/trace/internal/result_kinds.h

// One entered context; the destructor leaves it, on the thread that made it. Contexts nest like blocks; if
// one ends before a later one, the later one stays active.
class LOCKSTEP_API ContextFrame {
 public:
  ContextFrame(Tracer* tracer, ContextKind kind, GraphBuilder* builder);
  ~ContextFrame();
  ContextFrame(const ContextFrame&) = delete;
  ContextFrame& operator=(const ContextFrame&) = delete;

  Tracer* tracer() const { return tracer_; }
  ContextKind kind() const { return kind_; }
  GraphBuilder* builder() const { return builder_; }
  const ContextFrame* outer() const { return outer_; }
  std::uint64_t serial() const { return serial_; }  // unique in the process
  static const ContextFrame* current();

  // --- for the code of a replica
  // How a value differs between replicas, as far as the code is traced; kPerReplica for a value of a region
  // inside it.
  void set_kinds(RegionKinds* kinds) { kinds_ = kinds; }
  ReplicaKind kind_of(const Value& value) const;
  // A value that leaves the region besides the function's results: `then` is called with the value it becomes
  // outside.
  using Leaves = std::pair<Value, std::function<void(const PerReplica<Value>&)>>;
  void leave(const Value& value, std::function<void(const PerReplica<Value>&)> then) const;
  const std::vector<Leaves>& leaving() const { return leaving_; }

 private:
  Tracer* tracer_;
  ContextKind kind_;
  GraphBuilder* builder_;
  mutable const ContextFrame* outer_;
  std::uint64_t serial_;
  RegionKinds* kinds_ = nullptr;
  mutable std::vector<Leaves> leaving_;
};

// Throw FailedPrecondition if the context is another one; `method` and `site` say what was called, and where.
LOCKSTEP_API void require_cross_replica(const Tracer* tracer, std::string_view method,
                                        const SourceSite& site);
// For methods that make nodes for all replicas.
LOCKSTEP_API void require_no_update(std::string_view method, const SourceSite& site);
LOCKSTEP_API void require_replica(std::string_view method, const SourceSite& site);

}  // namespace internal

}  // namespace lockstep
