// graph/passes/accumulate_gradients.cpp - variables change once in k steps, by the mean of the gradients of
// all k.
#include "lockstep/graph/passes/accumulate_gradients.h"

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/internal/conditional_updates.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/graph/transform/sync.h"

namespace lockstep {

namespace {

constexpr std::string_view kAccumulateGradients = "accumulate-gradients";

// The nodes that a function makes from values, as a graph to be inlined.
template <class Make>
Graph traced(std::span<const TensorSpec> inputs, SourceSite site, const Make& make) {
  GraphBuilder builder;
  std::vector<Value> values;
  for (const TensorSpec& spec : inputs)
    values.push_back(builder.placeholder(str("in_", values.size()), spec.dtype, spec.shape, site));
  const auto made_at = internal::BuilderAccess(builder).made_at(site);
  for (const Value& result : make(builder, values)) builder.result(result, site);
  return builder.finish();
}

class Level final : internal::GradientInBranch {
 public:
  // `sync` describes the graph before the pass.
  Level(Graph& outermost, const SyncAnalysis& sync, Graph& level, std::int64_t steps)
      : outermost_(outermost), sync_(sync), graph_(level), steps_(steps) {}

  bool run() {
    const std::vector<internal::ConditionalNode> nodes = internal::conditional_nodes(graph_, outermost_);
    if (nodes.empty()) return false;
    declare(nodes);
    edit_.emplace(graph_, kAccumulateGradients, &outermost_);
    const ValueId due = count_steps(nodes[0].node);
    for (std::span<const internal::ConditionalNode> rest = nodes; !rest.empty();) {
      internal::move_into_branch(*edit_, outermost_, kAccumulateGradients, internal::take_depth(rest), due,
                                 "accumulate_gradients/apply", this);
    }
    return true;
  }

 private:
  // The variables that accumulate an update's gradient.
  struct Sums {
    std::string sum;
    std::string rows;  // counts how often each row was named; empty: the gradient is not of rows
  };

  static const OpTraits::Update& update_of(const Node& node) { return *node.op().traits.updates_variable; }

  // --- variables

  std::string declare(const std::string& name, TensorSpec spec, Synchronization synchronization,
                      Aggregation aggregation) {
    VariableDecl decl;
    decl.name = name;
    decl.spec = std::move(spec);
    decl.synchronization = synchronization;
    decl.aggregation = aggregation;
    decl.trainable = false;
    return internal::declare_free(outermost_, std::move(decl));
  }

  void declare(std::span<const internal::ConditionalNode> nodes) {
    const std::string tag =
        internal::tag_of(str(steps_), internal::trained_variables(nodes, graph_, outermost_));
    for (const internal::ConditionalNode& each : nodes) {
      const Node& node = graph_.node(each.node);
      const OpTraits::Update& update = update_of(node);
      if (!update.gradient) continue;
      // A copy: declaring moves the declarations.
      const VariableDecl variable = *internal::updated_variable(node, outermost_);
      const ValueId operand = node.inputs()[update.operand];
      const bool whole = sync_.covers(graph_) && sync_.level_of(graph_).replicas > 1 &&
                         sync_.is_summed(graph_, operand) &&
                         sync_.at(graph_, operand) == ReplicaKind::kMirrored;
      const Synchronization synchronization = whole ? Synchronization::kAuto : Synchronization::kOnRead;
      const DType gradient = graph_.spec(operand).dtype;
      const DType dtype = gradient == DType::kF64 ? DType::kF64 : DType::kF32;
      Sums& sums = sums_[each.node];
      sums.sum = declare(str(variable.name, "/accumulated_", tag), {dtype, variable.spec.shape},
                         synchronization, Aggregation::kSum);
      if (update.indices) {
        sums.rows = declare(str(variable.name, "/accumulated_rows_", tag),
                            {DType::kI64, {variable.spec.shape[0]}}, synchronization, Aggregation::kSum);
      }
    }
    counter_ = declare("accumulate_gradients/steps_" + tag, {DType::kI64, {}}, Synchronization::kAuto,
                       Aggregation::kOnlyFirstReplica);
  }

  // --- in every step

  // Is this the last of k steps?
  ValueId count_steps(NodeId origin) {
    const SourceSite site = graph_.node(origin).site();
    const NodeId read = edit_->insert({.op = "read",
                                       .name = counter_,
                                       .attributes = {{"variable", VariableRef{counter_}}},
                                       .origin = origin});
    const TensorSpec spec{DType::kI64, {}};
    const Graph region = traced({&spec, 1}, site, [&](GraphBuilder&, std::span<const Value> in) {
      return std::vector<Value>{equal(mod(in[0], steps_), steps_ - 1), ones_like(in[0])};
    });
    const ValueId count[] = {{read, 0}};
    const std::vector<ValueId> made = edit_->inline_region(region, count, "accumulate_gradients");
    const std::string name = counter_ + "/count";
    edit_->insert({.op = "assign_add",
                   .name = name,
                   .inputs = {made[1]},
                   .attributes = {{"variable", VariableRef{counter_}}},
                   .controls = {read},
                   .origin = origin});
    return made[0];
  }

  ValueId add_to(const std::string& variable, ValueId value, NodeId origin) {
    return {edit_->insert({.op = "assign_add",
                           .name = variable,
                           .inputs = {value},
                           .attributes = {{"variable", VariableRef{variable}}},
                           .origin = origin}),
            0};
  }

  // What has been accumulated up to and including this step: the sum, and for rows how often each was named.
  std::vector<ValueId> outside(NodeId id) override {
    const Node& node = graph_.node(id);
    const Sums& sums = sums_.at(id);
    const OpTraits::Update& update = update_of(node);
    const VariableDecl& variable = *internal::updated_variable(node, outermost_);
    const DType dtype = outermost_.find_variable(sums.sum)->spec.dtype;
    std::vector<ValueId> inputs = {node.inputs()[update.operand]};
    if (update.indices) inputs.push_back(node.inputs()[*update.indices]);
    std::vector<TensorSpec> specs;
    specs.reserve(inputs.size());
    for (const ValueId input : inputs) specs.push_back(graph_.spec(input));
    const Graph region = traced(specs, node.site(), [&](GraphBuilder& b, std::span<const Value> in) {
      const Value numbers = cast(in[0], dtype);
      if (!update.indices) return std::vector<Value>{numbers};
      const auto extents = variable.spec.shape.dims();
      const Value shape =
          b.constant(Tensor::from<std::int64_t>({static_cast<std::int64_t>(extents.size())},
                                                std::vector<std::int64_t>(extents.begin(), extents.end())));
      const Value count = b.constant(Tensor::from<std::int64_t>({1}, {extents[0]}));
      const Value total = scatter_add(cast(in[1], DType::kI64), numbers, shape);
      const Value ones = ones_like(cast(in[1], DType::kI64));
      return std::vector<Value>{total, scatter_add(cast(in[1], DType::kI64), ones, count)};
    });
    const std::vector<ValueId> made = edit_->inline_region(region, inputs, str(node.name(), "/accumulate"));
    std::vector<ValueId> gathered = {add_to(sums.sum, made[0], id)};
    if (update.indices) gathered.push_back(add_to(sums.rows, made[1], id));
    return gathered;
  }

  // --- in every k-th step

  // The gradient to apply, and for rows their numbers. A row that no step named gets the number of one that
  // was named. That is harmless: its gradient is zero, and rows named twice are added up.
  std::vector<ValueId> mean_of(Rewriter& edit, const Node& node, std::span<const ValueId> gathered) {
    const OpTraits::Update& update = update_of(node);
    std::vector<TensorSpec> specs;
    for (const ValueId value : gathered) specs.push_back(edit.graph().spec(value));
    const DType dtype = graph_.spec(node.inputs()[update.operand]).dtype;
    const Graph region = traced(specs, node.site(), [&](GraphBuilder& b, std::span<const Value> in) {
      std::vector<Value> made = {cast(in[0] / static_cast<double>(steps_), dtype)};
      if (update.indices) {
        const std::int64_t rows = specs[1].shape[0];
        const Value numbers = iota(b, DType::kI64, rows);
        const Value named = greater(in[1], std::int64_t{0});
        const Value first = min(where(named, numbers, b.constant(rows - 1)));
        const DType index = graph_.spec(node.inputs()[*update.indices]).dtype;
        made.push_back(cast(where(named, numbers, first), index));
      }
      return made;
    });
    return edit.inline_region(region, gathered, str(node.name(), "/mean"));
  }

  static void clear(Rewriter& edit, const std::string& variable, const TensorSpec& spec, SourceSite site) {
    const Graph region = traced({}, site, [&](GraphBuilder& b, std::span<const Value>) {
      return std::vector<Value>{full(b, spec.dtype, spec.shape, 0)};
    });
    const std::vector<ValueId> zero = edit.inline_region(region, {}, variable);
    const std::string name = variable + "/clear";
    edit.insert({.op = "assign",
                 .name = name,
                 .inputs = {zero[0]},
                 .attributes = {{"variable", VariableRef{variable}}},
                 .origin = zero[0].node});
  }

  std::vector<ValueId> inside(Rewriter& edit, NodeId id, std::span<const ValueId> taken) override {
    const Node& node = graph_.node(id);
    const Sums& sums = sums_.at(id);
    std::vector<ValueId> mean = mean_of(edit, node, taken);
    clear(edit, sums.sum, outermost_.find_variable(sums.sum)->spec, node.site());
    if (!sums.rows.empty()) clear(edit, sums.rows, outermost_.find_variable(sums.rows)->spec, node.site());
    return mean;
  }

  Graph& outermost_;
  const SyncAnalysis& sync_;
  Graph& graph_;
  std::int64_t steps_;
  std::optional<Rewriter> edit_;
  std::map<NodeId, Sums> sums_;  // by update
  std::string counter_;
};

const OptionTable<AccumulateGradientsOptions>& accumulate_gradients_options() {
  static const auto table =
      OptionTable<AccumulateGradientsOptions>(
          "accumulate-gradients", "variables change once in k steps, by the mean of the gradients of all k")
          .required("steps", &AccumulateGradientsOptions::steps, "k");
  return table;
}

class AccumulateGradients final : public Pass {
 public:
  explicit AccumulateGradients(const AccumulateGradientsOptions& options) : options_(options) {}
  std::string_view name() const override { return kAccumulateGradients; }
  std::string to_string() const override { return accumulate_gradients_options().print(options_); }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    if (options_.steps == 1) return PassOutcome::kUnchanged;
    for_each_level(graph, [](Graph& level) {
      const Node* const branch = internal::branch_of(level, internal::kMixedPrecision);
      if (branch != nullptr) {
        throw PassError(kAccumulateGradients,
                        "some steps apply no gradients, by a loss scale that changes, and cannot be counted; "
                        "keep the scale with mixed-precision(growth_steps=0), or use bf16",
                        place_of(*branch));
      }
    });
    const SyncAnalysis sync(graph);
    bool changed = false;
    for_each_level(
        graph, [&](Graph& level) { changed = Level(graph, sync, level, options_.steps).run() || changed; });
    return outcome_of(changed);
  }

  AccumulateGradientsOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_accumulate_gradients(AccumulateGradientsOptions options) {
  if (options.steps < 1)
    throw BadOptionValue(str(kAccumulateGradients, ": steps must be at least 1, got ", options.steps));
  return std::make_unique<AccumulateGradients>(options);
}

void internal::register_accumulate_gradients(PassRegistry& registry) {
  add_pass(registry, accumulate_gradients_options(), make_accumulate_gradients);
}

}  // namespace lockstep
