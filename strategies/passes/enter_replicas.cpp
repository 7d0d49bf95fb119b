// strategies/passes/enter_replicas.cpp - a plain graph as the region of one replicated node.
#include "lockstep/strategies/passes/enter_replicas.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/base/name_set.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/passes/split_updates.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/strategies/passes/internal/copies.h"
#include "lockstep/strategies/passes/internal/enter_replicas.h"
#include "lockstep/strategies/passes/internal/registrations.h"

namespace lockstep {

namespace {

constexpr std::string_view kEnterReplicas = "enter-replicas";

// The same nodes, with the given parameters; a region declares no variables.
Graph without_declarations(const Graph& graph, const std::vector<NodeId>& parameters) {
  Graph region;
  region.reserve(graph.size());
  std::vector<NodeId> ids(graph.id_bound());
  for (const NodeId id : graph.topological_order()) {
    const Node& node = graph.node(id);
    NodeInit init;
    init.op = &node.op();
    init.name = node.name();
    for (const ValueId input : node.inputs()) init.inputs.push_back({ids[input.node.index()], input.output});
    for (const NodeId before : node.controls()) init.controls.push_back(ids[before.index()]);
    init.outputs = SmallVector<TensorSpec, 1>(node.outputs());
    init.attributes = node.attributes();
    init.regions.assign(node.regions().begin(), node.regions().end());
    init.device = node.device();
    init.site = node.site();
    Provenance provenance = node.provenance();
    if (provenance.made_by.valid()) provenance.made_by = region.intern(graph.text(provenance.made_by));
    if (provenance.why.valid()) provenance.why = region.intern(graph.text(provenance.why));
    init.provenance = provenance;
    ids[id.index()] = region.add(std::move(init));
  }
  for (const NodeId id : parameters) region.add_parameter(ids[id.index()]);
  for (const ValueId result : graph.results()) region.add_result({ids[result.node.index()], result.output});
  return region;
}

// An all_gather of a plain step has the extent of one replica. In the code of several it awaits joining: what
// the others add is not known yet, and extents that depend on it are not either. `follows`: by node, whether
// its value depends on such an extent.
void open_gathers(Graph& level, const NodeView::VariableSpecs& variables, std::vector<bool> follows) {
  static const OpDef& gather = OpRegistry::global().get("all_gather");
  follows.resize(level.id_bound());
  for (const NodeId id : level.topological_order()) {
    const Node& node = level.node(id);
    const bool opened = &node.op() == &gather && !awaits_joining(node);
    if (opened) level.set_attribute(id, "replicas", std::int64_t{0});
    const std::vector<TensorSpec> inputs = input_specs(level, node);
    bool changes = opened || std::ranges::any_of(node.inputs(),
                                                 [&](ValueId input) { return follows[input.node.index()]; });
    const RegionKind kind = node.op().region_kind;
    if (kind == RegionKind::kCond || kind == RegionKind::kWhile) {
      const std::size_t first = kind == RegionKind::kCond ? 1 : 0;  // behind the predicate
      for (std::size_t r = 0; r < node.regions().size(); ++r) {
        Graph& inner = level.region(id, r);
        std::vector<bool> inner_follows(inner.id_bound());
        for (std::size_t i = 0; i < inner.parameters().size(); ++i) {
          const NodeId parameter = inner.parameters()[i];
          if (!follows[node.inputs()[first + i].node.index()]) continue;
          inner.set_outputs(parameter, {&inputs[first + i], 1});
          inner_follows[parameter.index()] = true;
        }
        open_gathers(inner, variables, std::move(inner_follows));
      }
      changes = true;  // perhaps
    }
    if (!changes) continue;
    if (!node.inputs().empty()) level.set_outputs(id, infer_outputs(node, inputs, variables));
    follows[id.index()] = true;
  }
}

void check_plain(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (node.provenance().replica < 0) continue;
    throw PassError(kEnterReplicas,
                    str("the node belongs to replica ", node.provenance().replica,
                        ": the graph is replicated already; give the step as it was before"),
                    place_of(node));
  }
  for (const VariableDecl& decl : graph.variables()) {
    if (decl.copy_of.empty()) continue;
    throw PassError(kEnterReplicas,
                    str("variable '", decl.name, "' is a copy of '", decl.copy_of,
                        "' for a replica: the graph is replicated already; give the step as it was before"));
  }
}

const OptionTable<EnterReplicasOptions>& enter_replicas_options() {
  static const auto table =
      OptionTable<EnterReplicasOptions>("enter-replicas",
                                        "the plain step of one replica becomes a replicated region")
          .required("replicas", &EnterReplicasOptions::replicas, "how many there shall be")
          .option("shared", &EnterReplicasOptions::shared, "placeholders that all replicas see")
          .rare_option("world", &EnterReplicasOptions::world, "replicas of all workers; 0: these are all");
  return table;
}

class EnterReplicas final : public Pass {
 public:
  explicit EnterReplicas(EnterReplicasOptions options) : options_(std::move(options)) {}
  std::string_view name() const override { return kEnterReplicas; }
  std::string to_string() const override { return enter_replicas_options().print(options_); }

 private:
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    // Of a step that was optimized by itself: the passes that follow look at single updates.
    const PassOutcome split = make_split_updates()->run(graph, context);
    const std::int64_t replicas = internal::max_replicas(graph);
    if (replicas == 0) {
      check_plain(graph);
      graph = internal::enter_replicas(graph, options_, kEnterReplicas);
      return PassOutcome::kChanged;
    }
    if (replicas != options_.replicas) {
      throw PassError(kEnterReplicas,
                      str("the graph has a region for ", replicas, " replicas, and ", options_.replicas,
                          " are wanted; give the step as it was before, or as many devices"));
    }
    return split;
  }

  EnterReplicasOptions options_;
};

// What the first worker feeds, for all.
ValueId of_all_workers(Graph& outer, ValueId value, const ReplicaRange& range) {
  const Node& placeholder = outer.node(value.node);
  NodeInit init;
  init.op = &OpRegistry::global().get("broadcast_replica");
  init.name = outer.unique_name(str(placeholder.name(), "/broadcast"));
  init.inputs.push_back(value);
  init.outputs.push_back(outer.spec(value));
  init.attributes = {{"replicas", std::int64_t{1}}};
  set_range(init.attributes, ReplicaRange(1, 0, range.world / range.local));
  init.site = placeholder.site();
  return {outer.add(std::move(init)), 0};
}

}  // namespace

namespace internal {

Graph enter_replicas(const Graph& graph, const EnterReplicasOptions& options, std::string_view pass) {
  Graph outer;
  const ReplicaRange range(options.replicas, 0, options.world == 0 ? options.replicas : options.world);
  for (const VariableDecl& decl : graph.variables()) outer.declare_variable(decl);
  NameSet shared(options.shared.begin(), options.shared.end());
  std::vector<NodeId> order;  // of the region's parameters: shared ones first
  std::vector<ValueId> inputs;
  const auto placeholder = [&](const Node& node, std::int64_t replica) {
    NodeInit init;
    init.op = &node.op();
    init.name = copy_name(node.name(), replica);
    init.outputs = SmallVector<TensorSpec, 1>(node.outputs());
    init.attributes = node.attributes();
    init.site = node.site();
    if (replica <= 0) init.provenance = node.provenance();
    const NodeId id = outer.add(std::move(init));
    outer.add_parameter(id);
    inputs.push_back({id, 0});
  };
  for (const NodeId id : graph.parameters()) {
    if (shared.erase(graph.node(id).name()) == 0) continue;
    order.push_back(id);
    placeholder(graph.node(id), -1);
    if (range.is_part()) inputs.back() = of_all_workers(outer, inputs.back(), range);
  }
  if (!shared.empty()) {
    throw PassError(pass, str("there is no placeholder '", *shared.begin(), "' to be shared"));
  }
  const auto singles = static_cast<std::int64_t>(order.size());
  for (const NodeId id : graph.parameters()) {
    if (std::ranges::find(order.begin(), order.begin() + singles, id) != order.begin() + singles) continue;
    order.push_back(id);
    for (std::int64_t r = 0; r < options.replicas; ++r) placeholder(graph.node(id), r);
  }
  Graph region = without_declarations(graph, order);
  if (range.world > 1) open_gathers(region, variable_specs(outer), {});
  NodeInit init;
  init.op = &OpRegistry::global().get("replicated");
  init.name = outer.unique_name("replicated");
  init.inputs = SmallVector<ValueId, 2>(std::span<const ValueId>(inputs));
  init.attributes = {{"replicas", options.replicas}, {"shared", singles}};
  set_range(init.attributes, range);
  for (const ValueId result : region.results()) {
    for (std::int64_t r = 0; r < options.replicas; ++r) init.outputs.push_back(region.spec(result));
  }
  const std::size_t outputs = init.outputs.size();
  init.regions.push_back(std::move(region));
  const NodeId id = outer.add(std::move(init));
  for (std::uint32_t i = 0; i < outputs; ++i) outer.add_result({id, i});
  return outer;
}

}  // namespace internal

std::unique_ptr<Pass> make_enter_replicas(EnterReplicasOptions options) {
  if (options.replicas < 1)
    throw BadOptionValue(str("enter-replicas: replicas must be at least 1, got ", options.replicas));
  if (options.world != 0 && (options.world < options.replicas || options.world % options.replicas != 0))
    throw BadOptionValue(str("enter-replicas: world must be a multiple of replicas, ", options.replicas,
                             ", got ", options.world));
  return std::make_unique<EnterReplicas>(std::move(options));
}

void internal::register_enter_replicas(PassRegistry& registry) {
  add_pass(registry, enter_replicas_options(), make_enter_replicas);
}

}  // namespace lockstep
