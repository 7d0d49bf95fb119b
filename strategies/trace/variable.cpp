// strategies/trace/variable.cpp - named state of a strategy: a handle that reads as a value while a step is
// traced.
#include "lockstep/strategies/trace/variable.h"

#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/updates.h"
#include "lockstep/graph/run/variable_role.h"
#include "lockstep/strategies/trace/internal/at_once.h"
#include "lockstep/strategies/trace/internal/variable_state.h"
#include "lockstep/strategies/trace/tracer.h"

namespace lockstep {

namespace {

// The strategy a new variable belongs to.
internal::Tracer& home() {
  const internal::ContextFrame* frame = internal::ContextFrame::current();
  return frame == nullptr ? internal::default_tracer() : *frame->tracer();
}

// A new variable must not have the name of another's copy, and no other may have the name of one of its
// copies.
void check_copy_names(const std::string& name, const internal::Tracer& strategy, const ErrorPlace& place) {
  for (std::int64_t r = 1; r < strategy.num_local_replicas(); ++r) {
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
  return a.spec == b.spec && a.slice_axis == b.slice_axis && a.slice_extent == b.slice_extent &&
         a.aggregation == b.aggregation && a.trainable == b.trainable &&
         without_auto(a.synchronization) == without_auto(b.synchronization);
}

// Slice `r` of a value cut into `replicas` slices, padded with zeros.
Tensor slice_of(const Tensor& whole, std::int64_t axis, std::int64_t r, std::int64_t replicas,
                const SourceSite& site) {
  const std::int64_t extent = whole.shape()[static_cast<std::size_t>(axis)];
  const std::int64_t rows = (extent + replicas - 1) / replicas;
  std::vector<std::int64_t> begin(whole.shape().rank(), 0), end, low(begin), high(begin);
  end.assign(whole.shape().dims().begin(), whole.shape().dims().end());
  const auto at = static_cast<std::size_t>(axis);
  begin[at] = std::min(extent, r * rows);
  end[at] = std::min(extent, (r + 1) * rows);
  high[at] = rows - (end[at] - begin[at]);
  return internal::at_once({&whole, 1}, site, [&](GraphBuilder&, const std::vector<Value>& v) {
    return pad(slice(v[0], begin, end), low, high);
  });
}

// The initial values of the copies: one for all, or one for each replica.
std::vector<Tensor> initial_copies(const std::string& name, const PerReplica<Tensor>& initial,
                                   const VariableOptions& options, const internal::Tracer& strategy,
                                   const ErrorPlace& place) {
  const std::int64_t replicas = strategy.num_local_replicas(), all = strategy.num_replicas_in_sync();
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(str("variable '", name, "' ", why), place);
  };
  for (const Tensor& value : initial) {
    if (!value.defined()) refuse("needs an initial value");
    if (value.spec() != initial[0].spec())
      refuse(str("starts as ", initial[0].spec(), " on one replica and as ", value.spec(), " on another"));
  }
  if (initial.empty()) refuse("needs an initial value");
  const Decision decision = can_make_variable(options.synchronization, options.aggregation, all);
  if (!decision) throw InvalidArgument(str("variable '", name, "': ", decision.reason()), place);
  if (initial.kind() == ReplicaKind::kPerReplica) {
    if (options.synchronization != Synchronization::kOnRead && all > 1)
      refuse(
          "is kept equal on all replicas, and cannot start with another value on each: use "
          "Synchronization::kOnRead");
    if (static_cast<std::int64_t>(initial.size()) != replicas)
      refuse(str("has ", counted(initial.size(), "initial value"), " for ", counted(replicas, "replica")));
  }
  if (options.aggregation != Aggregation::kSlices) {
    std::vector<Tensor> own;
    for (const Tensor& value : initial) own.push_back(value.clone());
    return own;
  }
  const auto rank = static_cast<std::int64_t>(initial[0].shape().rank());
  if (all != replicas) refuse("has slices for copies, which several workers do not have yet");
  if (initial.kind() == ReplicaKind::kPerReplica)
    refuse("has slices for copies: give it the whole value, which is cut into them");
  if (options.slice_axis < 0 || options.slice_axis >= rank)
    refuse(str("has no axis ", options.slice_axis, " to be cut along: it is ", initial[0].spec()));
  std::vector<Tensor> slices;
  for (std::int64_t r = 0; r < replicas; ++r)
    slices.push_back(
        slice_of(initial[0], options.slice_axis, r, replicas, {place.file.c_str(), "", place.line}));
  return slices;
}

// Has a pass given it another dtype or shape?
bool is_reshaped(const VariableDecl& decl, const internal::Tracer& tracer) {
  const StoredVariable* stored = tracer.variables().find(decl.name);
  return stored != nullptr && stored->reshaped();
}

}  // namespace

Variable::Variable(std::string name, const Tensor& initial, const VariableOptions& options, SourceSite site)
    : Variable(std::move(name), PerReplica<Tensor>(initial), options, site) {}

Variable::Variable(std::string name, const PerReplica<Tensor>& initial, const VariableOptions& options,
                   SourceSite site) {
  internal::Tracer& strategy = home();
  if (name.empty()) throw InvalidArgument("a variable needs a name", place_of_variable(name, site));
  if (GraphBuilder* builder = current_builder()) name.insert(0, internal::BuilderAccess(*builder).scope());
  const ErrorPlace place = place_of_variable(name, site);
  std::vector<Tensor> starts = initial_copies(name, initial, options, strategy, place);
  // One value on all workers: that of the first.
  if (strategy.is_part() && options.synchronization != Synchronization::kOnRead &&
      !strategy.variables().contains(name)) {
    Graph all = internal::graph_of(starts, site, [&](GraphBuilder&, const std::vector<Value>& v) {
      return strategy.from_chief(v[0], site);
    });
    starts = {strategy.compute(std::move(all), starts, site)};
  }
  auto state = std::make_shared<internal::VariableState>();
  state->tracer = &strategy;
  state->site = site;
  state->decl.name = std::move(name);
  state->decl.spec = starts[0].spec();
  state->decl.initial = starts[0];
  state->decl.synchronization = options.synchronization;
  state->decl.aggregation = options.aggregation;
  state->decl.trainable = options.trainable.value_or(options.synchronization != Synchronization::kOnRead);
  state->decl.made_at = str(site.file, ":", site.line);
  if (options.aggregation == Aggregation::kSlices) {
    state->decl.slice_axis = static_cast<std::int32_t>(options.slice_axis);
    state->decl.slice_extent = initial[0].shape()[static_cast<std::size_t>(options.slice_axis)];
  }
  // Held from the check whether the name is free until it is taken: two threads may want it.
  const std::lock_guard<std::mutex> lock(strategy.made_mutex_);
  const bool exists = strategy.variables().contains(state->decl.name);
  if (exists && current_builder() == nullptr) {
    const StoredVariable& there = *strategy.variables().find(state->decl.name);
    throw InvalidArgument(str("variable '", state->decl.name, "' exists already in this strategy, as ",
                              there.spec(), there.made_at().empty() ? "" : str(" (", there.made_at(), ")"),
                              "; give the new one, ", state->decl.spec, ", another name"),
                          place);
  }
  if (!exists) {
    strategy.made_.erase(state->decl.name);  // if it was erased from the store
    check_copy_names(state->decl.name, strategy, place);
  }
  const auto found = strategy.made_.find(state->decl.name);
  if (found != strategy.made_.end() && !same_options(found->second->decl, state->decl)) {
    throw InvalidArgument(
        str("variable '", state->decl.name, "' is made twice, as ",
            described(found->second->decl, found->second->site), " and as ", described(state->decl, site),
            "; give one of them another name, or both the same options"),
        place);
  }
  if (found != strategy.made_.end() && is_reshaped(state->decl, strategy)) {
    state_ = found->second;
    return;
  }
  VariableStore& store = strategy.variables();
  // A variable that was made before keeps the rule that the store has: a pass may have declared it anew.
  const VariableRole own = found == strategy.made_.end() ? role_of(state->decl) : VariableRole();
  store.find_or_create(
      state->decl.name, state->decl.spec, [&] { return starts[0]; }, own, state->decl.made_at,
      SameStart::kAny, strategy.variable_home(0));
  if (options.synchronization == Synchronization::kOnRead) {
    VariableRole role = own;
    role.copy_of = state->decl.name;
    for (std::int64_t r = 1; r < strategy.num_local_replicas(); ++r)
      store.find_or_create(
          copy_name(state->decl.name, r), state->decl.spec,
          [&] { return starts[static_cast<std::size_t>(r) % starts.size()]; }, role, state->decl.made_at,
          SameStart::kAny, strategy.variable_home(r));
  }
  state_ = strategy.made_.emplace(state->decl.name, state).first->second;
}

const std::string& Variable::name() const { return state_->decl.name; }
const TensorSpec& Variable::spec() const {
  const StoredVariable* stored = state_->tracer->variables().find(name());
  return stored == nullptr ? state_->decl.spec : stored->spec();
}
Synchronization Variable::synchronization() const {
  return internal::declaration_in_store(state_->decl, *state_->tracer).synchronization;
}
Aggregation Variable::aggregation() const {
  return internal::declaration_in_store(state_->decl, *state_->tracer).aggregation;
}
bool Variable::trainable() const { return state_->decl.trainable; }
Strategy& Variable::strategy() const { return state_->tracer->strategy(); }

VariableRef Variable::declare(GraphBuilder& builder, SourceSite site) const {
  check_strategy(site);
  return internal::BuilderAccess(builder).find_or_declare(
      internal::declaration_in_step(state_->decl, *state_->tracer), site);
}

Variable::operator VariableRef() const {
  if (GraphBuilder* builder = current_builder()) return declare(*builder, state_->site);
  return {name()};
}

void Variable::check_strategy(const SourceSite& site) const {
  if (!has_strategy() || internal::ContextFrame::current()->tracer() == state_->tracer) return;
  throw FailedPrecondition(str("variable '", name(), "' mixes strategies: it belongs to another one than ",
                               "the active '", internal::ContextFrame::current()->tracer()->name(), "'"),
                           place(site));
}

VariableQuestion Variable::question(VariableAction action, ReplicaKind value, const SourceSite& site) const {
  check_strategy(site);
  VariableQuestion question;
  const bool drifts = state_->tracer->may_drift(name());
  const bool as_made = drifts || (current_builder() != nullptr && is_reshaped(state_->decl, *state_->tracer));
  question.synchronization = as_made ? state_->decl.synchronization : synchronization();
  question.aggregation = as_made ? state_->decl.aggregation : aggregation();
  question.context =
      current_context() == ContextKind::kDefault ? ContextKind::kCrossReplica : current_context();
  question.action = action;
  question.value = value;
  question.floating = is_floating(spec().dtype);
  question.replicas = state_->tracer->num_replicas_in_sync();
  question.may_drift = drifts;
  return question;
}

namespace internal {

VariableDecl declaration_in_store(VariableDecl decl, const Tracer& tracer) {
  const StoredVariable* stored = tracer.variables().find(decl.name);
  if (stored == nullptr) return decl;
  declare_as(tracer.variables().role(decl.name), decl);
  if (decl.spec != stored->spec()) {  // replaced, or made anew
    decl.spec = stored->spec();
    decl.initial = Tensor();
  }
  return decl;
}

VariableDecl declaration_in_step(VariableDecl decl, const Tracer& tracer) {
  if (is_reshaped(decl, tracer)) return decl;  // the pass that did it will do it again
  decl = declaration_in_store(std::move(decl), tracer);
  if (tracer.num_replicas_in_sync() == 1 || !tracer.may_drift(decl.name)) return decl;
  if (decl.synchronization == Synchronization::kOnRead) return decl;
  decl.synchronization = Synchronization::kOnRead;
  decl.aggregation = Aggregation::kNone;
  return decl;
}

Tracer& tracer_of(const Variable& variable) { return *variable.state_->tracer; }

bool has_own_copies(const Variable& variable) {
  return variable.synchronization() == Synchronization::kOnRead ||
         tracer_of(variable).may_drift(variable.name());
}

VariableMeaning accepted(const VariableQuestion& question, const ErrorPlace& place) {
  const VariableAnswer answer = variable_rule(question);
  if (answer.meaning == VariableMeaning::kRefused)
    throw InvalidArgument(str("variable '", place.node, "': ", answer.reason), place);
  return answer.meaning;
}

}  // namespace internal

using internal::accepted;

// --- while a step is traced

ErrorPlace Variable::place(const SourceSite& site) const {
  ErrorPlace place = place_of_variable(name(), site);
  if (str(site.file, ":", site.line) == state_->decl.made_at) return place;
  place.called = true;
  place.made_at = state_->decl.made_at;
  return place;
}

GraphBuilder& Variable::require_trace(std::string_view only, std::string_view instead,
                                      const SourceSite& site) const {
  if (GraphBuilder* builder = current_builder()) return *builder;
  throw FailedPrecondition(
      str("variable '", name(), "' ", only, " only where a function is traced; ", instead), place(site));
}

Value Variable::read(SourceSite site) const {
  GraphBuilder& builder = require_trace("reads as a Value", "use value()", site);
  const VariableMeaning meaning =
      accepted(question(VariableAction::kRead, ReplicaKind::kSingle, site), place(site));
  const VariableRef ref = declare(builder, site);
  const bool joins = meaning == VariableMeaning::kJoinCopies;
  const bool all = joins || meaning == VariableMeaning::kSumCopies || meaning == VariableMeaning::kMeanCopies;
  if (meaning == VariableMeaning::kFirstCopy && internal::has_own_copies(*this))
    return state_->tracer->from_chief(builder.read(ref, site), site);
  if (!all || state_->tracer->num_replicas_in_sync() == 1) return builder.read(ref, site);
  const std::vector<PerReplica<Value>> copies = state_->tracer->replicate(
      {}, [&](std::span<const Value>) { return std::vector<Value>{builder.read(ref, site)}; },
      ContextKind::kUpdate, "read()", site);
  if (joins) {
    const auto here = internal::BuilderAccess(builder).made_at(site);
    const VariableDecl decl = internal::declaration_in_step(state_->decl, *state_->tracer);
    std::vector<std::int64_t> begin(decl.spec.shape.rank(), 0);
    std::vector<std::int64_t> end(decl.spec.shape.dims().begin(), decl.spec.shape.dims().end());
    end[static_cast<std::size_t>(decl.slice_axis)] = decl.slice_extent;
    return slice(concat(copies[0].values(), decl.slice_axis), begin, end);
  }
  const ReduceOp op = meaning == VariableMeaning::kSumCopies ? ReduceOp::kSum : ReduceOp::kMean;
  return state_->tracer->combined(op, copies[0].values(), false, site);
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
  const TensorSpec spec = internal::declaration_in_step(state_->decl, *state_->tracer).spec;
  Value value = operand.value();
  if (operand.number()) value = builder.constant(Tensor::full(spec.dtype, Shape{}, *operand.number()));
  if (!value.valid())
    throw InvalidArgument(str("variable '", name(), "' is assigned an empty value"), place(site));
  if (negate) value = neg(value);
  const VariableMeaning meaning = allowed(action, site);
  return apply(
      {value},
      [&](GraphBuilder& where, std::span<const Value> v) {
        const Value mine = meaning == VariableMeaning::kShareEach ? share_of(v[0]) : v[0];
        const Value whole = mine.shape().rank() < spec.shape.rank() ? broadcast_to(mine, spec.shape) : mine;
        return action == VariableAction::kAssign ? where.assign(ref, whole, site)
                                                 : where.assign_add(ref, whole, site);
      },
      site);
}

// In a replica it is known only once the step is traced which values are the same on all replicas.
// check_assigns() decides about actions that are right for such values and wrong for others, or the reverse.
VariableMeaning Variable::allowed(VariableAction action, const SourceSite& site) const {
  const VariableQuestion same = question(action, ReplicaKind::kSingle, site);
  if (!in_replica_context()) return accepted(same, place(site));
  const VariableMeaning meaning = variable_rule(same).meaning;
  return meaning == VariableMeaning::kRefused
             ? accepted(question(action, ReplicaKind::kPerReplica, site), place(site))
             : meaning;
}

// This copy's share of a value that is the sum of all copies. For integers the first copies get the
// remainder.
Value Variable::share_of(const Value& value) const {
  const std::int64_t replicas = state_->tracer->num_replicas_in_sync();
  GraphBuilder& builder = value.builder();
  const auto number = [&](DType dtype, std::int64_t n) {
    return builder.constant(Tensor::full(dtype, Shape{}, static_cast<double>(n)));
  };
  if (!is_integer(value.dtype()) || replicas == 1) return value / number(value.dtype(), replicas);
  const Value wide = cast(value, DType::kI64), count = number(DType::kI64, replicas);
  const Value share = wide / count;
  const Value rest = wide - share * count;
  const Value extra =
      where(less(cast(replica_id(builder), DType::kI64), abs(rest)), sign(rest), number(DType::kI64, 0));
  return cast(share + extra, value.dtype());
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
  const TensorSpec spec = internal::declaration_in_step(state_->decl, *state_->tracer).spec;
  if (spec.shape.rank() == 0) {
    throw InvalidArgument(str("variable '", name(), "' is a scalar, which has no rows: assign it"),
                          place(site));
  }
  const VariableRef ref = declare(builder, site);
  const bool combines = change <= RowChange::kDiv;  // several replicas may change the same row
  allowed(combines ? VariableAction::kScatter : VariableAction::kScatterSet, site);
  Value what = rows.value_for("scatter");
  const Value places = cast(indices.value_for("scatter"), DType::kI64);
  // There must be as many indices as rows: if the counts are known only when the step runs, each replica
  // checks its own.
  const bool open = places.shape().rank() == 1 && what.shape().rank() > 0 &&
                    (places.shape()[0] == kUnknown || what.shape()[0] == kUnknown);
  const Value where =
      open ? check_indices(places, spec.shape[0], what) : check_indices(places, spec.shape[0]);
  if (change == RowChange::kDiv && is_integer(spec.dtype)) what = check_divisors(what);
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
      << (internal::has_own_copies(variable) ? "each replica's own" : "mirrored") << " on "
      << internal::tracer_of(variable).num_replicas_in_sync()
      << (internal::tracer_of(variable).num_replicas_in_sync() == 1 ? " replica" : " replicas");
  if (variable.aggregation() != Aggregation::kNone)
    out << ", aggregation " << to_string(variable.aggregation());
  return out << (variable.trainable() ? "" : ", not trainable");
}

}  // namespace lockstep
