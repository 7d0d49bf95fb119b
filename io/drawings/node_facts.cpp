// io/drawings/node_facts.cpp - facts about a node that dumps show, besides its place in the graph.
#include "lockstep/io/drawings/internal/node_facts.h"

#include <algorithm>
#include <array>

#include "lockstep/core/error.h"
#include "lockstep/graph/text/text.h"

namespace lockstep::internal {

namespace {

constexpr std::int64_t kMaxElements = 8;
constexpr std::size_t kMaxText = 160;

TensorSpec with_ones(const TensorSpec& spec, bool& unknown) {
  std::vector<std::int64_t> dims;
  for (const std::int64_t dim : spec.shape.dims()) {
    unknown = unknown || dim == kUnknown;
    dims.push_back(dim == kUnknown ? 1 : dim);
  }
  return {spec.dtype, Shape(dims)};
}

bool has_replicas(const Graph& graph) {
  return std::ranges::any_of(graph.nodes(), [](const Node& node) { return node.provenance().replica >= 0; });
}

}  // namespace

std::string short_text(const AttributeValue& value) {
  if (const auto* tensor = std::get_if<Tensor>(&value)) {
    if (tensor->defined() && tensor->num_elements() > kMaxElements)
      return str(lockstep::to_string(tensor->spec()), ", ", tensor->num_bytes(), " bytes");
  }
  std::string text = print(value);
  if (text.size() > kMaxText) text = text.substr(0, kMaxText) + " ...";
  return text;
}

std::string site_text(const Node& node) {
  return node.site().known() ? str(node.site().file, ":", node.site().line) : std::string();
}

NodeFacts::NodeFacts(const Graph& outermost) : variables_(variable_specs(outermost)) {
  // A graph that breaks rules can still be looked at, without the facts that need those rules.
  try {
    sync_.emplace(outermost);
  } catch (const Error&) {
    sync_.reset();
  }
  if (!has_replicas(outermost)) return;
  try {
    congruence_.emplace(consistent_congruence(outermost));
    add_level(outermost, congruence_->top());
  } catch (const Error&) {
    levels_.clear();
  }
}

void NodeFacts::add_level(const Graph& level, const LevelClasses& classes) {
  levels_.try_emplace(&level, &classes, replica_kinds_of(level, classes));
  for (const Node& node : level.nodes()) {
    if (!classes.has_regions(node.id())) continue;
    for (std::size_t i = 0; i < node.regions().size(); ++i)
      add_level(node.regions()[i], classes.region(node.id(), i));
  }
}

std::string_view NodeFacts::replication(const Node& node) const {
  bool mirrored = false, per_replica = false;
  for (std::uint32_t i = 0; i < node.outputs().size(); ++i) {
    const ValueId value{node.id(), i};
    if (sync_ && sync_->covers(node.graph())) {
      (sync_->at(node.graph(), value) == ReplicaKind::kMirrored ? mirrored : per_replica) = true;
    } else if (const auto found = levels_.find(&node.graph()); found != levels_.end()) {
      const ReplicaKind kind = found->second.second[found->second.first->index(value)];
      mirrored = mirrored || kind == ReplicaKind::kMirrored;
      per_replica = per_replica || kind == ReplicaKind::kPerReplica;
    }
  }
  if (mirrored && per_replica) return "mixed";
  return mirrored ? "mirrored" : per_replica ? "per replica" : "";
}

std::optional<NodeFacts::Work> NodeFacts::work(const Node& node) const {
  if (!node.regions().empty()) return std::nullopt;
  Work work;
  std::vector<TensorSpec> inputs, outputs;
  for (const ValueId input : node.inputs()) {
    if (!node.graph().has_output(input)) return std::nullopt;
    inputs.push_back(with_ones(node.graph().spec(input), work.unknown));
  }
  for (const TensorSpec& output : node.outputs()) outputs.push_back(with_ones(output, work.unknown));
  const OpDef& op = node.op();
  try {
    if (op.cost) {
      work.cost = op.cost(view_of(node, inputs, variables_), outputs);
    } else {
      for (const TensorSpec& spec : inputs) work.cost.bytes += static_cast<double>(num_bytes(spec));
      for (const TensorSpec& spec : outputs) work.cost.bytes += static_cast<double>(num_bytes(spec));
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  return work;
}

}  // namespace lockstep::internal
