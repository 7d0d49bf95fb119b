// strategies/trace/context.cpp - which strategy is active on this thread, and in which context.
#include "lockstep/strategies/trace/context.h"

#include <atomic>

#include "lockstep/core/error.h"
#include "lockstep/strategies/trace/internal/result_kinds.h"
#include "lockstep/strategies/trace/tracer.h"

namespace lockstep {

namespace {

thread_local const internal::ContextFrame* top_frame = nullptr;

}  // namespace

std::string_view to_string(ContextKind kind) {
  switch (kind) {
    case ContextKind::kDefault: return "default";
    case ContextKind::kCrossReplica: return "cross-replica";
    case ContextKind::kReplica: return "replica";
    case ContextKind::kUpdate: return "update";
  }
  return "?";
}

bool has_strategy() { return top_frame != nullptr; }
Strategy* current_strategy() { return top_frame == nullptr ? nullptr : &top_frame->tracer()->strategy(); }
ContextKind current_context() { return top_frame == nullptr ? ContextKind::kDefault : top_frame->kind(); }
bool in_cross_replica_context() {
  return current_context() == ContextKind::kCrossReplica || current_context() == ContextKind::kUpdate;
}
bool in_replica_context() { return current_context() == ContextKind::kReplica; }
GraphBuilder* current_builder() { return top_frame == nullptr ? nullptr : top_frame->builder(); }

namespace internal {

ContextFrame::ContextFrame(Tracer* tracer, ContextKind kind, GraphBuilder* builder)
    : tracer_(tracer), kind_(kind), builder_(builder), outer_(top_frame) {
  static std::atomic<std::uint64_t> next{1};
  serial_ = next.fetch_add(1, std::memory_order_relaxed);
  top_frame = this;
}

ContextFrame::~ContextFrame() {
  if (top_frame == this) {
    top_frame = outer_;
    return;
  }
  // This frame ends before one that was entered later: the later one stays active.
  const ContextFrame* later = top_frame;
  while (later != nullptr && later->outer_ != this) later = later->outer_;
  if (later != nullptr) later->outer_ = outer_;
}

void ContextFrame::leave(const Value& value, std::function<void(const PerReplica<Value>&)> then) const {
  leaving_.emplace_back(value, std::move(then));
}

ReplicaKind ContextFrame::kind_of(const Value& value) const {
  return kinds_ == nullptr ? ReplicaKind::kPerReplica : kinds_->of(value);
}

const ContextFrame* ContextFrame::current() { return top_frame; }

ContextKind kind_of_scope() {
  return current_context() == ContextKind::kUpdate ? ContextKind::kUpdate : ContextKind::kCrossReplica;
}

void require_cross_replica(const Tracer* tracer, std::string_view method, const SourceSite& site) {
  if (top_frame == nullptr) return;
  if (top_frame->tracer() != tracer) {
    throw FailedPrecondition(str(method, " mixes strategies: '", top_frame->tracer()->name(),
                                 "' is active on this thread, and this is another strategy ('",
                                 tracer->name(), "'); leave its scope first"),
                             place_of_call(method, site));
  }
  if (top_frame->kind() == ContextKind::kReplica) {
    throw FailedPrecondition(
        str(method, " requires cross-replica context, and this is the code of one replica: use ",
            "replica_context().merge_call()"),
        place_of_call(method, site));
  }
}

void require_no_update(std::string_view method, const SourceSite& site) {
  if (current_context() != ContextKind::kUpdate) return;
  throw FailedPrecondition(
      str(method, " requires cross-replica context, and this is the code of one copy, in an update: ",
          "call it before the update and hand its result over as an argument"),
      place_of_call(method, site));
}

void require_replica(std::string_view method, const SourceSite& site) {
  if (in_replica_context()) return;
  throw FailedPrecondition(
      str(method, " requires replica context: call it inside a function that Strategy::function() or ",
          "run() clones; this is the ", to_string(current_context()), " context"),
      place_of_call(method, site));
}

}  // namespace internal

}  // namespace lockstep
