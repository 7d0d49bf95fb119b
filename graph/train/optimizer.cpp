// graph/train/optimizer.cpp - optimizers: from a loss to the nodes that update its variables.
#include "lockstep/graph/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_set>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/kernels/updates.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {

OptimizerRule::~OptimizerRule() = default;

std::vector<VariableRef> trainable_variables(GraphBuilder& builder) {
  std::vector<VariableRef> variables;
  for (const VariableDecl& decl : internal::BuilderAccess(builder).outermost().graph().variables()) {
    if (decl.trainable && is_floating(decl.spec.dtype)) variables.push_back({decl.name});
  }
  return variables;
}

// --- one variable

struct VariableUpdate::Common {
  GraphBuilder& builder;
  const std::string& optimizer;
  VariableRef iterations;
  Value learning_rate;
  SourceSite site;  // where the update was asked for
  Value step = {};  // made when asked for
};

VariableUpdate::VariableUpdate(Common& common, const GradientAndVariable& what, TensorSpec spec)
    : common_(common), what_(what), spec_(std::move(spec)) {}

GraphBuilder& VariableUpdate::builder() const { return common_.builder; }
const Value& VariableUpdate::learning_rate() const { return common_.learning_rate; }

const Value& VariableUpdate::step() const {
  if (!common_.step.valid()) {
    const auto made_at = internal::BuilderAccess(builder()).made_at(common_.site);
    // A value of its own: an update that read the counter itself could not run in the stage that changes the
    // counter.
    common_.step = common_.builder.read(common_.iterations) + 1;
  }
  return common_.step;
}

VariableRef VariableUpdate::slot(const Slot& slot) const {
  VariableDecl decl;
  decl.name = str(variable().name, "/", common_.optimizer, "/", slot.name);
  decl.spec = {kernels::slot_dtype(spec_.dtype), spec_.shape};
  if (slot.initial != 0) decl.initial = Tensor::full(decl.spec.dtype, decl.spec.shape, slot.initial);
  decl.trainable = false;
  // A variable synchronized on read is each replica's own, and so are its slots.
  const VariableDecl* owner =
      internal::BuilderAccess(builder()).outermost().graph().find_variable(variable().name);
  if (owner != nullptr) decl.device = owner->device;
  if (owner != nullptr && owner->synchronization == Synchronization::kOnRead) {
    decl.synchronization = owner->synchronization;
    decl.aggregation = owner->aggregation;
  }
  return internal::BuilderAccess(builder()).find_or_declare(std::move(decl), common_.site);
}

NodeId VariableUpdate::make(std::string_view op, std::span<const Slot> slots,
                            std::vector<Attribute> attributes, bool with_step) const {
  const auto made_at = internal::BuilderAccess(builder()).made_at(common_.site);
  attributes.push_back({"variable", variable()});
  for (const Slot& one : slots) attributes.push_back({one.name, slot(one)});
  std::string name(op);
  std::vector<Value> inputs;
  const std::string by_rows = name + "_sparse";
  if (gradient().is_sparse() && OpRegistry::global().find(by_rows) != nullptr) {
    const IndexedSlices rows = gradient().slices();
    name = by_rows;
    inputs = {check_indices(rows.indices, spec_.shape[0]), rows.values};
  } else {
    inputs = {to_dense(gradient())};
  }
  inputs.push_back(learning_rate());
  if (with_step) inputs.push_back(step());
  return builder()
      .op(name, inputs, std::move(attributes), str(variable().name, "/", common_.optimizer))[0]
      .id()
      .node;
}

// --- all of them

Optimizer::Optimizer(std::string name, LearningRate learning_rate, std::shared_ptr<const OptimizerRule> rule)
    : name_(std::move(name)), learning_rate_(std::move(learning_rate)), rule_(std::move(rule)) {
  if (name_.empty()) throw InvalidArgument("an optimizer needs a name: its slots are named after it");
  if (rule_ == nullptr) throw InvalidArgument(str("optimizer '", name_, "' has no rule"));
}

VariableRef Optimizer::iterations(GraphBuilder& builder, SourceSite site) const {
  VariableDecl decl;
  decl.name = name_ + "/iterations";
  decl.spec = {DType::kI64, Shape{}};
  decl.aggregation = Aggregation::kOnlyFirstReplica;  // all replicas count the same steps
  decl.trainable = false;
  return internal::BuilderAccess(builder).find_or_declare(std::move(decl), site);
}

GradientsAndVariables Optimizer::compute_gradients(const Value& loss, std::span<const VariableRef> variables,
                                                   SourceSite site) const {
  if (variables.empty()) {
    throw InvalidArgument(str("compute_gradients: optimizer '", name_,
                              "' is given no variables; name at least one, or use ", "trainable_variables()"),
                          {{}, "compute_gradients", {}, site.file, site.line, -1});
  }
  const std::vector<Gradient> all = gradients(loss, variables, {.unconnected = Unconnected::kError}, site);
  GradientsAndVariables result;
  for (std::size_t i = 0; i < all.size(); ++i) result.push_back({all[i], variables[i]});
  return result;
}

namespace {

// Fails unless the gradient fits the variable; `place` is the caller's.
void check_gradient(const GradientAndVariable& one, const TensorSpec& variable, const ErrorPlace& place) {
  const bool sparse = one.gradient.is_sparse();
  const TensorSpec spec = sparse ? one.gradient.slices().values.spec() : one.gradient.dense().spec();
  bool fits = spec.dtype == variable.dtype && spec.shape.rank() == variable.shape.rank() &&
              (!sparse || variable.shape.rank() > 0);
  for (std::size_t axis = sparse ? 1 : 0; fits && axis < variable.shape.rank(); ++axis) {
    fits = spec.shape[axis] == kUnknown || spec.shape[axis] == variable.shape[axis];
  }
  if (fits) return;
  throw InvalidArgument(str("apply_gradients: variable '", one.variable.name, "' holds ", variable,
                            ", and its gradient has ", sparse ? "rows of " : "", spec),
                        place);
}

// Checks the list; returns the specs of the variables in its order.
std::vector<TensorSpec> check_list(std::span<const GradientAndVariable> list, const std::string& optimizer,
                                   const SourceSite& site) {
  const auto place = [&](const std::string& node) {
    return ErrorPlace{node, "apply_gradients", {}, site.file, site.line, -1};
  };
  if (list.empty()) {
    throw InvalidArgument(str("apply_gradients: optimizer '", optimizer,
                              "' is given an empty list; there is nothing to update"),
                          place({}));
  }
  std::vector<TensorSpec> specs;
  std::unordered_set<std::string_view, NameHash> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string& name = list[i].variable.name;
    if (!list[i].gradient.valid()) {
      throw InvalidArgument(
          str("apply_gradients: there is no gradient for variable '", name,
              "': nothing flows back to it; leave it out, or check what the loss depends on"),
          place(name));
    }
    const Value& value =
        list[i].gradient.is_sparse() ? list[i].gradient.slices().values : list[i].gradient.dense();
    const VariableDecl* decl =
        internal::BuilderAccess(value.builder()).outermost().graph().find_variable(name);
    if (decl == nullptr)
      throw InvalidArgument(str("apply_gradients: no variable '", name, "' is declared"), place(name));
    check_gradient(list[i], decl->spec, place(name));
    if (!names.insert(name).second) {
      throw InvalidArgument(
          str("apply_gradients: variable '", name, "' is in the list twice; add its gradients"), place(name));
    }
    specs.push_back(decl->spec);
  }
  return specs;
}

}  // namespace

std::vector<NodeId> Optimizer::apply_gradients(std::span<const GradientAndVariable> list,
                                               SourceSite site) const {
  const std::vector<TensorSpec> specs = check_list(list, name_, site);
  const Gradient& first = list[0].gradient;
  GraphBuilder& builder =
      internal::BuilderAccess((first.is_sparse() ? first.slices().values : first.dense()).builder())
          .innermost();
  const VariableRef counter = iterations(builder, site);
  const Value rate = learning_rate_.at(builder, counter, site);
  VariableUpdate::Common common{builder, name_, counter, rate, site};
  std::vector<NodeId> nodes;
  // Nodes that a rule makes by itself carry the rule's source lines.
  for (std::size_t i = 0; i < list.size(); ++i)
    nodes.push_back(rule_->update(VariableUpdate(common, list[i], specs[i])));
  const auto made_at = internal::BuilderAccess(builder).made_at(site);
  builder.assign_add(counter, builder.constant(std::int64_t{1}));
  return nodes;
}

std::vector<NodeId> Optimizer::minimize(const Value& loss, std::span<const VariableRef> variables,
                                        SourceSite site) const {
  return apply_gradients(compute_gradients(loss, variables, site), site);
}

// --- built-in optimizers

namespace {

// An op, its slots and its attributes are all there is to a built-in optimizer.
class OpRule : public OptimizerRule {
 public:
  OpRule(std::string op, std::vector<Slot> slots, std::vector<Attribute> attributes, bool with_step)
      : op_(std::move(op)),
        slots_(std::move(slots)),
        attributes_(std::move(attributes)),
        with_step_(with_step) {}
  NodeId update(const VariableUpdate& update) const override {
    return update.make(op_, slots_, attributes_, with_step_);
  }

 private:
  std::string op_;
  std::vector<Slot> slots_;
  std::vector<Attribute> attributes_;
  bool with_step_;
};

std::shared_ptr<const OptimizerRule> op_rule(std::string op, std::vector<Slot> slots,
                                             std::vector<Attribute> attributes, bool with_step = false) {
  return std::make_shared<OpRule>(std::move(op), std::move(slots), std::move(attributes), with_step);
}

std::shared_ptr<const OptimizerRule> adagrad_rule(const AdagradOptions& options) {
  if (!std::isfinite(options.initial_accumulator) || options.initial_accumulator < 0) {
    throw InvalidArgument(str("optimizer '", options.name, "': the initial accumulator is ",
                              options.initial_accumulator,
                              "; it must be finite, and 0 or more: its root is divided by"));
  }
  return op_rule("adagrad", {{"accumulator", options.initial_accumulator}}, {{"epsilon", options.epsilon}});
}

std::shared_ptr<const OptimizerRule> rmsprop_rule(const RmsPropOptions& options) {
  std::vector<Attribute> attributes = {{"decay", options.decay}, {"epsilon", options.epsilon}};
  if (!options.centered && options.momentum == 0)
    return op_rule("rmsprop", {{"mean_square"}}, std::move(attributes));
  attributes.push_back({"momentum", options.momentum});
  if (!options.centered)
    return op_rule("rmsprop_momentum", {{"mean_square"}, {"velocity"}}, std::move(attributes));
  return op_rule("rmsprop_centered", {{"mean_square"}, {"mean_gradient"}, {"velocity"}},
                 std::move(attributes));
}

}  // namespace

Sgd::Sgd(LearningRate learning_rate, std::string name)
    : Optimizer(std::move(name), std::move(learning_rate), op_rule("sgd", {}, {})) {}

Momentum::Momentum(LearningRate learning_rate, double momentum, bool nesterov, std::string name)
    : Optimizer(std::move(name), std::move(learning_rate),
                op_rule("momentum", {{"velocity"}}, {{"momentum", momentum}, {"nesterov", nesterov}})) {}

Adagrad::Adagrad(LearningRate learning_rate, const AdagradOptions& options)
    : Optimizer(options.name, std::move(learning_rate), adagrad_rule(options)) {}

RmsProp::RmsProp(LearningRate learning_rate, const RmsPropOptions& options)
    : Optimizer(options.name, std::move(learning_rate), rmsprop_rule(options)) {}

Adam::Adam(LearningRate learning_rate, AdamOptions options)
    : Optimizer(options.name, std::move(learning_rate),
                op_rule("adam", {{"m"}, {"v"}},
                        {{"beta1", options.beta1}, {"beta2", options.beta2}, {"epsilon", options.epsilon}},
                        true)) {}

AdamW::AdamW(LearningRate learning_rate, AdamWOptions options)
    : Optimizer(options.name, std::move(learning_rate),
                op_rule("adamw", {{"m"}, {"v"}},
                        {{"beta1", options.beta1},
                         {"beta2", options.beta2},
                         {"epsilon", options.epsilon},
                         {"weight_decay", options.weight_decay}},
                        true)) {}

GradientsAndVariables Optimizer::compute_gradients(const Value& loss,
                                                   std::initializer_list<VariableRef> variables,
                                                   SourceSite site) const {
  return compute_gradients(loss, std::span<const VariableRef>(variables.begin(), variables.size()), site);
}

std::vector<NodeId> Optimizer::apply_gradients(std::initializer_list<GradientAndVariable> gradients,
                                               SourceSite site) const {
  return apply_gradients(std::span<const GradientAndVariable>(gradients.begin(), gradients.size()), site);
}

std::vector<NodeId> Optimizer::minimize(const Value& loss, std::initializer_list<VariableRef> variables,
                                        SourceSite site) const {
  return minimize(loss, std::span<const VariableRef>(variables.begin(), variables.size()), site);
}

}  // namespace lockstep
