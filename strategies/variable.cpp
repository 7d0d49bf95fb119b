#include "lockstep/strategies/variable.h"

#include "lockstep/graph/ops.h"
#include "lockstep/graph/variable_role.h"
#include "lockstep/strategies/internal/at_once.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep {

struct Variable::State {
  VariableDecl decl;
  Strategy* strategy = nullptr;
};

namespace {

// The strategy a new variable belongs to.
Strategy& home() {
  Strategy* active = current_strategy();
  return active == nullptr ? default_strategy() : *active;
}

// A new variable may neither have the name of a copy of another, nor may others have the names of its copies.
void check_copy_names(const std::string& name, const Strategy& strategy, const ErrorPlace& place) {
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

}  // namespace

Variable::Variable(std::string name, const Tensor& initial, const VariableOptions& options, SourceSite site) {
  Strategy& strategy = home();
  const ErrorPlace place{name, "Variable", {}, site.file, site.line, -1};
  if (name.empty()) throw InvalidArgument("a variable needs a name", place);
  if (!initial.defined()) throw InvalidArgument(str("variable '", name, "' needs an initial value"), place);
  const Decision decision =
      can_make_variable(options.synchronization, options.aggregation, strategy.num_replicas_in_sync());
  if (!decision) throw InvalidArgument(str("variable '", name, "': ", decision.reason()), place);
  const bool exists = strategy.variables().contains(name);
  if (exists && current_builder() == nullptr) {
    throw InvalidArgument(str("variable '", name, "' exists already in this strategy; give it another name"),
                          place);
  }
  if (!exists) check_copy_names(name, strategy, place);
  auto state = std::make_shared<State>();
  state->strategy = &strategy;
  state->decl.name = std::move(name);
  state->decl.spec = initial.spec();
  state->decl.initial = initial.clone();
  state->decl.synchronization = options.synchronization;
  state->decl.aggregation = options.aggregation;
  state->decl.trainable = options.trainable.value_or(options.synchronization != Synchronization::kOnRead);
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
  state_ = std::move(state);
}

const std::string& Variable::name() const { return state_->decl.name; }
const TensorSpec& Variable::spec() const { return state_->decl.spec; }
Synchronization Variable::synchronization() const { return state_->decl.synchronization; }
Aggregation Variable::aggregation() const { return state_->decl.aggregation; }
bool Variable::trainable() const { return state_->decl.trainable; }
Strategy& Variable::strategy() const { return *state_->strategy; }

VariableRef Variable::declare(GraphBuilder& builder, SourceSite site) const {
  check_strategy();
  return builder.outermost().find_or_declare(state_->decl, site);
}

Variable::operator VariableRef() const {
  if (GraphBuilder* builder = current_builder()) return declare(*builder, SourceSite::current());
  return {name()};
}

void Variable::check_strategy() const {
  if (!has_strategy() || current_strategy() == state_->strategy) return;
  throw FailedPrecondition(str("variable '", name(),
                               "' mixes strategies: it belongs to another one than the active '",
                               current_strategy()->name(), "'"));
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
  question.replicas = state_->strategy->num_replicas_in_sync();
  return question;
}

namespace {

VariableMeaning accepted(const VariableQuestion& question, const std::string& name, const SourceSite& site) {
  const VariableAnswer answer = variable_rule(question);
  if (answer.meaning == VariableMeaning::kRefused) {
    throw InvalidArgument(str("variable '", name, "': ", answer.reason),
                          ErrorPlace{name, "Variable", {}, site.file, site.line, -1});
  }
  return answer.meaning;
}

}  // namespace

// --- where a step is traced

Value Variable::read(SourceSite site) const {
  GraphBuilder* builder = current_builder();
  if (builder == nullptr) {
    throw FailedPrecondition(
        str("variable '", name(), "' reads as a Value only where a function is traced; use value()"),
        ErrorPlace{name(), "Variable", {}, site.file, site.line, -1});
  }
  const VariableMeaning meaning =
      accepted(question(VariableAction::kRead, ReplicaKind::kSingle), name(), site);
  const VariableRef ref = declare(*builder, site);
  const bool all = meaning == VariableMeaning::kSumCopies || meaning == VariableMeaning::kMeanCopies;
  if (!all || state_->strategy->num_replicas_in_sync() == 1) return builder->innermost().read(ref, site);
  const std::vector<PerReplica<Value>> copies = state_->strategy->replicate(
      {}, [&](std::span<const Value>) { return std::vector<Value>{builder->innermost().read(ref, site)}; },
      ContextKind::kUpdate, site);
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
  GraphBuilder* builder = current_builder();
  if (builder == nullptr) {
    throw FailedPrecondition(
        str("variable '", name(), "' takes Values only where a function is traced; give it a tensor"),
        ErrorPlace{name(), "Variable", {}, site.file, site.line, -1});
  }
  const VariableRef ref = declare(*builder, site);
  Value value = operand.value();
  if (operand.number()) {
    value = builder->innermost().constant(Tensor::full(spec().dtype, Shape{}, *operand.number()), "constant",
                                          site);
  }
  if (!value.valid()) throw InvalidArgument(str("variable '", name(), "' is assigned an empty value"));
  if (negate) value = neg(value);
  const auto apply = [&](GraphBuilder& where, const Value& v) {
    const Value whole = v.shape().rank() < spec().shape.rank() ? broadcast_to(v, spec().shape) : v;
    return action == VariableAction::kAssign ? where.assign(ref, whole, site)
                                             : where.assign_add(ref, whole, site);
  };
  if (in_replica_context()) {
    // What is the same on all replicas is known once the step is traced: what is right for the one and wrong for the other
    // is decided then.
    const VariableQuestion same = question(action, ReplicaKind::kSingle),
                           differs = question(action, ReplicaKind::kPerReplica);
    const bool same_refused = variable_rule(same).meaning == VariableMeaning::kRefused;
    const bool differs_refused = variable_rule(differs).meaning == VariableMeaning::kRefused;
    if (same_refused && differs_refused) accepted(differs, name(), site);
    const Value made = apply(builder->innermost(), value);
    if (same_refused != differs_refused && operand.number() != 0.0) {
      const Node& node = builder->innermost().graph().node(made.id().node);
      internal::ContextFrame::current()->note_assignment(node.provenance().identity);
    }
    return made;
  }
  const VariableMeaning meaning = accepted(question(action, ReplicaKind::kSingle), name(), site);
  if (current_context() == ContextKind::kUpdate) return apply(builder->innermost(), value);
  if (meaning == VariableMeaning::kShareEach) {
    const auto replicas = static_cast<double>(state_->strategy->num_replicas_in_sync());
    value = cast(cast(value, DType::kF64) / replicas, value.dtype());
  }
  const PerReplica<Value> argument(value);
  const std::vector<PerReplica<Value>> results = state_->strategy->replicate(
      {&argument, 1},
      [&](std::span<const Value> values) {
        return std::vector<Value>{apply(builder->innermost(), values[0])};
      },
      ContextKind::kUpdate, site);
  return results[0][0];
}

// --- at once

namespace {

void require_no_trace(const std::string& name) {
  if (current_builder() == nullptr) return;
  throw FailedPrecondition(str("variable '", name,
                               "' is asked for its value while a function is traced: use read(), or do it ",
                               "outside"));
}

}  // namespace

PerReplica<Tensor> Variable::copies() const {
  require_no_trace(name());
  VariableStore& store = state_->strategy->variables();
  std::vector<Tensor> values;
  for (std::int64_t r = 0; r < state_->strategy->num_replicas_in_sync(); ++r) {
    const std::string copy = copy_name(name(), r);
    values.push_back(store.contains(copy) ? store.value(copy) : values[0]);
  }
  if (values.size() == 1) return values[0];
  return PerReplica<Tensor>(std::move(values), synchronization() == Synchronization::kOnRead
                                                   ? ReplicaKind::kPerReplica
                                                   : ReplicaKind::kMirrored);
}

Tensor Variable::value() const {
  require_no_trace(name());
  const VariableMeaning meaning = accepted(question(VariableAction::kRead, ReplicaKind::kSingle), name(), {});
  if (meaning != VariableMeaning::kSumCopies && meaning != VariableMeaning::kMeanCopies)
    return state_->strategy->variables().value(name());
  return state_->strategy->reduce(meaning == VariableMeaning::kSumCopies ? ReduceOp::kSum : ReduceOp::kMean,
                                  copies());
}

void Variable::assign(const Tensor& value) const { change_now(VariableAction::kAssign, value, false); }
void Variable::assign_add(const Tensor& delta) const { change_now(VariableAction::kAssignAdd, delta, false); }
void Variable::assign_sub(const Tensor& delta) const { change_now(VariableAction::kAssignAdd, delta, true); }

void Variable::change_now(VariableAction action, const Tensor& value, bool negate) const {
  require_no_trace(name());
  if (!value.defined() || value.spec() != spec()) {
    throw InvalidArgument(str("variable '", name(), "' holds ", spec(), ", got ",
                              value.defined() ? to_string(value.spec()) : "an empty tensor"));
  }
  const VariableMeaning meaning = accepted(question(action, ReplicaKind::kSingle), name(), {});
  const std::int64_t replicas = state_->strategy->num_replicas_in_sync();
  VariableStore& store = state_->strategy->variables();
  for (std::int64_t r = 0; r < replicas; ++r) {
    const std::string copy = copy_name(name(), r);
    if (!store.contains(copy) || (r > 0 && store.is_alias(copy))) continue;
    const Tensor operands[] = {value, store.value(copy)};
    store.set(copy, internal::at_once(operands, [&](GraphBuilder&, const std::vector<Value>& v) {
                Value change = negate ? neg(v[0]) : v[0];
                if (meaning == VariableMeaning::kShareEach) {
                  // Integers are cut, as a cast does.
                  change = cast(cast(change, DType::kF64) / static_cast<double>(replicas), change.dtype());
                }
                return action == VariableAction::kAssign ? identity(change) : v[1] + change;
              }));
  }
}

}  // namespace lockstep
