// graph/passes/accumulate_gradients.cpp - variables change once in k steps, by the mean of the gradients of
// all k.
#include "lockstep/graph/passes/accumulate_gradients.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/core/base/name_set.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/graph/transform/sync.h"

namespace lockstep {

namespace {

constexpr std::string_view kAccumulateGradients = "accumulate-gradients";

// A node that moves into the branch.
struct Item {
  NodeId node;
  std::size_t depth = 0;  // how many others it waits for, one after another
  // Of an update by a gradient:
  std::string sum = {};   // the variable that accumulates the gradient
  std::string rows = {};  // the variable that counts how often each row was named
};

// Values that a region takes from the graph around it.
class Branch {
 public:
  // The parameter that stands for a value; one parameter per value.
  ValueId take(const Graph& level, ValueId value) {
    const auto [found, is_new] = places_.emplace(value, taken_.size());
    if (is_new) {
      static const OpDef& op = OpRegistry::global().get("placeholder");
      NodeInit init;
      init.op = &op;
      init.name = str("in_", taken_.size());
      init.outputs.push_back(level.spec(value));
      init.site = level.node(value.node).site();
      graph.add_parameter(graph.add(std::move(init)));
      taken_.push_back(value);
    }
    return {graph.parameters()[found->second], 0};
  }
  const std::vector<ValueId>& taken() const { return taken_; }

  Graph graph;

 private:
  std::unordered_map<ValueId, std::size_t> places_;
  std::vector<ValueId> taken_;
};

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

class Level {
 public:
  // `sync` describes the graph before the pass.
  Level(Graph& outermost, const SyncAnalysis& sync, Graph& level, std::int64_t steps)
      : outermost_(outermost), sync_(sync), graph_(level), steps_(steps) {}

  bool run() {
    find_items();
    if (items_.empty()) return false;
    declare();
    edit_.emplace(graph_, kAccumulateGradients, &outermost_);
    const ValueId due = count_steps();
    const std::size_t depths = items_.back().depth + 1;
    auto next = items_.begin();
    for (std::size_t depth = 0; depth < depths; ++depth) {
      const auto first = next;
      while (next != items_.end() && next->depth == depth) ++next;
      if (first != next) apply({first, next}, due);
    }
    return true;
  }

 private:
  // --- which nodes move

  static const OpTraits::Update& update_of(const Node& node) { return *node.op().traits.updates_variable; }

  const VariableDecl* variable_of(const Node& node) const {
    const auto* variable = node.find<VariableRef>(update_of(node).attribute);
    return variable == nullptr ? nullptr : outermost_.find_variable(variable->name);
  }

  void find_items() {
    const std::vector<NodeId> order = graph_.topological_order();
    std::vector<NodeId> updates, others;
    for (const NodeId id : order) {
      const auto& update = graph_.node(id).op().traits.updates_variable;
      if (update && variable_of(graph_.node(id)) != nullptr)
        (update->gradient ? updates : others).push_back(id);
    }
    if (updates.empty()) return;
    const NameSet asked = asked_variables(order, updates);
    std::vector<bool> moves(graph_.id_bound());
    for (const NodeId id : updates) moves[id.index()] = true;
    for (const NodeId id : others) moves[id.index()] = is_counter(graph_.node(id), asked);
    std::vector<std::size_t> depth(graph_.id_bound());
    for (const NodeId id : order) {
      const auto comes_after = [&](NodeId before) {
        const std::size_t after = depth[before.index()] + (moves[before.index()] ? 1U : 0U);
        depth[id.index()] = std::max(depth[id.index()], after);
      };
      for (const ValueId input : graph_.node(id).inputs()) comes_after(input.node);
      for (const NodeId before : graph_.node(id).controls()) comes_after(before);
      if (moves[id.index()]) items_.push_back({.node = id, .depth = depth[id.index()]});
    }
    std::ranges::stable_sort(items_, {}, &Item::depth);
  }

  // Variables that the updates' other inputs (neither gradient nor row numbers) depend on.
  NameSet asked_variables(const std::vector<NodeId>& order, const std::vector<NodeId>& updates) const {
    std::vector<bool> asked(graph_.id_bound());
    for (const NodeId id : updates) {
      const Node& node = graph_.node(id);
      const OpTraits::Update& update = update_of(node);
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (i != update.operand && (!update.indices || i != *update.indices))
          asked[node.inputs()[i].node.index()] = true;
      }
    }
    NameSet names;
    for (auto id = order.rbegin(); id != order.rend(); ++id) {
      const Node& node = graph_.node(*id);
      if (!asked[id->index()]) continue;
      for (const ValueId input : node.inputs()) asked[input.node.index()] = true;
      for (const VariableUse& use : variable_uses(node)) names.insert(use.name);
    }
    return names;
  }

  bool is_counter(const Node& node, const NameSet& asked) const {
    const OpTraits::Update& update = update_of(node);
    const VariableDecl& decl = *variable_of(node);
    if (!update.uses_old_value || update.gradient || is_floating(decl.spec.dtype) ||
        decl.spec.shape.rank() != 0)
      return false;
    const bool constant = std::ranges::all_of(node.inputs(), [&](ValueId input) {
      return graph_.node(input.node).op().traits.gives_attribute.has_value();
    });
    const bool as_iterations = !decl.trainable && decl.aggregation == Aggregation::kOnlyFirstReplica;
    return constant && (asked.contains(decl.name) || as_iterations);
  }

  // --- variables

  std::string declare(const std::string& name, TensorSpec spec, Synchronization synchronization,
                      Aggregation aggregation) {
    VariableDecl decl;
    decl.name = name;
    for (int i = 1; outermost_.find_variable(decl.name) != nullptr; ++i) decl.name = str(name, "_", i);
    decl.spec = std::move(spec);
    decl.synchronization = synchronization;
    decl.aggregation = aggregation;
    decl.trainable = false;
    std::string taken = decl.name;
    outermost_.declare_variable(std::move(decl));
    return taken;
  }

  // Identifies k and the variables that are updated together. It is part of the names of the accumulators, so
  // that other functions on the same store (of a generator and its critic, say) count and accumulate
  // separately. FNV-1a, the same in every process.
  std::string tag() const {
    std::vector<std::string> served = {str(steps_)};
    for (const Item& item : items_) {
      const Node& node = graph_.node(item.node);
      if (update_of(node).gradient) served.push_back(variable_of(node)->name);
    }
    std::sort(served.begin() + 1, served.end());
    std::uint64_t hash = 0xCBF29CE484222325U;
    for (const std::string& name : served) {
      for (const char letter : name + '\n')
        hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3U;
    }
    std::string digits;
    for (int shift = 60; shift >= 0; shift -= 4) digits += "0123456789abcdef"[(hash >> shift) & 15U];
    return digits;
  }

  void declare() {
    const std::string tag = this->tag();
    for (Item& item : items_) {
      const Node& node = graph_.node(item.node);
      const OpTraits::Update& update = update_of(node);
      if (!update.gradient) continue;
      const VariableDecl variable = *variable_of(node);  // a copy: declaring moves the declarations
      const ValueId operand = node.inputs()[update.operand];
      const bool whole = sync_.covers(graph_) && sync_.level_of(graph_).replicas > 1 &&
                         sync_.is_summed(graph_, operand) &&
                         sync_.at(graph_, operand) == ReplicaKind::kMirrored;
      const Synchronization synchronization = whole ? Synchronization::kAuto : Synchronization::kOnRead;
      const DType gradient = graph_.spec(operand).dtype;
      const DType dtype = gradient == DType::kF64 ? DType::kF64 : DType::kF32;
      item.sum = declare(str(variable.name, "/accumulated_", tag), {dtype, variable.spec.shape},
                         synchronization, Aggregation::kSum);
      if (update.indices) {
        item.rows = declare(str(variable.name, "/accumulated_rows_", tag),
                            {DType::kI64, {variable.spec.shape[0]}}, synchronization, Aggregation::kSum);
      }
    }
    counter_ = declare("accumulate_gradients/steps_" + tag, {DType::kI64, {}}, Synchronization::kAuto,
                       Aggregation::kOnlyFirstReplica);
  }

  // --- in every step

  // Is this the last of k steps?
  ValueId count_steps() {
    const NodeId origin = items_[0].node;
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
  std::vector<ValueId> gather(const Item& item) {
    const Node& node = graph_.node(item.node);
    const OpTraits::Update& update = update_of(node);
    const VariableDecl& variable = *variable_of(node);
    const DType dtype = outermost_.find_variable(item.sum)->spec.dtype;
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
      const Value sums = scatter_add(cast(in[1], DType::kI64), numbers, shape);
      const Value ones = ones_like(cast(in[1], DType::kI64));
      return std::vector<Value>{sums, scatter_add(cast(in[1], DType::kI64), ones, count)};
    });
    const std::vector<ValueId> made = edit_->inline_region(region, inputs, str(node.name(), "/accumulate"));
    std::vector<ValueId> gathered = {add_to(item.sum, made[0], item.node)};
    if (update.indices) gathered.push_back(add_to(item.rows, made[1], item.node));
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

  // The node itself, in the branch.
  NodeId move_into(Graph& branch, const Node& node, SmallVector<ValueId, 2> inputs) const {
    NodeInit init;
    init.op = &node.op();
    init.name = branch.unique_name(node.name());
    init.inputs = std::move(inputs);
    init.outputs = SmallVector<TensorSpec, 1>(node.outputs());
    init.attributes = node.attributes();
    init.device = node.device();
    init.site = node.site();
    Provenance provenance = node.provenance();
    if (provenance.made_by.valid()) provenance.made_by = branch.intern(graph_.text(provenance.made_by));
    if (provenance.why.valid()) provenance.why = branch.intern(graph_.text(provenance.why));
    init.provenance = provenance;
    return branch.add(std::move(init));
  }

  void apply(std::span<const Item> items, ValueId due) {
    Branch then_branch;
    struct Moved {
      std::vector<ValueId> gathered;   // parameters of the branch
      SmallVector<ValueId, 2> inputs;  // of the node there
    };
    std::vector<Moved> moved(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (update_of(graph_.node(items[i].node)).gradient) {
        for (const ValueId value : gather(items[i]))
          moved[i].gathered.push_back(then_branch.take(graph_, value));
      }
      const Node& node = graph_.node(items[i].node);
      const OpTraits::Update& update = update_of(node);
      for (std::size_t at = 0; at < node.inputs().size(); ++at) {
        const bool replaced =
            update.gradient && (at == update.operand || (update.indices && at == *update.indices));
        moved[i].inputs.push_back(replaced ? ValueId() : then_branch.take(graph_, node.inputs()[at]));
      }
    }
    Branch else_branch;
    for (const ValueId value : then_branch.taken()) else_branch.take(graph_, value);
    {
      Rewriter edit(then_branch.graph, kAccumulateGradients, &outermost_);
      for (std::size_t i = 0; i < items.size(); ++i) {
        const Node& node = graph_.node(items[i].node);
        const OpTraits::Update& update = update_of(node);
        if (!update.gradient) continue;
        const std::vector<ValueId> mean = mean_of(edit, node, moved[i].gathered);
        moved[i].inputs[update.operand] = mean[0];
        if (update.indices) moved[i].inputs[*update.indices] = mean[1];
        clear(edit, items[i].sum, outermost_.find_variable(items[i].sum)->spec, node.site());
        if (update.indices)
          clear(edit, items[i].rows, outermost_.find_variable(items[i].rows)->spec, node.site());
      }
    }
    std::vector<Rewriter::Replacement> replaced;
    std::vector<NodeId> controls;
    std::vector<ValueId> kept;  // what the results are in the other steps
    {
      Rewriter edit(else_branch.graph, kAccumulateGradients, &outermost_);
      for (std::size_t i = 0; i < items.size(); ++i) {
        const Node& node = graph_.node(items[i].node);
        const NodeId inside = move_into(then_branch.graph, node, moved[i].inputs);
        replaced.push_back({.node = items[i].node});
        controls.insert(controls.end(), node.controls().begin(), node.controls().end());
        if (!edit_->is_read(items[i].node)) continue;
        const SmallVector<std::string, 1> names = updated_variables(node);
        for (std::uint32_t output = 0; output < node.outputs().size(); ++output) {
          then_branch.graph.add_result({inside, output});
          replaced.back().to.push_back({NodeId(), static_cast<std::uint32_t>(kept.size())});
          const NodeId read = edit.insert({.op = "read",
                                           .name = names[output],
                                           .attributes = {{"variable", VariableRef{names[output]}}}});
          kept.push_back({read, 0});
        }
      }
    }
    else_branch.graph.set_results(std::move(kept));
    std::ranges::sort(controls);
    controls.erase(std::unique(controls.begin(), controls.end()), controls.end());
    std::vector<ValueId> inputs = {due};
    inputs.insert(inputs.end(), then_branch.taken().begin(), then_branch.taken().end());
    std::vector<Graph> regions;
    regions.push_back(std::move(then_branch.graph));
    regions.push_back(std::move(else_branch.graph));
    const NodeId branch = edit_->insert({.op = "cond",
                                         .name = "accumulate_gradients/apply",
                                         .inputs = std::move(inputs),
                                         .controls = std::move(controls),
                                         .regions = std::move(regions),
                                         .origin = items[0].node});
    for (Rewriter::Replacement& one : replaced) {
      for (ValueId& value : one.to) value.node = branch;
      for (const NodeId user : edit_->control_users(one.node)) edit_->add_control(user, branch);
    }
    edit_->replace_and_erase(replaced);
  }

  Graph& outermost_;
  const SyncAnalysis& sync_;
  Graph& graph_;
  std::int64_t steps_;
  std::optional<Rewriter> edit_;
  std::vector<Item> items_;  // by depth
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
