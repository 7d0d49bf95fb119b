// graph/run/compile.cpp - prepares a graph and its variables for planning; program.cpp makes the plans.
#include "lockstep/graph/run/compile.h"

#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/variable_store.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/run/variable_role.h"

namespace lockstep {

namespace {

// Creates the graph's variables that the store does not have yet, and aliases for those that share another's
// memory.
void bind_variables(const Graph& graph, const Runtime& runtime, VariableStore& store, SameStart same_start) {
  for (const VariableDecl& decl : graph.variables()) {
    VariableHome home;
    if (!decl.device.empty()) home = {decl.device, runtime.pool(Device::parse(decl.device))};
    if (decl.shares) {
      store.alias(decl.name, decl.copy_of);
      store.find_or_create(decl.name, decl.spec, {}, {}, decl.made_at, SameStart::kAny, home);  // checks it
      continue;
    }
    if (store.is_alias(decl.name)) {
      throw InvalidArgument(
          str("variable '", decl.name, "' lies in the memory of '", store.find(decl.name)->name(),
              "' in this store, as a program with equal copies left it, and the graph wants it by "
              "itself: VariableStore::erase() '",
              store.find(decl.name)->name(), "' once no program is bound to it, or use another store"));
    }
    store.find_or_create(
        decl.name, decl.spec,
        [&] {
          if (decl.initial.defined()) return decl.initial;
          if (!decl.copy_of.empty()) return store.value(decl.copy_of);  // a broadcast from the original
          return Tensor::zeros(decl.spec.dtype, decl.spec.shape);
        },
        role_of(decl), decl.made_at, same_start, home);
  }
}

// A node in a replica's code whose value depends on the other replicas, branches and loops included; nullptr
// if there is none.
const Node* combining_node(const Graph& replica) {
  for (const Node& node : replica.nodes()) {
    const OpTraits& traits = node.op().traits;
    if (traits.is(ReplicaRole::kCollective) || traits.is(ReplicaRole::kSumOverReplicas)) return &node;
    for (const Graph& region : node.regions()) {
      if (const Node* inner = combining_node(region)) return inner;
    }
  }
  return nullptr;
}

constexpr const char* kRemedy =
    "Let a strategy distribute the graph (Strategy::distribute, or lockstep run --strategy), or ask for it "
    "by name "
    "(CompileOptions::replicas_in_turn)";

// If replicas run in turn and change one variable, it changes several times a step, and each replica sees
// what the previous one left. And a value that they would combine is combined with nothing. Users rarely mean
// that.
void check_replicas(const Graph& graph) {
  for (const NodeId id : graph.region_owners()) {
    const Node& node = graph.node(id);
    if (const auto replicated = ReplicatedNode::of(node); replicated && replicated->replicas() > 1) {
      for (const VariableUse& use : variable_uses(node)) {
        if (!use.writes) continue;
        throw FailedPrecondition(
            str("'", node.name(), "' runs ", replicated->replicas(), " replicas that change variable '",
                use.name, "', of which there is one copy: it would change ", replicated->replicas(),
                " times a step. ", kRemedy),
            place_of(node));
      }
      if (const Node* combining = combining_node(replicated->region())) {
        throw FailedPrecondition(
            str("'", node.name(), "' runs ", replicated->replicas(), " replicas in turn, so that '",
                combining->name(), "' (", combining->op().name,
                "), which combines what all of them have, would see one. ", kRemedy),
            place_of(*combining));
      }
    }
    for (const Graph& region : node.regions()) check_replicas(region);
  }
}

}  // namespace

Program compile(Graph graph, const Runtime& runtime, const CompileOptions& options, SourceSite site) {
  return named_call("compile()", site, [&]() -> Program {
    if (options.max_plans < 1) throw InvalidArgument("CompileOptions::max_plans must be at least 1");
    CompileOptions bound = options;
    if (bound.variables == nullptr) bound.variables = runtime.variables();
    graph.compact();
    if (options.verify) verify(graph, &runtime.topology());
    if (!options.replicas_in_turn) check_replicas(graph);
    bind_variables(graph, runtime, *bound.variables, options.same_start);
    return {std::move(graph), runtime, bound};
  });
}

}  // namespace lockstep
