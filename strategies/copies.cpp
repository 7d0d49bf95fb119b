#include "lockstep/strategies/internal/copies.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/device.h"

namespace lockstep::internal {

namespace {

template <class Visit>
void visit_replicated(const Graph& graph, const Visit& visit) {
  for (const Node& node : graph.nodes()) {
    if (node.op().region_kind == RegionKind::kReplicated) {
      visit(node);
    } else {
      for (const Graph& region : node.regions()) visit_replicated(region, visit);
    }
  }
}

}  // namespace

std::unordered_set<std::string> replicated_variables(const Graph& graph) {
  std::unordered_set<std::string> names;
  visit_replicated(graph, [&](const Node& node) {
    for (const VariableUse& use : variable_uses(node)) names.insert(use.name);
  });
  return names;
}

std::int64_t max_replicas(const Graph& graph) {
  std::int64_t most = 0;
  visit_replicated(graph,
                   [&](const Node& node) { most = std::max(most, *node.find<std::int64_t>("replicas")); });
  return most;
}

bool declare_copies(Graph& graph, const std::unordered_set<std::string>& names, std::int64_t replicas,
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

VariableCopies::VariableCopies(const Graph& outermost)
    : graph_(outermost), copies_(outermost.variables().size()) {
  for (const VariableDecl& decl : outermost.variables()) {
    if (decl.copy_of.empty() || decl.replica < 1) continue;
    std::vector<std::uint32_t>& copies = copies_[place(*outermost.find_variable(decl.copy_of))];
    const auto at = static_cast<std::size_t>(decl.replica);
    if (copies.size() <= at) copies.resize(at + 1);
    copies[at] = static_cast<std::uint32_t>(place(decl));
  }
}

const std::string& VariableCopies::name(const std::string& variable, std::int64_t replica) const {
  const VariableDecl* decl = replica < 1 ? nullptr : graph_.find_variable(variable);
  if (decl == nullptr) return variable;
  const std::vector<std::uint32_t>& copies = copies_[place(*decl)];
  const auto at = static_cast<std::size_t>(replica);
  return at < copies.size() && copies[at] != 0 ? graph_.variables()[copies[at]].name : variable;
}

bool VariableCopies::is_mirrored(const std::string& name) const {
  const VariableDecl* decl = graph_.find_variable(name);
  return decl != nullptr && decl->synchronization != Synchronization::kOnRead;
}

}  // namespace lockstep::internal
