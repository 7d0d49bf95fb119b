#include "lockstep/strategies/trace/variable.h"

#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/updates.h"
#include "lockstep/graph/run/variable_role.h"
#include "lockstep/strategies/trace/internal/variable_state.h"
#include "lockstep/strategies/trace/tracer.h"

namespace lockstep {

namespace {

// The strategy a new variable belongs to.
internal::Tracer& home() {
  const internal::ContextFrame* frame = internal::ContextFrame::current();
  return frame == nullptr ? internal::default_tracer() : *frame->tracer();
}

// A new variable may neither have the name of a copy of another, nor may others have the names of its copies.
void check_copy_names(const std::string& name, const internal::Tracer& strategy, const ErrorPlace& place) {
  for (std::int64_t r = 1; r < strategy.num_replicas_in_sync(); ++r) {
    const std::string suffix = copy_name("", r);
    const bool is_copy =
        name.ends_with(suffix) && strategy.variables().contains(name.substr(0, name.size() - suffix.size()));
    if (!is_copy && !strategy.variables().contains(name + suffix)) continue;
    throw InvalidArgument(
        str("variable '", is_copy ? name : name + suffix, "' would have the name of the copy of '",
            is_copy ? name.substr(0, name.size() - suffix.size()) : name, "' for replica ", r,
            "; give it another"),
        place);
  }
}

ErrorPlace place_of_variable(const std::string& name, const SourceSite& site) {
  return {name, "Variable", {}, site.file, site.line, -1};
}

Synchronization without_auto(Synchronization synchronization) {
  return synchronization == Synchronization::kAuto ? Synchronization::kOnWrite : synchronization;
}

std::string described(const VariableDecl& decl, const SourceSite& site) {
  return str(decl.spec, ", synchronization ", to_string(without_auto(decl.synchronization)), ", aggregation ",
             to_string(decl.aggregation), decl.trainable ? "" : ", not trainable", " (", site.file, ":",
             site.line, ")");
}

bool same_options(const VariableDecl& a, const VariableDecl& b) {
  return a.spec == b.spec && a.aggregation == b.aggregation && a.trainable == b.trainable &&
         without_auto(a.synchronization) == without_auto(b.synchronization);
}

}  // namespace

Variable::Variable(std::string name, const Tensor& initial, const VariableOptions& options, SourceSite site) {
  internal::Tracer& strategy = home();
  const ErrorPlace place = place_of_variable(name, site);
  if (name.empty()) throw InvalidArgument("a variable needs a name", place);
  if (!initial.defined()) throw InvalidArgument(str("variable '", name, "' needs an initial value"), place);
  const Decision decision =
      can_make_variable(options.synchronization, options.aggregation, strategy.num_replicas_in_sync());
  if (!decision) throw InvalidArgument(str("variable '", name, "': ", decision.reason()), place);
  auto state = std::make_shared<internal::VariableState>();
  state->tracer = &strategy;
  state->site = site;
  state->decl.name = std::move(name);
  state->decl.spec = initial.spec();
  state->decl.initial = initial.clone();
  state->decl.synchronization = options.synchronization;
  state->decl.aggregation = options.aggregation;
  state->decl.trainable = options.trainable.value_or(options.synchronization != Synchronization::kOnRead);
  // From looking whether the name is free until it is taken: two threads may want it.
  const std::lock_guard<std::mutex> lock(strategy.made_mutex_);
  const bool exists = strategy.variables().contains(state->decl.name);
  if (exists && current_builder() == nullptr) {
    throw InvalidArgument(
        str("variable '", state->decl.name, "' exists already in this strategy; give it another name"),
        place);
  }
  if (!exists) check_copy_names(state->decl.name, strategy, place);
  const auto found = strategy.made_.find(state->decl.name);
  if (found != strategy.made_.end() && !same_options(found->second->decl, state->decl)) {
    throw InvalidArgument(
        str("variable '", state->decl.name, "' is made twice, as ",
            described(found->second->decl, found->second->site), " and as ", described(state->decl, site),
            "; give one of them another name, or both the same options"),
        place);
  }
  VariableStore& store = strategy.variables();
  store.find_or_create(
      state->decl.name, state->decl.spec, [&] { return initial; }, role_of(state->decl));
  if (options.synchronization == Synchronization::kOnRead) {
    VariableRole role = role_of(state->decl);
    role.copy_of = state->decl.name;
    for (std::int64_t r = 1; r < strategy.num_replicas_in_sync(); ++r)
      store.find_or_create(
          copy_name(state->decl.name, r), state->decl.spec, [&] { return initial; }, role);
  }
  state_ = strategy.made_.emplace(state->decl.name, state).first->second;
}

const std::string& Variable::name() const { return state_->decl.name; }
const TensorSpec& Variable::spec() const { return state_->decl.spec; }
Synchronization Variable::synchronization() const { return state_->decl.synchronization; }
Aggregation Variable::aggregation() const { return state_->decl.aggregation; }
bool Variable::trainable() const { return state_->decl.trainable; }
Strategy& Variable::strategy() const { return state_->tracer->strategy(); }

VariableRef Variable::declare(GraphBuilder& builder, SourceSite site) const {
  check_strategy();
  return internal::BuilderAccess(builder).find_or_declare(
      internal::as_step_has_it(state_->decl, *state_->tracer), site);
}

Variable::operator VariableRef() const {
  if (GraphBuilder* builder = current_builder()) return declare(*builder, SourceSite::current());
  return {name()};
}

void Variable::check_strategy() const {
  if (!has_strategy() || internal::ContextFrame::current()->tracer() == state_->tracer) return;
  throw FailedPrecondition(str("variable '", name(),
                               "' mixes strategies: it belongs to another one than the active '",
                               internal::ContextFrame::current()->tracer()->name(), "'"));
}

VariableQuestion Variable::question(VariableAction action, ReplicaKind value) const {
  check_strategy();
  VariableQuestion question;
  question.synchronization = synchronization();
  question.aggregation = aggregation();
  question.context =
      current_context() == ContextKind::kDefault ? ContextKind::kCrossReplica : current_context();
  question.action = action;
  question.value = value;
  question.floating = is_floating(spec().dtype);
  question.replicas = state_->tracer->num_replicas_in_sync();
  question.may_drift = state_->tracer->may_drift(name());
  return question;
}

namespace internal {

VariableDecl as_step_has_it(VariableDecl decl, const Tracer& tracer) {
  if (tracer.num_replicas_in_sync() == 1 || !tracer.may_drift(decl.name)) return decl;
  if (decl.synchronization == Synchronization::kOnRead) return decl;
  decl.synchronization = Synchronization::kOnRead;
  decl.aggregation = Aggregation::kOnlyFirstReplica;
  return decl;
}

Tracer& tracer_of(const Variable& variable) { return *variable.state_->tracer; }

bool is_own(const Variable& variable) {
  return variable.synchronization() == Synchronization::kOnRead ||
         tracer_of(variable).may_drift(variable.name());
}

VariableMeaning accepted(const VariableQuestion& question, const std::string& name, const SourceSite& site) {
  const VariableAnswer answer = variable_rule(question);
  if (answer.meaning == VariableMeaning::kRefused) {
    throw InvalidArgument(str("variable '", name, "': ", answer.reason), place_of_variable(name, site));
  }
  return answer.meaning;
}

}  // namespace internal

using internal::accepted;

// --- where a step is traced

ErrorPlace Variable::place(const SourceSite& site) const { return place_of_variable(name(), site); }

GraphBuilder& Variable::require_trace(std::string_view only, std::string_view instead,
                                      const SourceSite& site) const {
  if (GraphBuilder* builder = current_builder()) return *builder;
  throw FailedPrecondition(
      str("variable '", name(), "' ", only, " only where a function is traced; ", instead), place(site));
}

Value Variable::read(SourceSite site) const {
  GraphBuilder& builder = require_trace("reads as a Value", "use value()", site);
  const VariableMeaning meaning =
      accepted(question(VariableAction::kRead, ReplicaKind::kSingle), name(), site);
  const VariableRef ref = declare(builder, site);
  const bool all = meaning == VariableMeaning::kSumCopies || meaning == VariableMeaning::kMeanCopies;
  if (!all || state_->tracer->num_replicas_in_sync() == 1) return builder.read(ref, site);
  const std::vector<PerReplica<Value>> copies = state_->tracer->replicate(
      {}, [&](std::span<const Value>) { return std::vector<Value>{builder.read(ref, site)}; },
      ContextKind::kUpdate, "read()", site);
  return reduce_replicas(meaning == VariableMeaning::kSumCopies ? ReduceOp::kSum : ReduceOp::kMean,
                         copies[0].values(), site);
}

Value Variable::assign(const Operand& value, SourceSite site) const {
  return change(VariableAction::kAssign, value, false, site);
}
Value Variable::assign_add(const Operand& delta, SourceSite site) const {
  return change(VariableAction::kAssignAdd, delta, false, site);
}
Value Variable::assign_sub(const Operand& delta, SourceSite site) const {
  return change(VariableAction::kAssignAdd, delta, true, site);
}

Value Variable::change(VariableAction action, const Operand& operand, bool negate, SourceSite site) const {
  GraphBuilder& builder = require_trace("takes Values", "give it a tensor", site);
  const auto here = internal::BuilderAccess(builder).made_at(site);
  const VariableRef ref = declare(builder, site);
  Value value = operand.value();
  if (operand.number()) value = builder.constant(Tensor::full(spec().dtype, Shape{}, *operand.number()));
  if (!value.valid()) throw InvalidArgument(str("variable '", name(), "' is assigned an empty value"));
  if (negate) value = neg(value);
  const VariableMeaning meaning = allowed(action, site);
  if (meaning == VariableMeaning::kShareEach) value = share_of(value, state_->tracer->num_replicas_in_sync());
  return apply(
      {value},
      [&](GraphBuilder& where, std::span<const Value> v) {
        const Value whole =
            v[0].shape().rank() < spec().shape.rank() ? broadcast_to(v[0], spec().shape) : v[0];
        return action == VariableAction::kAssign ? where.assign(ref, whole, site)
                                                 : where.assign_add(ref, whole, site);
      },
      site);
}

// In a replica it is known once the step is traced what is the same on all of them: check_assigns() decides
// about what is right for the one and wrong for the other.
VariableMeaning Variable::allowed(VariableAction action, const SourceSite& site) const {
  const VariableQuestion same = question(action, ReplicaKind::kSingle);
  if (!in_replica_context()) return accepted(same, name(), site);
  const VariableMeaning meaning = variable_rule(same).meaning;
  return meaning == VariableMeaning::kRefused
             ? accepted(question(action, ReplicaKind::kPerReplica), name(), site)
             : meaning;
}

// Integers are cut, as a cast does.
Value Variable::share_of(const Value& value, std::int64_t replicas) {
  const Value count =
      value.builder().constant(Tensor::full(value.dtype(), Shape{}, static_cast<double>(replicas)));
  return value / count;
}

Value Variable::apply(const std::vector<Value>& values,
                      const std::function<Value(GraphBuilder&, std::span<const Value>)>& make,
                      SourceSite site) const {
  GraphBuilder* builder = current_builder();
  if (current_context() != ContextKind::kCrossReplica) return make(*builder, values);
  const std::vector<PerReplica<Value>> arguments(values.begin(), values.end());
  const std::vector<PerReplica<Value>> results = state_->tracer->replicate(
      arguments, [&](std::span<const Value> v) { return std::vector<Value>{make(*builder, v)}; },
      ContextKind::kUpdate, "assign()", site);
  return results[0][0];
}

// --- by rows

Value Variable::scatter_add(const Operand& indices, const Operand& rows, SourceSite site) const {
  return scatter(RowChange::kAdd, indices, rows, false, site);
}
Value Variable::scatter_sub(const Operand& indices, const Operand& rows, SourceSite site) const {
  return scatter(RowChange::kAdd, indices, rows, true, site);
}
Value Variable::scatter_mul(const Operand& indices, const Operand& rows, SourceSite site) const {
  return scatter(RowChange::kMul, indices, rows, false, site);
}
Value Variable::scatter_div(const Operand& indices, const Operand& rows, SourceSite site) const {
  return scatter(RowChange::kDiv, indices, rows, false, site);
}
Value Variable::scatter_update(const Operand& indices, const Operand& rows, SourceSite site) const {
  return scatter(RowChange::kSet, indices, rows, false, site);
}
Value Variable::scatter_min(const Operand& indices, const Operand& rows, SourceSite site) const {
  return scatter(RowChange::kMin, indices, rows, false, site);
}
Value Variable::scatter_max(const Operand& indices, const Operand& rows, SourceSite site) const {
  return scatter(RowChange::kMax, indices, rows, false, site);
}

Value Variable::scatter(RowChange change, const Operand& indices, const Operand& rows, bool negate,
                        SourceSite site) const {
  static constexpr std::string_view kHow[] = {"add", "mul", "div", "set", "min", "max"};  // of assign_rows
  GraphBuilder& builder = require_trace("takes rows", "assign the whole outside", site);
  const auto here = internal::BuilderAccess(builder).made_at(site);
  if (spec().shape.rank() == 0) {
    throw InvalidArgument(str("variable '", name(), "' is a scalar, which has no rows: assign it"),
                          place(site));
  }
  const VariableRef ref = declare(builder, site);
  const bool combines = change <= RowChange::kDiv;  // each row may be changed by several replicas
  allowed(combines ? VariableAction::kScatter : VariableAction::kScatterSet, site);
  const Value where = check_indices(cast(indices.value_for("scatter"), DType::kI64), spec().shape[0]);
  const Value what = rows.value_for("scatter");
  return apply(
      {where, negate ? neg(what) : what},
      [&](GraphBuilder& target, std::span<const Value> v) {
        const std::string how(kHow[static_cast<std::size_t>(change)]);
        return target.op1("assign_rows", {v[0], v[1]}, {{"how", how}, {"variable", ref}},
                          name() + "/assign_rows", site);
      },
      site);
}

std::ostream& operator<<(std::ostream& out, const Variable& variable) {
  out << "Variable '" << variable.name() << "' " << variable.spec() << ", "
      << (internal::is_own(variable) ? "each replica's own" : "mirrored") << " on "
      << internal::tracer_of(variable).num_replicas_in_sync()
      << (internal::tracer_of(variable).num_replicas_in_sync() == 1 ? " replica" : " replicas");
  if (variable.aggregation() != Aggregation::kNone)
    out << ", aggregation " << to_string(variable.aggregation());
  return out << (variable.trainable() ? "" : ", not trainable");
}

}  // namespace lockstep
