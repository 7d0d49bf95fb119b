// graph/check/verifier.cpp - checks that a graph can run.
#include "lockstep/graph/check/verifier.h"

#include <algorithm>

#include "lockstep/graph/check/internal/verifier_rules.h"

namespace lockstep {
namespace internal::verifier {
namespace {

// Rules that others rely on come first; of several broken ones the first is reported.
constexpr Rule kRules[] = {
    {"known-ops", known_ops, nullptr},
    {"unique-names", unique_names, nullptr},
    {"live-inputs", live_inputs, nullptr},
    {"control-inputs", control_inputs, nullptr},
    {"acyclic", nullptr, acyclic},
    {"arity", arity, nullptr},
    {"attributes", attributes, nullptr},
    {"region-count", region_count, nullptr},
    {"region-variables", nullptr, region_variables},
    {"parameters", nullptr, parameters},
    {"results", nullptr, results},
    {"region-signature", region_signature, nullptr},
    {"variables-declared", variables_declared, nullptr},
    {"merge-calls", nullptr, merge_calls},
    {"infer", infer, nullptr},
    {"output-count", output_count, nullptr},
    {"dtypes", dtypes, nullptr},
    {"shapes", shapes, nullptr},
    {"device-known", device_known, variable_device_known},
    {"variable-order", nullptr, variable_order},
};

void report(Run& run, std::size_t rule, const std::string& path, const std::string& message,
            ErrorPlace place) {
  if (!run.wants(rule)) return;
  if (run.first_only) run.found.clear();
  run.lowest = std::min(run.lowest, rule);
  Violation violation;
  violation.rule = kRules[rule].name;
  violation.message = path.empty() ? message : str("in ", path, ": ", message);
  violation.place = std::move(place);
  run.found.push_back({rule, std::move(violation)});
}

// The place of a node; its name is prefixed with the regions around it.
ErrorPlace place_in(const std::string& path, const Node& node) {
  ErrorPlace place = place_of(node);
  if (!path.empty()) place.node = str(path, ": ", place.node);
  return place;
}

void check_graph(GraphCheck& check);

// Checks the regions of a node, and records their accesses to variables.
void check_regions(NodeCheck& check) {
  const Node& node = check.node;
  std::vector<VariableAccess> accesses;
  for (std::size_t i = 0; i < node.regions().size(); ++i) {
    std::string path = check.graph_check.path;
    if (!path.empty()) path += '/';
    // Only the beginning of very long names: every nested region repeats the path.
    path.append(node.name(), 0, 200).append("/").append(region_label(node.op().region_kind, i));
    GraphCheck region{check.run, node.regions()[i], &node, std::move(path)};
    check_graph(region);
    check.regions_sound = check.regions_sound && region.sound;
    accesses.insert(accesses.end(), region.accesses.begin(), region.accesses.end());
  }
  if (!accesses.empty()) check.graph_check.region_accesses.emplace(node.id(), std::move(accesses));
}

void check_graph(GraphCheck& check) {
  constexpr std::size_t kSearchStepsPerNode = 16;
  check.run.search_budget += check.graph.size() * kSearchStepsPerNode;
  for (const Node& node : check.graph.nodes()) {
    NodeCheck node_check{check.run, check, check.graph, node};
    if (!node.regions().empty()) check_regions(node_check);
    for (std::size_t rule = 0; rule < std::size(kRules); ++rule) {
      if (kRules[rule].check_node == nullptr) continue;
      node_check.rule = rule;
      kRules[rule].check_node(node_check);
    }
  }
  for (std::size_t rule = 0; rule < std::size(kRules); ++rule) {
    if (kRules[rule].check_graph == nullptr) continue;
    check.rule = rule;
    kRules[rule].check_graph(check);
  }
}

std::vector<Run::Found> find(const Graph& graph, const Topology* topology, bool first_only) {
  Run run{.outermost = graph,
          .topology = topology,
          .first_only = first_only,
          .variables = variable_specs(graph),
          .placeholder = OpRegistry::global().find("placeholder"),
          .search_budget = 1000};
  GraphCheck check{run, graph, nullptr, {}};
  check_graph(check);
  std::ranges::stable_sort(run.found, {}, &Run::Found::rule);
  return std::move(run.found);
}

}  // namespace

std::span<const Rule> rules() { return kRules; }

void GraphCheck::fail(const std::string& message) {
  sound = false;
  ErrorPlace place;
  if (holder != nullptr) {
    place = place_of(*holder);
    place.node = path;
  }
  report(run, rule, path, message, std::move(place));
}

void GraphCheck::fail_at(const Node& node, const std::string& message) {
  sound = false;
  report(run, rule, path, message, place_in(path, node));
}

void NodeCheck::fail(const std::string& message) {
  sound = false;
  report(run, rule, graph_check.path, message, place_in(graph_check.path, node));
}

std::string region_label(RegionKind kind, std::size_t index) {
  switch (kind) {
    case RegionKind::kCond:
      if (index < 2) return index == 0 ? "then" : "else";
      break;
    case RegionKind::kWhile:
      if (index < 2) return index == 0 ? "condition" : "body";
      break;
    case RegionKind::kReplicated:
      if (index == 0) return "replica";
      break;
    case RegionKind::kNone: break;
  }
  return "region_" + std::to_string(index);
}

}  // namespace internal::verifier

VerifyError::VerifyError(Violation violation)
    : Error(ErrorCode::kInvalidArgument, str("graph rule '", violation.rule, "' broken: ", violation.message),
            std::move(violation.place)),
      rule_(std::move(violation.rule)) {}
VerifyError::~VerifyError() = default;

void verify(const Graph& graph, const Topology* topology) {
  auto found = internal::verifier::find(graph, topology, true);
  if (!found.empty()) throw VerifyError(std::move(found.front().violation));
}

std::vector<Violation> find_violations(const Graph& graph, const Topology* topology) {
  std::vector<Violation> violations;
  for (auto& one : internal::verifier::find(graph, topology, false))
    violations.push_back(std::move(one.violation));
  return violations;
}

std::vector<std::string> verifier_rules() {
  std::vector<std::string> names;
  for (const internal::verifier::Rule& rule : internal::verifier::rules()) names.emplace_back(rule.name);
  return names;
}

}  // namespace lockstep
