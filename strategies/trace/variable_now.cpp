// strategies/trace/variable_now.cpp - variables outside of traced functions: their values, and immediate
// changes.
#include <algorithm>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/logical_variable.h"
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
    // A function that was compiled in the meantime may have made copies.
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

void require_no_trace(std::string_view what, std::string_view instead, const ErrorPlace& place) {
  if (current_builder() == nullptr) return;
  throw FailedPrecondition(str("variable '", place.node, "' is ", what,
                               " while a function is traced: ", instead, ", or do it outside"),
                           place);
}
void require_no_trace_for_value(const ErrorPlace& place) {
  require_no_trace("asked for its value", "use read()", place);
}

// Throws NotFound if the variable was erased.
VariableRole role_now(const VariableStore& store, std::string_view name, const ErrorPlace& place) {
  try {
    return store.role(name);
  } catch (const NotFound& error) {
    throw NotFound(error.message(), place);
  }
}

}  // namespace

PerReplica<Tensor> Variable::copies(SourceSite site) const {
  require_no_trace_for_value(place(site));
  check_strategy(site);
  const auto replicas = static_cast<std::size_t>(state_->tracer->num_local_replicas());
  VariableStore& store = state_->tracer->variables();
  static_cast<void>(role_now(store, name(), place(site)));  // throws if it was erased
  std::vector<Tensor> values;
  const CopyLocks held(store, name(), state_->tracer->num_local_replicas(), CopyLocks::Use::kRead);
  for (std::size_t r = 0; r < replicas; ++r) {
    StoredVariable* copy = store.find(copy_name(name(), static_cast<std::int64_t>(r)));
    const Tensor& value = copy == nullptr ? values[0] : copy->storage();
    values.push_back(value.clone().host());
  }
  if (values.size() == 1 && !state_->tracer->is_part()) return values[0];
  const bool mirrored =
      !internal::has_own_copies(*this) &&
      std::ranges::all_of(values, [&](const Tensor& copy) { return copy.bit_equal(values[0]); });
  return PerReplica<Tensor>(std::move(values), mirrored ? ReplicaKind::kMirrored : ReplicaKind::kPerReplica);
}

Tensor Variable::value(SourceSite site) const {
  require_no_trace_for_value(place(site));
  const VariableMeaning meaning =
      internal::accepted(question(VariableAction::kRead, ReplicaKind::kSingle, site), place(site));
  if (state_->tracer->is_part() && internal::has_own_copies(*this)) return value_of_all(meaning, site);
  VariableStore& store = state_->tracer->variables();
  const CopyLocks held(store, name(), state_->tracer->num_local_replicas(), CopyLocks::Use::kRead);
  const internal::LogicalVariable variable(held.copies(), role_now(store, name(), place(site)));
  if (const Decision decision = variable.has_value(); !decision)
    throw InvalidArgument(str("variable '", name(), "': ", decision.reason()), place(site));
  Tensor value = Tensor::empty(variable.spec().dtype, variable.spec().shape);
  variable.read(value);
  return value;
}

// Of a variable that each replica of each worker has for itself.
Tensor Variable::value_of_all(VariableMeaning meaning, SourceSite site) const {
  const PerReplica<Tensor> mine = copies(site);
  Graph graph =
      internal::graph_of(mine.values(), site, [&](GraphBuilder&, const std::vector<Value>& slots) -> Value {
        switch (meaning) {
          case VariableMeaning::kSumCopies:
            return state_->tracer->combined(ReduceOp::kSum, slots, false, site);
          case VariableMeaning::kMeanCopies:
            return state_->tracer->combined(ReduceOp::kMean, slots, false, site);
          case VariableMeaning::kFirstCopy: return state_->tracer->from_chief(slots[0], site);
          default:
            throw Error(
                ErrorCode::kUnimplemented,
                str("variable '", name(), "' has no one value over several workers: read it in a function"),
                place(site));
        }
      });
  return state_->tracer->compute(std::move(graph), mine.values(), site);
}

void Variable::assign(const Tensor& value, SourceSite site) const {
  change_now(VariableAction::kAssign, value, false, site);
}
void Variable::assign_add(const Tensor& delta, SourceSite site) const {
  change_now(VariableAction::kAssignAdd, delta, false, site);
}
void Variable::assign_sub(const Tensor& delta, SourceSite site) const {
  change_now(VariableAction::kAssignAdd, delta, true, site);
}

void Variable::change_now(VariableAction action, const Tensor& given, bool negate, SourceSite site) const {
  require_no_trace("given a tensor", "assign a Value, such as constant(tensor)", place(site));
  const bool slices = aggregation() == Aggregation::kSlices;
  const VariableMeaning meaning =
      slices ? VariableMeaning::kEveryCopy
             : internal::accepted(question(action, ReplicaKind::kSingle, site), place(site));
  check_strategy(site);
  VariableStore& store = state_->tracer->variables();
  const std::int64_t replicas = state_->tracer->num_local_replicas();
  Tensor value = given;
  if (state_->tracer->is_part()) {
    if (internal::has_own_copies(*this) || !given.defined())
      throw Error(
          ErrorCode::kUnimplemented,
          str("variable '", name(), "' belongs to each replica, of several workers: assign it in a function"),
          place(site));
    // One value on all workers: that of the first.
    Graph graph = internal::graph_of({&given, 1}, site, [&](GraphBuilder&, const std::vector<Value>& v) {
      return state_->tracer->from_chief(v[0], site);
    });
    value = state_->tracer->compute(std::move(graph), {given}, site);
  }
  const CopyLocks held(store, name(), replicas, CopyLocks::Use::kWrite);
  const internal::LogicalVariable variable(held.copies(), role_now(store, name(), place(site)));
  if (!value.defined() || value.spec() != variable.spec()) {
    throw InvalidArgument(str("variable '", name(), "' holds ", variable.spec(), ", got ",
                              value.defined() ? to_string(value.spec()) : "an empty tensor"),
                          place(site));
  }
  // Compute all new values before writing the first: a failure leaves every copy as it was.
  const bool parts = slices || meaning == VariableMeaning::kShareEach;
  std::vector<Tensor> changed;
  for (std::size_t i = 0; i < held.copies().size(); ++i) {
    Tensor mine = value;
    if (parts) {
      mine = Tensor::empty(spec().dtype, spec().shape);
      variable.part(value, i, mine);
    }
    if (action == VariableAction::kAssignAdd) {
      const Tensor operands[] = {mine, held.copies()[i]->storage()};
      mine = internal::at_once(operands, site, [&](GraphBuilder&, const std::vector<Value>& v) {
        return v[1] + (negate ? neg(v[0]) : v[0]);
      });
    }
    changed.push_back(std::move(mine));
  }
  const CommitScope scope(store.commits(), held.copies());
  for (std::size_t i = 0; i < changed.size(); ++i) held.copies()[i]->storage().assign(changed[i]);
}

}  // namespace lockstep
