// strategies/passes/copies.cpp - which variables have copies for replicas, and making them.
#include "lockstep/strategies/passes/internal/copies.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/base/name_set.h"
#include "lockstep/core/device.h"
#include "lockstep/graph/ir/replica_nodes.h"

namespace lockstep::internal {

namespace {

template <class Visit>
void visit_replicated(const Graph& graph, const Visit& visit) {
  for (const NodeId id : graph.region_owners()) {
    const Node& node = graph.node(id);
    if (node.op().region_kind == RegionKind::kReplicated) {
      visit(node);
    } else {
      for (const Graph& region : node.regions()) visit_replicated(region, visit);
    }
  }
}

}  // namespace

NameSet replicated_variables(const Graph& graph) {
  NameSet names;
  visit_replicated(graph, [&](const Node& node) {
    for (const VariableUse& use : variable_uses(node)) names.insert(use.name);
  });
  return names;
}

std::int64_t max_replicas(const Graph& graph) {
  std::int64_t most = 0;
  visit_replicated(graph, [&](const Node& node) {
    most = std::max(most, static_cast<std::int64_t>(ReplicatedNode(node).replicas()));
  });
  return most;
}

bool declare_copies(Graph& graph, const NameSet& names, std::int64_t replicas,
                    std::span<const std::string> devices) {
  std::vector<std::string> homes;
  for (const std::string& device : devices) homes.push_back(Device::parse(device).to_string());
  std::vector<VariableDecl> copies;
  for (const VariableDecl& decl : graph.variables()) {
    if (!names.contains(decl.name) || !decl.copy_of.empty()) continue;
    for (std::int64_t r = 1; r < replicas; ++r) {
      std::string name = copy_name(decl.name, r);
      if (const VariableDecl* there = graph.find_variable(name)) {
        if (there->copy_of == decl.name && there->replica == r) continue;
        throw InvalidArgument(str("variable '", name, "' has the name of the copy of '", decl.name,
                                  "' for replica ", r, "; give it another"));
      }
      VariableDecl copy = decl;
      copy.name = std::move(name);
      copy.copy_of = decl.name;
      copy.initial = Tensor();
      copy.replica = static_cast<std::int32_t>(r);
      if (!homes.empty()) copy.device = homes[static_cast<std::size_t>(r) % homes.size()];
      copies.push_back(std::move(copy));
    }
  }
  for (VariableDecl& copy : copies) graph.declare_variable(std::move(copy));
  return !copies.empty();
}

VariableCopies::VariableCopies(const Graph& outermost) : graph_(outermost) {
  const std::vector<VariableDecl>& variables = outermost.variables();
  const auto is_copy = [](const VariableDecl& decl) { return !decl.copy_of.empty() && decl.replica > 0; };
  for (const VariableDecl& decl : variables) {
    if (is_copy(decl)) replicas_ = std::max(replicas_, static_cast<std::size_t>(decl.replica) + 1);
  }
  copies_.resize(variables.size() * replicas_);
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (!is_copy(variables[i])) continue;
    const std::size_t original = place_of(*outermost.find_variable(variables[i].copy_of));
    copies_[original * replicas_ + static_cast<std::size_t>(variables[i].replica)] =
        static_cast<std::uint32_t>(i);
  }
}

const VariableDecl* VariableCopies::copy(std::size_t variable, std::int64_t replica) const {
  const auto at = static_cast<std::size_t>(replica);
  if (at >= replicas_) return nullptr;
  const std::uint32_t place = copies_[variable * replicas_ + at];
  return place == 0 ? nullptr : &graph_.variables()[place];
}

const std::string& VariableCopies::name(const std::string& variable, std::int64_t replica) const {
  const VariableDecl* const decl = graph_.find_variable(variable);
  const VariableDecl* const own = decl == nullptr ? nullptr : copy(place_of(*decl), replica);
  return own == nullptr ? variable : own->name;
}

bool VariableCopies::is_mirrored(const std::string& name) const {
  const VariableDecl* decl = graph_.find_variable(name);
  return decl != nullptr && decl->synchronization != Synchronization::kOnRead;
}

}  // namespace lockstep::internal
