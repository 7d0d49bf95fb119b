// graph/train/optimizer.h - optimizers: from a loss to the nodes that update its variables.
//
//   const Adam adam(1e-3);
//   adam.minimize(loss, {w, bias});                              // in one go, or in steps:
//   GradientsAndVariables grads = adam.compute_gradients(loss, {w, bias});
//   adam.apply_gradients(clip_by_global_norm(grads, 1.0).gradients);
//
// An Optimizer is a cheap handle that never changes: copy it, capture it in [=], use it for several graphs.
// Its state lies in variables of the graph that is built: slots "<variable>/<optimizer>/<slot>", not
// trainable, on the device of their variable and made when first needed, and "<optimizer>/iterations", an i64
// scalar that each apply_gradients of a step raises by 1; schedules and Adam's bias correction follow from it.
// Two optimizers of one kind in one graph share them unless they have different names. Under a strategy slots
// follow their variable: mirrored for a mirrored one, each replica's own for one synchronized on read.
//
// Slices (the gradient of a gather) are applied only to the named rows, and only the slots of these change
// ("lazy"): a row that is not named does not decay. A row that is named twice counts with the sum. Indices
// out of range fail the step.
//
// A custom optimizer is an OptimizerRule, see below.
//
// Errors (InvalidArgument, with the caller's line): a variable that the loss does not depend on, a gradient
// of another spec than its variable, an empty list, a slot whose name another variable has. If the rule of a
// later variable throws, the updates of earlier ones are already in the graph: give the builder up. Thread
// safety: as the builder; the optimizer itself may be shared.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/source_site.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/train/schedules.h"

namespace lockstep {

struct GradientAndVariable {
  Gradient gradient;
  VariableRef variable;
};
using GradientsAndVariables = std::vector<GradientAndVariable>;

// The trainable floating variables that the builder's graph declares, in the order of their declarations.
LOCKSTEP_API std::vector<VariableRef> trainable_variables(GraphBuilder& builder);

// A slot and what it holds at first.
struct Slot {
  std::string name;
  double initial = 0;
};

// What a rule is asked to update, and how it makes the node. Valid during the call.
class LOCKSTEP_API VariableUpdate {
 public:
  struct Common;  // of all variables of one apply_gradients
  VariableUpdate(Common& common, const GradientAndVariable& what, TensorSpec spec);

  GraphBuilder& builder() const;
  const VariableRef& variable() const { return what_.variable; }
  const TensorSpec& spec() const { return spec_; }  // of the variable
  const Gradient& gradient() const { return what_.gradient; }
  const Value& learning_rate() const;  // f32 or f64 scalar
  const Value& step() const;           // i64 scalar, 1 in the first step
  // The variable of the slot: of the variable's shape, and f32 (f64 for an f64 variable).
  VariableRef slot(const Slot& slot) const;

  // A node of an update op: attributes `variable`, one per slot, and those given; inputs (gradient,
  // learning_rate), then the step if `with_step`. For slices the op is <op>_sparse with inputs (indices,
  // rows, learning_rate...), the indices checked; if that op is not registered, the gradient is made dense.
  NodeId make(std::string_view op, std::span<const Slot> slots, std::vector<Attribute> attributes = {},
              bool with_step = false) const;

 private:
  Common& common_;
  const GradientAndVariable& what_;
  TensorSpec spec_;
};

// How one variable is updated. A custom optimizer:
//
//   struct SignRule : OptimizerRule {  // w -= lr * sign(g), by an op registered as sign_descent
//     NodeId update(const VariableUpdate& u) const override { return u.make("sign_descent", {}); }
//   };
//   const Optimizer sign("sign", 0.01, std::make_shared<SignRule>());
//
// The op has OpTraits::updates_variable with `gradient` set, and is infallible so that it may run in the
// commit stage. Rules that need no op of their own make ordinary nodes and end in builder().assign_add().
class LOCKSTEP_API OptimizerRule {
 public:
  OptimizerRule() = default;
  virtual ~OptimizerRule();
  OptimizerRule(const OptimizerRule&) = delete;
  OptimizerRule& operator=(const OptimizerRule&) = delete;
  // Makes the nodes and returns the one that updates the variable. One rule may be used by several threads at
  // once.
  virtual NodeId update(const VariableUpdate& update) const = 0;
};

class LOCKSTEP_API Optimizer {
 public:
  // The name is part of the names of slots and of `iterations`.
  Optimizer(std::string name, LearningRate learning_rate, std::shared_ptr<const OptimizerRule> rule);

  const std::string& name() const { return name_; }
  // The variable that counts the steps; declared if the builder does not have it yet.
  VariableRef iterations(GraphBuilder& builder, SourceSite site = SourceSite::current()) const;

  GradientsAndVariables compute_gradients(const Value& loss, std::span<const VariableRef> variables,
                                          SourceSite site = SourceSite::current()) const;
  GradientsAndVariables compute_gradients(const Value& loss, std::initializer_list<VariableRef> variables,
                                          SourceSite site = SourceSite::current()) const;
  // The updating nodes, in the order of the list. Nodes that use them or read the variables afterwards see
  // the new values, and keep the update from running in place.
  std::vector<NodeId> apply_gradients(std::span<const GradientAndVariable> gradients,
                                      SourceSite site = SourceSite::current()) const;
  std::vector<NodeId> apply_gradients(std::initializer_list<GradientAndVariable> gradients,
                                      SourceSite site = SourceSite::current()) const;
  // compute_gradients(), then apply_gradients().
  std::vector<NodeId> minimize(const Value& loss, std::span<const VariableRef> variables,
                               SourceSite site = SourceSite::current()) const;
  std::vector<NodeId> minimize(const Value& loss, std::initializer_list<VariableRef> variables,
                               SourceSite site = SourceSite::current()) const;

 private:
  std::string name_;
  LearningRate learning_rate_;
  std::shared_ptr<const OptimizerRule> rule_;
};

// --- built-in optimizers; their formulas are in core/kernels/updates.h

// Plain gradient descent. No slots.
class LOCKSTEP_API Sgd : public Optimizer {
 public:
  explicit Sgd(LearningRate learning_rate, std::string name = "sgd");
};

// Gradient descent with a velocity: the momentum is usually 0.9 and at most 1; Nesterov's form looks one step
// ahead. One slot.
class LOCKSTEP_API Momentum : public Optimizer {
 public:
  explicit Momentum(LearningRate learning_rate, double momentum = 0.9, bool nesterov = false,
                    std::string name = "momentum");
};

struct AdagradOptions {
  double initial_accumulator = 0.1;  // above 0: tames the first steps
  double epsilon = 1e-7;             // keeps the divisor from 0
  std::string name = "adagrad";
};
// Steps that shrink with all gradients so far: for sparse features. One slot.
class LOCKSTEP_API Adagrad : public Optimizer {
 public:
  explicit Adagrad(LearningRate learning_rate, const AdagradOptions& options = {});
};

struct RmsPropOptions {
  double decay = 0.9;     // how much of the mean square stays, per step
  double momentum = 0;    // above 0: a second slot
  double epsilon = 1e-7;  // inside of the root, as in TensorFlow
  bool centered = false;  // divide by the root of the variance, not of the mean square; three slots
  std::string name = "rmsprop";
};
class LOCKSTEP_API RmsProp : public Optimizer {
 public:
  explicit RmsProp(LearningRate learning_rate, const RmsPropOptions& options = {});
};

struct AdamOptions {
  double beta1 = 0.9;    // of the mean of gradients; below 1
  double beta2 = 0.999;  // of the mean of squares; below 1
  // Outside of the root, after the bias correction; larger (1e-4) if gradients are tiny.
  double epsilon = 1e-8;
  std::string name = "adam";
};
// The usual first choice; two slots.
class LOCKSTEP_API Adam : public Optimizer {
 public:
  explicit Adam(LearningRate learning_rate = 1e-3, AdamOptions options = {});
};

struct AdamWOptions {
  double weight_decay = 0.01;  // per step and unit of learning rate; update biases and scales with an Adam
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  std::string name = "adamw";
};
class LOCKSTEP_API AdamW : public Optimizer {
 public:
  explicit AdamW(LearningRate learning_rate = 1e-3, AdamWOptions options = {});
};

}  // namespace lockstep
