// graph/transform/rewriter.cpp - the few edits that passes need, with invariants, names, identity and source
// lines kept.
#include "lockstep/graph/transform/rewriter.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "lockstep/core/base/large_pages.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ir/internal/evaluate_node.h"
#include "lockstep/graph/ir/internal/shape_values.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {
namespace {

// The known contents of the shape operands of a node that is about to be made; both arguments must outlive
// the result.
NodeView::ShapeValues shape_values_of(const Graph& graph, const NodeInit& init) {
  return [&graph, &init](std::size_t i) { return internal::static_elements(graph, init.inputs[i]); };
}

// Copies of nodes are new nodes: they get identities of their own and keep their origins.
void renew_identities(Graph& graph, std::string_view pass, std::int32_t replica, std::string_view why) {
  const StringId made_by = graph.intern(pass);
  const StringId reason = why.empty() ? StringId() : graph.intern(why);
  std::vector<NodeId> ids;
  for (const Node& node : graph.nodes()) ids.push_back(node.id());
  for (const NodeId id : ids) {
    Provenance provenance = graph.node(id).provenance();
    provenance.identity = Graph::new_identity();
    provenance.made_by = made_by;
    provenance.why = reason;
    if (replica >= 0) provenance.replica = replica;
    graph.set_provenance(id, provenance);
    for (std::size_t i = 0; i < graph.node(id).regions().size(); ++i) {
      renew_identities(graph.region(id, i), pass, replica, why);
    }
  }
}

// The inputs of Rewriter::build() as values of the graph being built: placeholders, except that what a shape
// operand may be derived from is there again, down to the shapes and constants.
class BuildInputs {
 public:
  BuildInputs(const Graph& graph, GraphBuilder& builder) : graph_(graph), builder_(builder) {}

  Value add(ValueId value) {
    if (const auto found = values_.find(value); found != values_.end()) return found->second;
    const Node& node = graph_.node(value.node);
    const bool source = node.op().traits.gives_shape || node.op().traits.gives_attribute.has_value();
    if (!is_shape_value(value)) {
      const TensorSpec& spec = graph_.spec(value);
      const Value made =
          builder_.placeholder(str("input_", values_.size()), spec.dtype, spec.shape, node.site());
      return values_.emplace(value, made).first->second;
    }
    std::vector<Value> inputs;
    for (const ValueId input : node.inputs()) inputs.push_back(source ? placeholder(input) : add(input));
    const std::vector<Value> outputs = builder_.outputs_of(
        builder_.node(node.op(), str("input_", values_.size()), inputs, node.attributes(), {}, node.site()));
    for (std::uint32_t i = 0; i < outputs.size(); ++i) values_.emplace(ValueId{value.node, i}, outputs[i]);
    return values_.at(value);
  }
  // The values of this graph that nodes of the built one stand for.
  std::vector<std::vector<ValueId>> stand_for(const Graph& made) const {
    std::vector<std::vector<ValueId>> values(made.id_bound());
    for (const auto& [value, in] : values_) {
      std::vector<ValueId>& outputs = values[in.id().node.index()];
      outputs.resize(std::max<std::size_t>(outputs.size(), in.id().output + 1));
      outputs[in.id().output] = value;
    }
    for (const auto& [value, in] : sources_) values[in.id().node.index()] = {value};
    return values;
  }

 private:
  // May a shape operand be derived from it? Nested too deep, it is a placeholder.
  bool is_shape_value(ValueId value, int depth = 0) const {
    const Node& node = graph_.node(value.node);
    const DType dtype = graph_.spec(value).dtype;
    if (depth > 32 || (depth == 0 && dtype != DType::kI64 && dtype != DType::kI32)) return false;
    if (node.op().traits.gives_shape || node.op().traits.gives_attribute) return true;
    return internal::is_derivable(node) && std::ranges::all_of(node.inputs(), [&](ValueId input) {
             return is_shape_value(input, depth + 1);
           });
  }
  // Of a value whose shape alone is used.
  Value placeholder(ValueId value) {
    const auto [found, added] = sources_.try_emplace(value);
    if (added) {
      const TensorSpec& spec = graph_.spec(value);
      found->second = builder_.placeholder(str("shape_of_input_", sources_.size()), spec.dtype, spec.shape,
                                           graph_.node(value.node).site());
    }
    return found->second;
  }

  const Graph& graph_;
  GraphBuilder& builder_;
  std::map<ValueId, Value> values_;
  std::map<ValueId, Value> sources_;
};

// Waiting for such a node has no effect: it has nothing to wait for and no effects.
bool is_source(const Node& node) {
  return node.inputs().empty() && node.controls().empty() && effects_of(node) == Effect::kPure;
}

}  // namespace

Rewriter::Rewriter(Graph& graph, std::string_view pass, const Graph* outermost)
    : graph_(graph),
      outermost_(outermost == nullptr ? graph : *outermost),
      pass_name_(pass),
      pass_(graph.intern(pass)) {
  const std::size_t bound = graph.id_bound();
  std::size_t edges = graph.results().size();
  for (const Node& node : graph.nodes()) edges += node.inputs().size() + node.controls().size();
  records_.reserve(edges + edges / 8);
  prefer_large_pages(records_.data(), records_.capacity() * sizeof(Record));
  data_head_.assign(bound, kNone);
  control_head_.assign(bound, kNone);
  first_input_.assign(bound, kNone);
  first_control_.assign(bound, kNone);
  for (const Node& node : graph.nodes()) link_node(node.id());
  link_results();
}

Rewriter::~Rewriter() = default;

// --- records

std::uint32_t Rewriter::take_record() {
  if (free_ != kNone) return std::exchange(free_, records_[free_].next);
  records_.emplace_back();
  return static_cast<std::uint32_t>(records_.size() - 1);
}

void Rewriter::link(std::vector<std::uint32_t>& heads, NodeId used, std::uint32_t record) {
  if (used.index() >= heads.size()) fail("names a node that is not there", records_[record].user);
  std::uint32_t& head = heads[used.index()];
  records_[record].prev = kNone;
  records_[record].next = head;
  if (head != kNone) records_[head].prev = record;
  head = record;
}

void Rewriter::unlink(std::vector<std::uint32_t>& heads, NodeId used, std::uint32_t record) {
  const Record& gone = records_[record];
  if (gone.prev == kNone) {
    heads[used.index()] = gone.next;
  } else {
    records_[gone.prev].next = gone.next;
  }
  if (gone.next != kNone) records_[gone.next].prev = gone.prev;
}

void Rewriter::link_node(NodeId id) {
  link_inputs(id);
  link_controls(id);
}

void Rewriter::link_inputs(NodeId id) {
  const Node& node = graph_.node(id);
  first_input_[id.index()] = static_cast<std::uint32_t>(records_.size());
  for (std::uint32_t i = 0; i < node.inputs().size(); ++i) {
    records_.push_back({id, i, kNone, kNone});
    link(data_head_, node.inputs()[i].node, first_input_[id.index()] + i);
  }
}

void Rewriter::unlink_inputs(NodeId id) {
  const std::span<const ValueId> inputs = graph_.node(id).inputs();
  for (std::uint32_t i = 0; i < inputs.size(); ++i) {
    unlink(data_head_, inputs[i].node, first_input_[id.index()] + i);
  }
}

void Rewriter::link_controls(NodeId id) {
  for (const NodeId before : graph_.node(id).controls()) {
    const std::uint32_t record = take_record();
    records_[record].user = id;
    records_[record].index = first_control_[id.index()];
    first_control_[id.index()] = record;
    link(control_head_, before, record);
  }
}

void Rewriter::unlink_controls(NodeId id) {
  // The chain runs from the last control to the first.
  const std::span<const NodeId> controls = graph_.node(id).controls();
  std::uint32_t record = first_control_[id.index()];
  for (std::size_t i = controls.size(); i-- > 0;) {
    unlink(control_head_, controls[i], record);
    const std::uint32_t following = records_[record].index;
    records_[record].next = free_;
    free_ = record;
    record = following;
  }
  first_control_[id.index()] = kNone;
}

void Rewriter::link_results() {
  first_result_ = static_cast<std::uint32_t>(records_.size());
  for (std::uint32_t i = 0; i < graph_.results().size(); ++i) {
    records_.push_back({NodeId(), i, kNone, kNone});
    link(data_head_, graph_.results()[i].node, first_result_ + i);
  }
}

ValueId Rewriter::value_at(const Record& record) const {
  return record.user.valid() ? graph_.node(record.user).inputs()[record.index]
                             : graph_.results()[record.index];
}

void Rewriter::move_use(std::uint32_t record, ValueId to) {
  const Record use = records_[record];
  unlink(data_head_, value_at(use).node, record);
  graph_.set_input(use.user, use.index, to);
  link(data_head_, to.node, record);
  changed_ = true;
}

void Rewriter::move_results(std::span<const std::pair<std::uint32_t, ValueId>> moves) {
  if (moves.empty()) return;
  std::vector<ValueId> results = graph_.results();
  for (const auto& [index, to] : moves) {
    unlink(data_head_, results[index].node, first_result_ + index);
    results[index] = to;
    link(data_head_, to.node, first_result_ + index);
  }
  graph_.set_results(std::move(results));
  changed_ = true;
}

void Rewriter::replace_controls(NodeId id, std::span<const NodeId> controls) {
  unlink_controls(id);
  graph_.set_controls(id, controls);
  link_controls(id);
  changed_ = true;
}

// --- who reads what

std::vector<Use> Rewriter::uses(ValueId value) const {
  std::vector<Use> found;
  for (std::uint32_t r = data_head_[value.node.index()]; r != kNone; r = records_[r].next) {
    if (value_at(records_[r]) == value) found.push_back({records_[r].user, records_[r].index});
  }
  std::ranges::sort(found, [](const Use& a, const Use& b) {
    return std::pair(a.user.value, a.index) < std::pair(b.user.value, b.index);
  });
  return found;
}

std::vector<NodeId> Rewriter::control_users(NodeId node) const {
  std::vector<NodeId> found;
  for (std::uint32_t r = control_head_[node.index()]; r != kNone; r = records_[r].next) {
    found.push_back(records_[r].user);
  }
  std::ranges::sort(found);
  return found;
}

bool Rewriter::is_read(NodeId node) const { return data_head_[node.index()] != kNone; }
bool Rewriter::is_used(NodeId node) const { return is_read(node) || control_head_[node.index()] != kNone; }

// --- making nodes

std::vector<ValueId> Rewriter::build(std::span<const ValueId> inputs, const BuildFn& make,
                                     const BuildAt& at) {
  GraphBuilder builder;
  internal::BuilderAccess access(builder);
  access.set_in_replicas(is_replica_code(outermost_, graph_));
  for (const VariableDecl& decl : outermost_.variables()) builder.variable(decl);
  BuildInputs given(graph_, builder);
  std::vector<Value> values;
  for (const ValueId input : inputs) values.push_back(given.add(input));
  Graph made;
  try {
    const auto run = [&] {
      for (const Value& result : make(builder, values)) builder.result(result);
    };
    if (graph_.contains(at.origin)) {
      const auto maker = access.made_for(graph_.node(at.origin), pass_name_);
      run();
    } else {
      run();
    }
    made = builder.finish();
  } catch (const Error& error) {
    const NodeId user = graph_.contains(at.origin) || inputs.empty() ? at.origin : inputs[0].node;
    std::throw_with_nested(PassError(pass_name_, str("cannot build: ", error.message()),
                                     graph_.contains(user) ? place_of(graph_.node(user)) : error.place(),
                                     error.code()));
  }
  if (made.variables().size() != outermost_.variables().size())
    fail("declares a variable while it builds: declare it before, with Graph::declare_variable", at.origin);
  if (graph_.contains(at.origin)) built_for_ = at.origin;
  std::vector<ValueId> results = inline_nodes(made, given.stand_for(made), at.scope, -1, at.why, at.after);
  built_for_ = {};
  return results;
}

void Rewriter::fail(const std::string& message, NodeId node) const {
  throw PassError(pass_name_, message, graph_.contains(node) ? place_of(graph_.node(node)) : ErrorPlace());
}

Provenance Rewriter::made_from(const Provenance* origin, std::int32_t replica, std::string_view why) {
  Provenance made;
  made.identity = Graph::new_identity();
  made.origin = origin == nullptr ? made.identity : origin->origin;
  made.made_by = pass_;
  made.why = why.empty() ? StringId() : graph_.intern(why);
  made.replica = replica >= 0 || origin == nullptr ? replica : origin->replica;
  made.gradient = origin == nullptr ? GradientMark::kNone : origin->gradient;
  return made;
}

namespace {

// What a pass makes from shares of gradients is a share as well, until a node combines replicas; and what it
// makes of that is summed. Nodes beside it (constants, rates) are neither, whatever their origin. Only a
// collective that comes from another one of gradients() combines nothing: it belongs to the way back through the
// step. A node with regions says nothing itself: SyncAnalysis looks into them.
GradientMark mark_by_inputs(const Graph& graph, const OpDef& op, std::span<const ValueId> inputs,
                            const Node* origin) {
  if (op.regions > 0 && !combines_replicas(op)) return GradientMark::kNone;
  const auto any = [&](GradientMark mark) {
    return std::ranges::any_of(
        inputs, [&](ValueId input) { return graph.node(input.node).provenance().gradient == mark; });
  };
  if (combines_replicas(op)) {
    const bool way_back = origin != nullptr && combines_replicas(origin->op()) &&
                          origin->provenance().gradient == GradientMark::kShare;
    if (way_back) return GradientMark::kShare;
    return any(GradientMark::kShare) ? GradientMark::kSummed : GradientMark::kNone;
  }
  if (any(GradientMark::kShare)) return GradientMark::kShare;
  return any(GradientMark::kSummed) ? GradientMark::kSummed : GradientMark::kNone;
}

// A node that this pass made, and now puts into the place of a share, is one: a constant that the share was
// folded into has no input that would say so.
void keep_share(Graph& graph, StringId pass, NodeId from, NodeId to) {
  if (graph.node(from).provenance().gradient != GradientMark::kShare) return;
  const Node& node = graph.node(to);
  const Provenance& old = node.provenance();
  if (old.made_by != pass || old.gradient != GradientMark::kNone) return;
  if (!node.regions().empty() || combines_replicas(node.op())) return;
  Provenance marked = old;
  marked.gradient = GradientMark::kShare;
  graph.set_provenance(to, marked);
}

}  // namespace

// For a node that becomes another: a share stays one until it combines replicas.
GradientMark Rewriter::mark_of(const OpDef& op, std::span<const ValueId> inputs, const Node& origin) const {
  const GradientMark mark = mark_by_inputs(graph_, op, inputs, &origin);
  if (mark != GradientMark::kNone || origin.provenance().gradient != GradientMark::kShare) return mark;
  return combines_replicas(op) ? GradientMark::kSummed : GradientMark::kShare;
}

NodeId Rewriter::add_node(NodeInit init, const Node* origin, std::int32_t replica, std::string_view why,
                          std::optional<GradientMark> gradient) {
  init.provenance = made_from(origin == nullptr ? nullptr : &origin->provenance(), replica, why);
  if (gradient) init.provenance->gradient = *gradient;
  for (Graph& region : init.regions) renew_identities(region, pass_name_, replica, why);
  const NodeId id = graph_.add(std::move(init));
  data_head_.resize(graph_.id_bound(), kNone);
  control_head_.resize(graph_.id_bound(), kNone);
  first_input_.resize(graph_.id_bound(), kNone);
  first_control_.resize(graph_.id_bound(), kNone);
  link_node(id);
  changed_ = true;
  return id;
}

// Op, inputs, attributes and inferred outputs of a node that is about to be made; throws PassError with the
// origin's place.
NodeInit Rewriter::infer(NewNode& node, const Node* origin) const {
  NodeInit init;
  try {
    init.op = &OpRegistry::global().get(node.op);
    init.inputs = SmallVector<ValueId, 2>(std::span<const ValueId>(node.inputs));
    init.attributes = std::move(node.attributes);
    std::ranges::sort(init.attributes, {}, &Attribute::name);
    init.regions = std::move(node.regions);
    std::vector<TensorSpec> specs;
    specs.reserve(init.inputs.size());
    for (const ValueId input : init.inputs) {
      if (!graph_.has_output(input)) throw InvalidArgument("an input names a value that is not there");
      specs.push_back(graph_.spec(input));
    }
    const NodeView::ShapeValues shape_values = shape_values_of(graph_, init);
    init.outputs = internal::infer_new(*init.op, node.name, specs, init.attributes, init.regions,
                                       variable_specs(outermost_), node.outputs, &shape_values);
  } catch (const Error& error) {
    std::throw_with_nested(PassError(pass_name_, str("cannot make '", node.op, "': ", error.message()),
                                     origin == nullptr ? ErrorPlace() : place_of(*origin), error.code()));
  }
  return init;
}

NodeId Rewriter::insert(NewNode node) {
  const Node* origin = node.origin.valid() ? &graph_.node(node.origin) : nullptr;
  NodeInit init = infer(node, origin);
  init.name = graph_.unique_name(node.name.empty() ? node.op : node.name);
  init.controls = SmallVector<NodeId, 2>(std::span<const NodeId>(node.controls));
  if (origin != nullptr) init.site = origin->site();
  init.device = node.device;
  if (origin != nullptr && node.device.empty()) init.device = origin->device();
  const GradientMark gradient = mark_by_inputs(graph_, *init.op, node.inputs, origin);
  return add_node(std::move(init), origin, node.replica, node.why, gradient);
}

void Rewriter::become(NodeId id, NewNode what) {
  const Node& node = graph_.node(id);
  if (!node.regions().empty() || !what.regions.empty()) fail("a node with regions cannot become another", id);
  NodeInit init = infer(what, &node);
  const auto same_attribute = [](const Attribute& a, const Attribute& b) {
    return a.name == b.name && same_value(a.value, b.value);
  };
  if (init.op == &node.op() && std::ranges::equal(init.inputs, node.inputs()) &&
      std::ranges::equal(init.outputs, node.outputs()) &&
      std::ranges::equal(init.attributes, node.attributes(), same_attribute))
    return;
  Provenance made = made_from(&node.provenance(), what.replica, what.why);
  made.gradient = mark_of(*init.op, what.inputs, node);
  unlink_inputs(id);
  graph_.set_op(id, *init.op);
  graph_.set_inputs(id, init.inputs);
  graph_.set_outputs(id, init.outputs);
  while (!node.attributes().empty()) graph_.remove_attribute(id, std::string(node.attributes().back().name));
  for (Attribute& attribute : init.attributes)
    graph_.set_attribute(id, attribute.name, std::move(attribute.value));
  graph_.set_provenance(id, made);
  link_inputs(id);
  changed_ = true;
}

NodeId Rewriter::clone(NodeId id, std::string_view name, std::span<const ValueId> inputs,
                       std::int32_t replica, std::string_view why) {
  const Node& node = graph_.node(id);
  NodeInit init;
  init.op = &node.op();
  init.name = graph_.unique_name(name.empty() ? std::string_view(node.name()) : name);
  init.inputs = SmallVector<ValueId, 2>(inputs);
  init.controls = SmallVector<NodeId, 2>(node.controls());
  init.attributes_of = &node;
  init.regions.assign(node.regions().begin(), node.regions().end());
  init.device = node.device();
  init.site = node.site();
  std::vector<TensorSpec> specs;
  for (const ValueId input : inputs) {
    if (!graph_.has_output(input)) fail("clones a node onto an input that is not there", id);
    specs.push_back(graph_.spec(input));
  }
  const NodeView::ShapeValues shape_values = shape_values_of(graph_, init);
  if (specs == input_specs(graph_, node) && node.op().shape_operands.empty()) {
    init.outputs = SmallVector<TensorSpec, 1>(node.outputs());
  } else {
    try {
      init.outputs = infer_outputs(node, specs, variable_specs(outermost_), &shape_values);
    } catch (const Error& error) {
      std::throw_with_nested(
          PassError(pass_name_, str("cannot clone: ", error.message()), place_of(node), error.code()));
    }
  }
  return add_node(std::move(init), &node, replica, why);
}

std::vector<ValueId> Rewriter::inline_region(const Graph& region, std::span<const ValueId> arguments,
                                             std::string_view prefix, std::int32_t replica,
                                             std::string_view why, std::span<const NodeId> controls) {
  if (arguments.size() != region.parameters().size()) {
    fail(str("inlines a region of ", region.parameters().size(), " parameters with ", arguments.size(),
             " arguments"),
         {});
  }
  std::vector<std::vector<ValueId>> values(region.id_bound());  // of each node of the region
  for (std::size_t i = 0; i < arguments.size(); ++i) values[region.parameters()[i].index()] = {arguments[i]};
  return inline_nodes(region, std::move(values), prefix, replica, why, controls);
}

std::vector<ValueId> Rewriter::inline_nodes(const Graph& region, std::vector<std::vector<ValueId>> values,
                                            std::string_view prefix, std::int32_t replica,
                                            std::string_view why, std::span<const NodeId> controls) {
  for (const NodeId id : region.topological_order()) {
    std::vector<ValueId>& mine = values[id.index()];
    if (!mine.empty()) continue;
    const Node& node = region.node(id);
    NodeInit init;
    init.op = &node.op();
    init.name = graph_.unique_name(prefix.empty() ? node.name() : str(prefix, "/", node.name()));
    std::vector<TensorSpec> specs;
    for (const ValueId input : node.inputs()) {
      init.inputs.push_back(values[input.node.index()].at(input.output));
      specs.push_back(graph_.spec(init.inputs.back()));
    }
    for (const NodeId before : node.controls()) {
      // A node without outputs is only known by its id: stored as its output 0.
      const NodeId mapped = values[before.index()].at(0).node;
      if (std::ranges::find(init.controls, mapped) == init.controls.end()) init.controls.push_back(mapped);
    }
    if (node.inputs().empty()) {
      for (const NodeId before : controls) {
        if (std::ranges::find(init.controls, before) == init.controls.end()) init.controls.push_back(before);
      }
    }
    init.attributes_of = &node;
    init.regions.assign(node.regions().begin(), node.regions().end());
    init.device = node.device();
    init.site = node.site();
    const NodeView::ShapeValues shape_values = shape_values_of(graph_, init);
    const bool same = specs == input_specs(region, node) && node.op().shape_operands.empty();
    try {
      init.outputs = same ? SmallVector<TensorSpec, 1>(node.outputs())
                          : infer_outputs(node, specs, variable_specs(outermost_), &shape_values);
    } catch (const Error& error) {
      std::throw_with_nested(
          PassError(pass_name_, str("cannot inline: ", error.message()), place_of(node), error.code()));
    }
    std::optional<GradientMark> gradient;
    if (built_for_.valid())
      gradient = mark_by_inputs(graph_, *init.op, init.inputs, &graph_.node(built_for_));
    const NodeId made = add_node(std::move(init), &node, replica, why, gradient);
    const std::size_t outputs = std::max<std::size_t>(1, node.outputs().size());
    for (std::uint32_t i = 0; i < outputs; ++i) mine.push_back({made, i});
  }
  std::vector<ValueId> results;
  for (const ValueId result : region.results())
    results.push_back(values[result.node.index()].at(result.output));
  return results;
}

// --- changing existing nodes

void Rewriter::replace_uses(ValueId from, ValueId to) { replace_uses({{from, to}}); }

void Rewriter::replace_uses(std::vector<std::pair<ValueId, ValueId>> moves) {
  for (const auto& [from, to] : moves) keep_share(graph_, pass_, from.node, to.node);
  std::ranges::sort(moves);
  std::vector<std::pair<std::uint32_t, ValueId>> results;
  for (auto first = moves.begin(); first != moves.end();) {
    const NodeId node = first->first.node;
    const auto last =
        std::find_if(first, moves.end(), [&](const auto& move) { return move.first.node != node; });
    std::uint32_t next = kNone;
    for (std::uint32_t r = data_head_[node.index()]; r != kNone; r = next) {
      next = records_[r].next;
      const ValueId from = value_at(records_[r]);
      const auto move = std::ranges::lower_bound(first, last, from, {}, &std::pair<ValueId, ValueId>::first);
      if (move == last || move->first != from) continue;
      const ValueId to = move->second;
      if (from == to || records_[r].user == to.node) continue;
      if (records_[r].user.valid()) {
        move_use(r, to);
      } else {
        results.emplace_back(records_[r].index, to);
      }
    }
    first = last;
  }
  move_results(results);
}

void Rewriter::replace_node(NodeId from, std::span<const ValueId> to) {
  const Replacement replacement{from, SmallVector<ValueId, 1>(to)};
  rewire({&replacement, 1}, false);
}

void Rewriter::erase(NodeId node) {
  const Replacement replacement{node, {}};
  rewire({&replacement, 1}, true);
}

void Rewriter::replace_and_erase(std::span<const Replacement> nodes) { rewire(nodes, true); }

void Rewriter::rewire(std::span<const Replacement> nodes, bool erasing) {
  mark_.resize(graph_.id_bound(), kNone);
  seen_.resize(graph_.id_bound(), 0);
  for (std::size_t i = 0; i < nodes.size(); ++i) mark_[nodes[i].node.index()] = static_cast<std::uint32_t>(i);
  const std::vector<NodeId> followers = redirect_readers(nodes, erasing);
  for (const NodeId user : followers) redirect_order(user, nodes, erasing);
  for (const Replacement& replacement : nodes) mark_[replacement.node.index()] = kNone;
  if (!erasing) return;

  for (const Replacement& replacement : nodes) {
    unlink_inputs(replacement.node);
    unlink_controls(replacement.node);
  }
  for (const Replacement& replacement : nodes) graph_.erase(replacement.node);
  changed_ = changed_ || !nodes.empty();
}

// Readers move to the replacements; readers that are erased as well stay as they are. Returns the nodes that
// run after the given ones.
std::vector<NodeId> Rewriter::redirect_readers(std::span<const Replacement> nodes, bool erasing) {
  std::vector<NodeId> followers;
  std::vector<std::pair<std::uint32_t, ValueId>> results;
  for (const Replacement& replacement : nodes) {
    const NodeId node = replacement.node;
    for (const ValueId to : replacement.to) keep_share(graph_, pass_, node, to.node);
    std::uint32_t next = kNone;
    for (std::uint32_t r = data_head_[node.index()]; r != kNone; r = next) {
      next = records_[r].next;
      const NodeId user = records_[r].user;
      if (user.valid() && erasing && mark_[user.index()] != kNone) continue;
      const std::uint32_t output = value_at(records_[r]).output;
      if (output >= replacement.to.size()) {
        if (!erasing) continue;
        for (const Replacement& marked : nodes) mark_[marked.node.index()] = kNone;
        fail(str("erases '", graph_.node(node).name(), "', which ",
                 user.valid() ? str("'", graph_.node(user).name(), "' still reads") : "is still a result"),
             node);
      }
      const ValueId to = replacement.to[output];
      if (!user.valid()) {
        results.emplace_back(records_[r].index, to);
      } else if (user != to.node) {
        move_use(r, to);
      }
    }
    for (std::uint32_t r = control_head_[node.index()]; r != kNone; r = records_[r].next) {
      if (mark_[records_[r].user.index()] == kNone) followers.push_back(records_[r].user);
    }
  }
  move_results(results);
  std::ranges::sort(followers);
  followers.erase(std::unique(followers.begin(), followers.end()), followers.end());
  return followers;
}

// The user runs after the replacements, and after the predecessors of the replaced nodes, through any number
// of replaced nodes.
void Rewriter::redirect_order(NodeId user, std::span<const Replacement> nodes, bool erasing) {
  ++epoch_;
  std::vector<NodeId> controls;
  std::vector<NodeId> through;  // nodes of the list still to be visited
  const auto first_time = [&](NodeId id) { return std::exchange(seen_[id.index()], epoch_) != epoch_; };
  const auto follow = [&](NodeId before) {
    if (before == user || !first_time(before)) return;
    (mark_[before.index()] == kNone ? controls : through).push_back(before);
  };
  for (const NodeId before : graph_.node(user).controls()) {
    follow(before);
    while (!through.empty()) {
      const Replacement& replacement = nodes[mark_[through.back().index()]];
      through.pop_back();
      for (const ValueId to : replacement.to) {
        if (to.node == user && !erasing) controls.push_back(replacement.node);  // the user wraps the node
        follow(to.node);
      }
      const Node& node = graph_.node(replacement.node);
      for (const NodeId earlier : node.controls()) follow(earlier);
      if (!replacement.to.empty()) continue;
      for (const ValueId input : node.inputs()) {
        if (mark_[input.node.index()] != kNone || !is_source(graph_.node(input.node))) follow(input.node);
      }
    }
  }
  replace_controls(user, controls);
}

void Rewriter::set_input(NodeId node, std::size_t index, ValueId value) {
  if (graph_.node(node).inputs()[index] == value) return;
  move_use(first_input_[node.index()] + static_cast<std::uint32_t>(index), value);
}

void Rewriter::add_control(NodeId node, NodeId before) {
  const std::size_t had = graph_.node(node).controls().size();
  graph_.add_control(node, before);
  if (graph_.node(node).controls().size() == had) return;
  const std::uint32_t record = take_record();
  records_[record].user = node;
  records_[record].index = first_control_[node.index()];
  first_control_[node.index()] = record;
  link(control_head_, before, record);
  changed_ = true;
}

void Rewriter::set_attribute(NodeId node, std::string_view name, AttributeValue value) {
  const AttributeValue* old = find_attribute(graph_.node(node).attributes(), name);
  if (old != nullptr && same_value(*old, value)) return;
  graph_.set_attribute(node, name, std::move(value));
  changed_ = true;
}

void Rewriter::set_device(NodeId node, std::string_view device) {
  if (graph_.node(node).device() == device) return;
  graph_.set_device(node, device);
  changed_ = true;
}

void Rewriter::set_results(std::vector<ValueId> results) {
  if (results == graph_.results()) return;
  for (std::uint32_t i = 0; i < graph_.results().size(); ++i) {
    unlink(data_head_, graph_.results()[i].node, first_result_ + i);
  }
  graph_.set_results(std::move(results));
  link_results();
  changed_ = true;
}

void Rewriter::rename(NodeId node, std::string_view name) {
  if (graph_.node(node).name() == name) return;
  graph_.rename(node, graph_.unique_name(name));
  changed_ = true;
}

void for_each_level(Graph& graph, const std::function<void(Graph& level)>& visit) {
  for (const NodeId id : graph.region_owners()) {
    for (std::size_t i = 0; i < graph.node(id).regions().size(); ++i)
      for_each_level(graph.region(id, i), visit);
  }
  visit(graph);
}

}  // namespace lockstep
