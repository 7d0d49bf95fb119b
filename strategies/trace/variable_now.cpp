// strategies/trace/variable_now.cpp - variables outside of traced functions: their values, and changes at
// once.
#include <algorithm>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/strategies/trace/internal/at_once.h"
#include "lockstep/strategies/trace/internal/variable_state.h"
#include "lockstep/strategies/trace/tracer.h"
#include "lockstep/strategies/trace/variable.h"

namespace lockstep {

namespace internal {

CopyLocks::CopyLocks(VariableStore& store, const std::string& name, std::int64_t replicas, Use use) {
  for (;;) {
    copies_ = find(store, name, replicas);
    locks_.clear();
    for (StoredVariable* copy : copies_) locks_.add(*copy, use == Use::kWrite);
    LockTurn(store, locks_).lock();
    // A function that was compiled in between may have made copies.
    if (find(store, name, replicas) == copies_) return;
    locks_.unlock();
  }
}

std::vector<StoredVariable*> CopyLocks::find(VariableStore& store, const std::string& name,
                                             std::int64_t replicas) {
  std::vector<StoredVariable*> copies;
  for (std::int64_t r = 0; r < replicas; ++r) {
    StoredVariable* copy = store.find(copy_name(name, r));
    if (copy != nullptr && std::ranges::find(copies, copy) == copies.end()) copies.push_back(copy);
  }
  return copies;
}

}  // namespace internal

namespace {

using internal::CopyLocks;

void require_no_trace(const std::string& name, std::string_view what, std::string_view instead) {
  if (current_builder() == nullptr) return;
  throw FailedPrecondition(
      str("variable '", name, "' is ", what, " while a function is traced: ", instead, ", or do it outside"));
}
void require_no_trace_for_value(const std::string& name) {
  require_no_trace(name, "asked for its value", "use read()");
}

}  // namespace

PerReplica<Tensor> Variable::copies() const {
  require_no_trace_for_value(name());
  check_strategy();
  const auto replicas = static_cast<std::size_t>(state_->tracer->num_replicas_in_sync());
  VariableStore& store = state_->tracer->variables();
  std::vector<Tensor> values;
  const CopyLocks held(store, name(), state_->tracer->num_replicas_in_sync(), CopyLocks::Use::kRead);
  for (std::size_t r = 0; r < replicas; ++r) {
    StoredVariable* copy = store.find(copy_name(name(), static_cast<std::int64_t>(r)));
    values.push_back(copy == nullptr ? values[0].clone() : copy->storage().clone());
  }
  if (values.size() == 1) return values[0];
  const bool mirrored = !internal::is_own(*this) && std::ranges::all_of(values, [&](const Tensor& copy) {
    return copy.bit_equal(values[0]);
  });
  return PerReplica<Tensor>(std::move(values), mirrored ? ReplicaKind::kMirrored : ReplicaKind::kPerReplica);
}

Tensor Variable::value() const {
  require_no_trace_for_value(name());
  const VariableMeaning meaning =
      internal::accepted(question(VariableAction::kRead, ReplicaKind::kSingle), name(), {});
  if (meaning != VariableMeaning::kSumCopies && meaning != VariableMeaning::kMeanCopies)
    return state_->tracer->variables().value(name());
  return state_->tracer->reduce_tensors(
      meaning == VariableMeaning::kSumCopies ? ReduceOp::kSum : ReduceOp::kMean, copies(), std::nullopt,
      state_->site);
}

void Variable::assign(const Tensor& value) const { change_now(VariableAction::kAssign, value, false); }
void Variable::assign_add(const Tensor& delta) const { change_now(VariableAction::kAssignAdd, delta, false); }
void Variable::assign_sub(const Tensor& delta) const { change_now(VariableAction::kAssignAdd, delta, true); }

void Variable::change_now(VariableAction action, const Tensor& value, bool negate) const {
  require_no_trace(name(), "given a tensor", "assign a Value, such as constant(tensor)");
  if (!value.defined() || value.spec() != spec()) {
    throw InvalidArgument(str("variable '", name(), "' holds ", spec(), ", got ",
                              value.defined() ? to_string(value.spec()) : "an empty tensor"));
  }
  const VariableMeaning meaning = internal::accepted(question(action, ReplicaKind::kSingle), name(), {});
  const std::int64_t replicas = state_->tracer->num_replicas_in_sync();
  const CopyLocks held(state_->tracer->variables(), name(), replicas, CopyLocks::Use::kWrite);
  // All new values before the first is written: what fails leaves every copy as it was.
  std::vector<Tensor> changed;
  for (StoredVariable* copy : held.copies()) {
    const Tensor operands[] = {value, copy->storage()};
    changed.push_back(
        internal::at_once(operands, state_->site, [&](GraphBuilder&, const std::vector<Value>& v) {
          Value change = negate ? neg(v[0]) : v[0];
          if (meaning == VariableMeaning::kShareEach) change = share_of(change, replicas);
          return action == VariableAction::kAssign ? identity(change) : v[1] + change;
        }));
  }
  for (std::size_t i = 0; i < changed.size(); ++i) held.copies()[i]->storage().assign(changed[i]);
}

}  // namespace lockstep
