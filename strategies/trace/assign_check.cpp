// strategies/trace/assign_check.cpp - checks what replicas assign, once the whole step is traced.
#include "lockstep/strategies/trace/assign_check.h"

#include <algorithm>

#include "lockstep/graph/transform/sync.h"
#include "lockstep/strategies/trace/variable_rules.h"

namespace lockstep {

namespace {

// The number 0, spread over a shape or not: what Variable::assign_add(0) makes.
bool is_zero(const Graph& level, ValueId value) {
  const Node* node = &level.node(value.node);
  while (!node->inputs().empty() && node->op().traits.keeps_zeros) node = &level.node(node->inputs()[0].node);
  const auto* constant = node->find<Tensor>("value");
  return constant != nullptr && node->inputs().empty() && constant->shape().rank() == 0 &&
         constant->item() == 0;
}

// Variables for which it matters whether the values that replicas assign differ.
bool is_aggregated(const VariableDecl& decl) {
  const bool sums = decl.aggregation == Aggregation::kSum || decl.aggregation == Aggregation::kMean;
  return sums && decl.synchronization != Synchronization::kOnRead;
}

}  // namespace

void check_assigns(const Graph& step) {
  if (std::ranges::none_of(step.variables(), is_aggregated)) return;
  const SyncAnalysis sync(step);
  for (const SyncAnalysis::Level& level : sync.levels()) {
    if (level.replicas < 2 || level.final) continue;
    for (const Node& node : level.graph->nodes()) {
      const auto& update = node.op().traits.updates_variable;
      if (!update || update->gradient) continue;
      const auto* variable = node.find<VariableRef>(update->attribute);
      const VariableDecl* decl = variable == nullptr ? nullptr : step.find_variable(variable->name);
      if (decl == nullptr || !is_aggregated(*decl)) continue;
      const auto differs_at = [&](std::size_t input) {
        return sync.at(*level.graph, node.inputs()[input]) == ReplicaKind::kPerReplica;
      };
      const bool differs = differs_at(update->operand) || (update->indices && differs_at(*update->indices));
      if (!differs && is_zero(*level.graph, node.inputs()[update->operand])) continue;
      VariableQuestion question;
      question.synchronization = decl->synchronization;
      question.aggregation = decl->aggregation;
      question.action = VariableAction::kAssign;
      question.value = differs ? ReplicaKind::kPerReplica : ReplicaKind::kMirrored;
      question.floating = is_floating(decl->spec.dtype);
      question.replicas = level.replicas;
      const VariableAnswer answer = variable_rule(question);
      if (answer.meaning == VariableMeaning::kRefused)
        throw InvalidArgument(str("variable '", decl->name, "': ", answer.reason), place_of(node));
    }
  }
}

}  // namespace lockstep
