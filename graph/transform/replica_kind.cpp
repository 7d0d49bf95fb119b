// graph/transform/replica_kind.cpp - the rule for where a difference between replicas begins.
#include "lockstep/graph/transform/replica_kind.h"

namespace lockstep {

namespace {

// The node's own effects, without those of its regions.
Effect own_effects(const Node& node) {
  if (node.regions().empty()) return effects_of(node);
  if (node.op().traits.declares_effects) {
    if (const auto* declared = node.find<std::int64_t>("effects")) return static_cast<Effect>(*declared);
  }
  return node.op().effects;
}

// The variable whose value the node uses, if each replica has its own value of it; else nullptr.
const VariableRef* own_variable(const Node& node, const Graph& outermost) {
  const auto own = [&](const std::string& attribute) -> const VariableRef* {
    const auto* variable = node.find<VariableRef>(attribute);
    const VariableDecl* decl = variable == nullptr ? nullptr : outermost.find_variable(variable->name);
    return decl != nullptr && decl->synchronization == Synchronization::kOnRead ? variable : nullptr;
  };
  const OpTraits& traits = node.op().traits;
  if (traits.reads_variable) {
    if (const VariableRef* variable = own(*traits.reads_variable)) return variable;
  }
  const auto& update = traits.updates_variable;
  return update && update->uses_old_value ? own(update->attribute) : nullptr;
}

}  // namespace

std::string_view to_string(ReplicaKind kind) {
  switch (kind) {
    case ReplicaKind::kSingle: return "single";
    case ReplicaKind::kMirrored: return "mirrored";
    case ReplicaKind::kPerReplica: return "per replica";
  }
  return "?";
}

bool differs_by_itself(const OpTraits& traits) {
  return traits.is(ReplicaRole::kOwnSource) || traits.is(ReplicaRole::kReplicaNumber) ||
         (traits.is(ReplicaRole::kCollective) && !traits.same_on_all);
}

DifferenceSource difference_of(const Node& node, const Graph& outermost) {
  const OpTraits& traits = node.op().traits;
  if (traits.is(ReplicaRole::kReplicaNumber)) return DifferenceSource::kReplicaNumber;
  if (own_variable(node, outermost) != nullptr) return DifferenceSource::kOwnVariable;
  const Effect effects = own_effects(node);
  if (has(effects, Effect::kRandom)) return DifferenceSource::kRandom;
  if (has(effects, Effect::kHost | Effect::kOpaque)) return DifferenceSource::kOpaque;
  if (differs_by_itself(traits)) return DifferenceSource::kOwnSource;
  return traits.is(ReplicaRole::kShare) ? DifferenceSource::kShare : DifferenceSource::kNone;
}

std::string describe_difference(const Node& node, const Graph& outermost) {
  switch (difference_of(node, outermost)) {
    case DifferenceSource::kNone: return {};
    case DifferenceSource::kReplicaNumber: return "the number of the replica";
    case DifferenceSource::kOwnVariable:
      return str("variable '", own_variable(node, outermost)->name, "' is synchronized on read");
    case DifferenceSource::kRandom: return "random numbers, drawn by each replica";
    case DifferenceSource::kOpaque: return "nobody knows what it gives";
    case DifferenceSource::kOwnSource: return str("op '", node.op().name, "' says so");
    case DifferenceSource::kShare: return "a replica's share";
  }
  return {};
}

}  // namespace lockstep
