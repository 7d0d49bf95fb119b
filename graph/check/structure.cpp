// graph/check/structure.cpp - compares and hashes graphs by structure.
#include "lockstep/graph/check/structure.h"

#include <algorithm>
#include <span>

#include "lockstep/core/hasher.h"
#include "lockstep/graph/ir/attribute_hash.h"
#include "lockstep/graph/text/text.h"

namespace lockstep {
namespace {

using internal::Hasher;

// --- comparing

bool same_attribute_value(const AttributeValue& a, const AttributeValue& b) {
  // Code cannot be compared: two lambdas in the same place count as one.
  if (std::holds_alternative<Lambda>(a) && std::holds_alternative<Lambda>(b)) return true;
  return same_value(a, b);
}

std::string shortened(std::string text) {
  constexpr std::size_t kShown = 80;
  if (text.size() > kShown) text.replace(kShown, std::string::npos, "...");
  return text;
}

// Compares two graphs and describes the first difference. Nodes are matched by name.
class Comparison {
 public:
  Comparison(const Graph& a, const Graph& b, std::string path) : a_(a), b_(b), path_(std::move(path)) {}

  // Empty if there is none.
  std::string difference() {
    if (same_variables() && same_nodes() && same_interface()) return {};
    return std::move(difference_);
  }

 private:
  // Always false, so that it can be returned.
  bool differ(const std::string& what) {
    difference_ = path_.empty() ? what : str("in ", path_, ": ", what);
    return false;
  }
  bool differ(const Node& node, const std::string& what) {
    return differ(str("node '", node.name(), "': ", what));
  }

  static std::string use_text(const Graph& graph, ValueId value) {
    std::string text =
        graph.contains(value.node) ? graph.node(value.node).name() : "a node that is not there";
    return value.output == 0 ? str("'", text, "'") : str("'", text, "':", value.output);
  }

  // Is in_b the node of b that has the name of in_a? A missing node matches only a missing one.
  bool same_node(NodeId in_a, NodeId in_b) const {
    if (!a_.contains(in_a)) return !b_.contains(in_b);
    return twins_[in_a.index()] == in_b;
  }
  bool same_use(ValueId in_a, ValueId in_b) const {
    return in_a.output == in_b.output && same_node(in_a.node, in_b.node);
  }

  bool same_nodes() {
    twins_.resize(a_.id_bound());
    for (const Node& node : a_.nodes()) {
      // In copies the ids agree: look there first.
      const bool same_id = b_.contains(node.id()) && b_.node(node.id()).name() == node.name();
      const NodeId twin = same_id ? node.id() : b_.find(node.name());
      if (!twin.valid()) return differ(str("node '", node.name(), "' is only in the first graph"));
      twins_[node.id().index()] = twin;
    }
    if (a_.size() != b_.size()) {
      for (const Node& node : b_.nodes()) {
        if (!a_.find(node.name()).valid())
          return differ(str("node '", node.name(), "' is only in the second graph"));
      }
    }
    for (const Node& node : a_.nodes()) {
      if (!same_node_contents(node, b_.node(twins_[node.id().index()]))) return false;
    }
    return true;
  }

  bool same_node_contents(const Node& a, const Node& b) {
    if (&a.op() != &b.op() && a.op().name != b.op().name) {
      return differ(a, str("op '", a.op().name, "' against '", b.op().name, "'"));
    }
    if (!same_inputs(a, b) || !same_controls(a, b) || !same_attributes(a, b)) return false;
    if (!std::ranges::equal(a.outputs(), b.outputs())) return differ(a, "the output specs differ");
    if (a.device() != b.device())
      return differ(a, str("device '", a.device(), "' against '", b.device(), "'"));
    if (a.provenance().replica != b.provenance().replica) {
      return differ(a, str("for replica ", a.provenance().replica, " against ", b.provenance().replica));
    }
    return same_regions(a, b);
  }

  bool same_inputs(const Node& a, const Node& b) {
    if (a.inputs().size() != b.inputs().size()) {
      return differ(a, str(a.inputs().size(), " inputs against ", b.inputs().size()));
    }
    for (std::size_t i = 0; i < a.inputs().size(); ++i) {
      if (same_use(a.inputs()[i], b.inputs()[i])) continue;
      return differ(
          a, str("input ", i, " is ", use_text(a_, a.inputs()[i]), " against ", use_text(b_, b.inputs()[i])));
    }
    return true;
  }

  // As sets.
  bool same_controls(const Node& a, const Node& b) {
    if (a.controls().empty() && b.controls().empty()) return true;
    const auto sorted_set = [](std::vector<NodeId>& ids) {
      std::ranges::sort(ids);
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    };
    first_.clear();
    for (const NodeId id : a.controls()) first_.push_back(a_.contains(id) ? twins_[id.index()] : NodeId());
    second_.clear();
    for (const NodeId id : b.controls()) second_.push_back(b_.contains(id) ? id : NodeId());
    sorted_set(first_);
    sorted_set(second_);
    if (first_ == second_) return true;
    return differ(a, "it runs after other nodes");
  }

  bool same_attributes(const Node& a, const Node& b) {
    const std::vector<Attribute>& in_a = a.attributes();
    const std::vector<Attribute>& in_b = b.attributes();
    for (std::size_t i = 0; i < std::max(in_a.size(), in_b.size()); ++i) {
      if (i == in_b.size() || (i < in_a.size() && in_a[i].name < in_b[i].name)) {
        return differ(a, str("attribute '", in_a[i].name, "' is only in the first graph"));
      }
      if (i == in_a.size() || in_b[i].name < in_a[i].name) {
        return differ(a, str("attribute '", in_b[i].name, "' is only in the second graph"));
      }
      if (!same_attribute_value(in_a[i].value, in_b[i].value)) {
        return differ(a, str("attribute '", in_a[i].name, "' is ", shortened(print(in_a[i].value)),
                             " against ", shortened(print(in_b[i].value))));
      }
    }
    return true;
  }

  bool same_regions(const Node& a, const Node& b) {
    if (a.regions().size() != b.regions().size()) {
      return differ(a, str(a.regions().size(), " regions against ", b.regions().size()));
    }
    for (std::size_t i = 0; i < a.regions().size(); ++i) {
      std::string path = str(path_, path_.empty() ? "" : "/", a.name(), "/region_", i);
      difference_ = Comparison(a.regions()[i], b.regions()[i], std::move(path)).difference();
      if (!difference_.empty()) return false;
    }
    return true;
  }

  bool same_interface() {
    const std::vector<NodeId>& parameters_a = a_.parameters();
    const std::vector<NodeId>& parameters_b = b_.parameters();
    if (parameters_a.size() != parameters_b.size()) {
      return differ(str(parameters_a.size(), " parameters against ", parameters_b.size()));
    }
    for (std::size_t i = 0; i < parameters_a.size(); ++i) {
      if (same_node(parameters_a[i], parameters_b[i])) continue;
      return differ(str("parameter ", i, " is ", use_text(a_, {parameters_a[i], 0}), " against ",
                        use_text(b_, {parameters_b[i], 0})));
    }
    const std::vector<ValueId>& results_a = a_.results();
    const std::vector<ValueId>& results_b = b_.results();
    if (results_a.size() != results_b.size()) {
      return differ(str(results_a.size(), " results against ", results_b.size()));
    }
    for (std::size_t i = 0; i < results_a.size(); ++i) {
      if (same_use(results_a[i], results_b[i])) continue;
      return differ(
          str("result ", i, " is ", use_text(a_, results_a[i]), " against ", use_text(b_, results_b[i])));
    }
    return true;
  }

  bool same_variables() {
    for (const VariableDecl& a : a_.variables()) {
      const VariableDecl* b = b_.find_variable(a.name);
      if (b == nullptr) return differ(str("variable '@", a.name, "' is only in the first graph"));
      if (a.spec != b->spec) return differ(str("variable '@", a.name, "' is ", a.spec, " against ", b->spec));
      if (!same_value(a.initial, b->initial))
        return differ(str("variable '@", a.name, "' starts with another value"));
      const bool same_options = a.synchronization == b->synchronization && a.aggregation == b->aggregation &&
                                a.trainable == b->trainable && a.device == b->device &&
                                a.copy_of == b->copy_of && a.replica == b->replica && a.shares == b->shares &&
                                a.slice_axis == b->slice_axis && a.slice_extent == b->slice_extent;
      if (!same_options) return differ(str("variable '@", a.name, "' has other options"));
    }
    for (const VariableDecl& b : b_.variables()) {
      if (a_.find_variable(b.name) == nullptr)
        return differ(str("variable '@", b.name, "' is only in the second graph"));
    }
    return true;
  }

  const Graph& a_;
  const Graph& b_;
  const std::string path_;
  std::string difference_;
  std::vector<NodeId> twins_;  // by id in a: the node of b of the same name
  std::vector<NodeId> first_;
  std::vector<NodeId> second_;
};

// --- hashing

// Nodes and variables are sets, told apart by name: their hashes are added up, so that ids do not count.
class GraphHash {
 public:
  explicit GraphHash(const Graph& graph) : graph_(graph) {}

  std::uint64_t compute() {
    names_.resize(graph_.id_bound());
    for (const Node& node : graph_.nodes()) names_[node.id().index()] = Hasher().add(node.name()).result();
    std::uint64_t nodes = 0;
    for (const Node& node : graph_.nodes()) nodes += node_hash(node);
    std::uint64_t variables = 0;
    for (const VariableDecl& variable : graph_.variables()) variables += variable_hash(variable);
    Hasher hasher;
    hasher.add(std::uint64_t{graph_.size()}).add(nodes).add(variables);
    hasher.add(std::uint64_t{graph_.parameters().size()});
    for (const NodeId id : graph_.parameters()) hasher.add(name_hash(id));
    hasher.add(std::uint64_t{graph_.results().size()});
    for (const ValueId value : graph_.results())
      hasher.add(name_hash(value.node)).add(std::uint64_t{value.output});
    return hasher.result();
  }

 private:
  // 0 for a missing node. Asking the graph would touch the node, and reaching distant memory is the main
  // cost.
  std::uint64_t name_hash(NodeId id) const { return id.index() < names_.size() ? names_[id.index()] : 0; }

  std::uint64_t node_hash(const Node& node) {
    Hasher hasher;
    hasher.add(names_[node.id().index()]).add(op_hash(node.op())).add(std::uint64_t{node.inputs().size()});
    for (const ValueId input : node.inputs()) hasher.add(name_hash(input.node) + input.output);
    if (!node.controls().empty()) hasher.add(controls_hash(node));
    hasher.add(std::uint64_t{node.attributes().size()});
    for (const Attribute& attribute : node.attributes())
      internal::add_value(hasher.add(attribute.name), attribute.value);
    hasher.add(std::uint64_t{node.outputs().size()});
    for (const TensorSpec& output : node.outputs()) hasher.add(output);
    hasher.add(node.device()).add(static_cast<std::uint64_t>(node.provenance().replica));
    hasher.add(std::uint64_t{node.regions().size()});
    for (const Graph& region : node.regions()) hasher.add(GraphHash(region).compute());
    return hasher.result();
  }

  // As a set: neither order nor repetition counts.
  std::uint64_t controls_hash(const Node& node) {
    hashes_.clear();
    for (const NodeId id : node.controls()) hashes_.push_back(name_hash(id));
    std::ranges::sort(hashes_);
    hashes_.erase(std::unique(hashes_.begin(), hashes_.end()), hashes_.end());
    Hasher hasher;
    for (const std::uint64_t hash : hashes_) hasher.add(hash);
    return hasher.result();
  }

  std::uint64_t op_hash(const OpDef& op) {
    if (&op != last_op_) {
      last_op_ = &op;
      last_op_hash_ = Hasher().add(op.name).result();
    }
    return last_op_hash_;
  }

  static std::uint64_t variable_hash(const VariableDecl& variable) {
    Hasher hasher;
    hasher.add(variable.name).add(variable.spec).add(variable.initial);
    hasher.add(static_cast<std::uint64_t>(variable.synchronization));
    hasher.add(static_cast<std::uint64_t>(variable.aggregation));
    if (variable.aggregation == Aggregation::kSlices)
      hasher.add(static_cast<std::uint64_t>(variable.slice_axis))
          .add(static_cast<std::uint64_t>(variable.slice_extent));
    hasher.add(variable.device).add(variable.copy_of);
    hasher.add(static_cast<std::uint64_t>(variable.replica));
    return hasher.add(std::uint64_t{variable.trainable}).add(std::uint64_t{variable.shares}).result();
  }

  const Graph& graph_;
  std::vector<std::uint64_t> names_;  // by id: the hash of the node's name
  std::vector<std::uint64_t> hashes_;
  const OpDef* last_op_ = nullptr;
  std::uint64_t last_op_hash_ = 0;
};

}  // namespace

bool same_structure(const Graph& a, const Graph& b) { return structural_difference(a, b).empty(); }

std::string structural_difference(const Graph& a, const Graph& b) {
  return Comparison(a, b, {}).difference();
}

std::uint64_t structural_hash(const Graph& graph) { return GraphHash(graph).compute(); }

}  // namespace lockstep
