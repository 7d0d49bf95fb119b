// strategies/proof/collective_schedule.cpp - the order in which a graph communicates, to be compared between
// workers.
#include "lockstep/strategies/proof/collective_schedule.h"

#include <algorithm>

#include "lockstep/graph/ir/replica_nodes.h"

namespace lockstep {

namespace {

void collect(const Graph& level, const std::string& scope, CollectiveSchedule& schedule) {
  for (const NodeId id : level.topological_order()) {
    const Node& node = level.node(id);
    const std::string name = scope + node.name();
    if (has(node.op().effects, Effect::kCollective)) {
      ScheduledCollective entry{
          .id = schedule.size(), .name = name, .op = node.op().name, .reduce = {}, .tensors = {}};
      if (const auto* reduce = node.find<std::string>("reduce")) entry.reduce = *reduce;
      for (std::size_t i = 0; i < node.inputs().size() / joined_replicas(node); ++i) {
        const TensorSpec& spec = level.spec(node.inputs()[i]);
        entry.tensors.emplace_back(spec.dtype, spec.shape.is_known() ? spec.shape.num_elements() : -1);
      }
      schedule.push_back(std::move(entry));
    }
    for (const Graph& region : node.regions()) collect(region, name + "/", schedule);
  }
}

}  // namespace

std::string ScheduledCollective::to_string() const {
  std::string text = str(id, " ", op);
  if (!reduce.empty()) text += " " + reduce;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    text += str(i == 0 ? " " : ", ", lockstep::to_string(tensors[i].first), " x ");
    text += tensors[i].second < 0 ? "?" : std::to_string(tensors[i].second);
  }
  return text;
}

CollectiveSchedule collective_schedule(const Graph& graph) {
  CollectiveSchedule schedule;
  collect(graph, {}, schedule);
  return schedule;
}

std::string print_schedule(const CollectiveSchedule& schedule) {
  std::string text;
  for (const ScheduledCollective& entry : schedule) text += str(entry.to_string(), "  // ", entry.name, "\n");
  return text;
}

std::uint64_t collective_digest(const Graph& graph) { return collective_digest(collective_schedule(graph)); }

std::uint64_t collective_digest(const CollectiveSchedule& schedule) {
  std::uint64_t digest = 0xCBF29CE484222325U;  // FNV-1a
  for (const ScheduledCollective& entry : schedule) {
    for (const char c : entry.to_string() + "\n")
      digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  }
  return digest;
}

}  // namespace lockstep
