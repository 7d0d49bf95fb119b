// io/graphs/graph_diff.cpp - the differences between two graphs, node by node.
#include "lockstep/io/graphs/graph_diff.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <variant>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/text/text.h"

namespace lockstep {

namespace {

// All nodes of a graph, those inside regions too, in the order in which they print.
class Census {
 public:
  explicit Census(const Graph& graph) { add_level(graph, ""); }

  struct Entry {
    const Node* node;
    std::string name;  // with the path through the regions
  };
  const std::vector<Entry>& entries() const { return entries_; }
  const Entry* by_identity(std::uint64_t identity) const { return entry_of(identities_, identity); }
  const Entry* by_name(const std::string& name) const { return entry_of(names_, name); }
  const Entry& of(const Node& node) const { return entries_[nodes_.at(&node)]; }

 private:
  template <class Map, class Key>
  const Entry* entry_of(const Map& map, const Key& key) const {
    const auto found = map.find(key);
    return found == map.end() ? nullptr : &entries_[found->second];
  }
  void add_level(const Graph& graph, const std::string& prefix) {
    for (const NodeId id : graph.topological_order()) {
      const Node& node = graph.node(id);
      const std::size_t index = entries_.size();
      std::string name = prefix + node.name();
      entries_.push_back({&node, name});
      nodes_.emplace(&node, index);
      if (node.provenance().identity != 0) identities_.try_emplace(node.provenance().identity, index);
      names_.emplace(name, index);
      for (std::size_t r = 0; r < node.regions().size(); ++r)
        add_level(node.regions()[r], str(name, "{", r, "}/"));
    }
  }

  std::vector<Entry> entries_;
  std::unordered_map<const Node*, std::size_t> nodes_;
  std::unordered_map<std::uint64_t, std::size_t> identities_;
  NameMap<std::size_t> names_;
};

std::string shortened(std::string text) {
  constexpr std::size_t kMost = 60;
  if (text.size() > kMost) text = text.substr(0, kMost - 3) + "...";
  return text;
}

// Short: a large tensor is not written out, since nobody would read it.
std::string attribute_text(const AttributeValue* value) {
  constexpr std::int64_t kFewElements = 32;
  if (value == nullptr) return "none";
  if (const auto* const tensor = std::get_if<Tensor>(value);
      tensor != nullptr && tensor->defined() && tensor->num_elements() > kFewElements)
    return str(tensor->spec(), "{...}");
  return shortened(print(*value));
}

std::string list_of(const std::vector<std::string>& items) {
  std::string list;
  for (const std::string& item : items) list += str(list.empty() ? "" : ", ", item);
  return list.empty() ? "none" : list;
}

std::string value_text(const Graph& graph, ValueId value) {
  if (!graph.contains(value.node)) return "%?";
  const std::string& name = graph.node(value.node).name();
  return value.output == 0 ? "%" + name : str("%", name, ":", value.output);
}

std::string outputs_text(const Node& node) {
  std::string text;
  for (const TensorSpec& spec : node.outputs()) text += str(text.empty() ? "" : ", ", spec);
  return text;
}

// "[axes=[0], keepdims=false]"; empty if there are none.
std::string attributes_text(const Node& node) {
  std::string text;
  for (const Attribute& attribute : node.attributes())
    text += str(text.empty() ? "[" : ", ", attribute.name, "=", attribute_text(&attribute.value));
  return text.empty() ? text : text + "]";
}

std::string controls_text(const Node& node) {
  std::string text;
  for (const NodeId id : node.controls())
    text += str(text.empty() ? "" : ", ", value_text(node.graph(), {id, 0}));
  return text;
}

std::string node_text(const Node& node) {
  std::string text = str(node.op().name, attributes_text(node), "(");
  std::size_t shown = 0;
  for (const ValueId input : node.inputs()) {
    if (shown == 4) {
      text += str(", and ", node.inputs().size() - shown, " more");
      break;
    }
    text += str(shown++ == 0 ? "" : ", ", value_text(node.graph(), input));
  }
  text += ")";
  if (!node.outputs().empty()) text += " : " + shortened(outputs_text(node));
  if (!node.device().empty()) text += str(" on \"", node.device(), "\"");
  if (!node.controls().empty()) text += str(" after(", shortened(controls_text(node)), ")");
  return text;
}

class Comparison {
 public:
  Comparison(const Graph& before, const Graph& after)
      : before_graph_(before), after_graph_(after), before_(before), after_(after) {
    const bool related = std::ranges::any_of(after_.entries(), [&](const Census::Entry& entry) {
      const Provenance& provenance = entry.node->provenance();
      return before_.by_identity(provenance.identity) != nullptr ||
             before_.by_identity(provenance.origin) != nullptr;
    });
    diff_.by = related ? DiffBy::kIdentity : DiffBy::kName;
  }

  GraphDiff run() {
    for (const Census::Entry& entry : after_.entries()) {
      const Census::Entry* const old = match(entry, before_, after_);
      if (old == nullptr) {
        diff_.added.push_back(record(entry, before_));
      } else {
        compare(*old, entry);
      }
    }
    for (const Census::Entry& entry : before_.entries()) {
      if (match(entry, after_, before_) == nullptr) diff_.removed.push_back(record(entry, after_));
    }
    compare_interface();
    return std::move(diff_);
  }

 private:
  // The entry of `others` that matches `entry` of `own`. If an identity occurs twice in a graph, only its
  // first node is matched.
  const Census::Entry* match(const Census::Entry& entry, const Census& others, const Census& own) const {
    if (diff_.by == DiffBy::kName) return others.by_name(entry.name);
    const std::uint64_t identity = entry.node->provenance().identity;
    return own.by_identity(identity) == &entry ? others.by_identity(identity) : nullptr;
  }

  OneSidedNode record(const Census::Entry& entry, const Census& others) const {
    OneSidedNode made{entry.name, node_text(*entry.node), {}};
    const Provenance& provenance = entry.node->provenance();
    const Census::Entry* const origin =
        diff_.by == DiffBy::kIdentity ? others.by_identity(provenance.origin) : nullptr;
    if (origin == nullptr) return made;
    const Graph& graph = entry.node->graph();
    made.from = "%" + origin->name;
    if (provenance.made_by.valid()) made.from += str(", by ", graph.text(provenance.made_by));
    if (provenance.replica >= 0) made.from += str(", replica ", provenance.replica);
    return made;
  }

  // Are these the same node in the two graphs?
  bool same_node(const Node& old, const Node& now) const {
    if (diff_.by == DiffBy::kIdentity)
      return old.provenance().identity != 0 && old.provenance().identity == now.provenance().identity;
    return before_.of(old).name == after_.of(now).name;
  }

  void compare(const Census::Entry& old_entry, const Census::Entry& entry) {
    const Node& old = *old_entry.node;
    const Node& now = *entry.node;
    NodeChange change{entry.name, old_entry.name};
    if (change.renamed()) change.details.push_back(str("name: ", old_entry.name, " -> ", entry.name));
    if (old.op().name != now.op().name) {
      change.op = true;
      change.details.push_back(str("op: ", old.op().name, " -> ", now.op().name));
    }
    compare_inputs(old, now, change);
    compare_attributes(old, now, change);
    if (!std::ranges::equal(old.outputs(), now.outputs())) {
      change.specs = true;
      change.details.push_back(
          str("outputs: ", shortened(outputs_text(old)), " -> ", shortened(outputs_text(now))));
    }
    if (old.regions().size() != now.regions().size()) {
      change.op = true;
      change.details.push_back(str("regions: ", old.regions().size(), " -> ", now.regions().size()));
    } else {
      compare_regions(old, now, change);
    }
    const auto device = [](const Node& node) { return node.device().empty() ? "none" : node.device(); };
    if (old.device() != now.device()) {
      change.moved = true;
      change.details.push_back(str("device: ", device(old), " -> ", device(now)));
    }
    if (old.provenance().replica != now.provenance().replica) {
      change.moved = true;
      const auto replica = [](const Node& node) {
        return node.provenance().replica < 0 ? std::string("none") : str(node.provenance().replica);
      };
      change.details.push_back(str("replica: ", replica(old), " -> ", replica(now)));
    }
    if (change.details.empty()) {
      ++diff_.unchanged;
    } else {
      diff_.changed.push_back(std::move(change));
    }
  }

  void compare_inputs(const Node& old, const Node& now, NodeChange& change) const {
    const Graph& a = old.graph();
    const Graph& b = now.graph();
    const std::size_t most = std::max(old.inputs().size(), now.inputs().size());
    for (std::size_t i = 0; i < most; ++i) {
      const bool has_old = i < old.inputs().size(), has_now = i < now.inputs().size();
      if (has_old && has_now) {
        const ValueId x = old.inputs()[i], y = now.inputs()[i];
        if (x.output == y.output && a.contains(x.node) && b.contains(y.node) &&
            same_node(a.node(x.node), b.node(y.node)))
          continue;
      }
      change.rewired = true;
      change.details.push_back(str("input ", i, ": ", has_old ? value_text(a, old.inputs()[i]) : "none",
                                   " -> ", has_now ? value_text(b, now.inputs()[i]) : "none"));
    }
    const auto controls = [this](const Node& node, const Census& census) {
      std::map<std::string, std::string> names;  // identity or full name -> name
      for (const NodeId id : node.controls()) {
        if (!node.graph().contains(id)) continue;
        const Node& before = node.graph().node(id);
        names.emplace(
            diff_.by == DiffBy::kIdentity ? str(before.provenance().identity) : census.of(before).name,
            before.name());
      }
      return names;
    };
    const auto olds = controls(old, before_), nows = controls(now, after_);
    std::vector<std::string> gone, come;
    for (const auto& [key, name] : olds) {
      if (!nows.contains(key)) gone.push_back("%" + name);
    }
    for (const auto& [key, name] : nows) {
      if (!olds.contains(key)) come.push_back("%" + name);
    }
    if (gone.empty() && come.empty()) return;
    change.rewired = true;
    change.details.push_back(str("runs after: ", list_of(come), "; no longer after: ", list_of(gone)));
  }

  // Compares the parameters and results of each region; the nodes inside are compared like all others.
  void compare_regions(const Node& old, const Node& now, NodeChange& change) const {
    for (std::size_t r = 0; r < now.regions().size(); ++r) {
      const Graph& a = old.regions()[r];
      const Graph& b = now.regions()[r];
      const auto note = [&](std::string_view what, const std::string& difference) {
        if (difference.empty()) return;
        change.rewired = true;
        change.details.push_back(str("region ", r, " ", what, ": ", difference));
      };
      note("takes", list_difference(a, values_of(a.parameters()), b, values_of(b.parameters())));
      note("returns", list_difference(a, a.results(), b, b.results()));
    }
  }

  static void compare_attributes(const Node& old, const Node& now, NodeChange& change) {
    // Both lists are sorted by name.
    auto a = old.attributes().begin(), b = now.attributes().begin();
    const auto a_end = old.attributes().end(), b_end = now.attributes().end();
    while (a != a_end || b != b_end) {
      const bool has_a = a != a_end && (b == b_end || a->name <= b->name);
      const bool has_b = b != b_end && (a == a_end || b->name <= a->name);
      const std::string& name = has_a ? a->name : b->name;
      const AttributeValue* const x = has_a ? &(a++)->value : nullptr;
      const AttributeValue* const y = has_b ? &(b++)->value : nullptr;
      if (x != nullptr && y != nullptr) {
        if (same_value(*x, *y)) continue;
        if (type_of(*x) == AttributeType::kLambda && type_of(*y) == AttributeType::kLambda) continue;
      }
      change.attributes = true;
      change.details.push_back(str("attribute '", name, "': ", attribute_text(x), " -> ", attribute_text(y)));
    }
  }

  static std::vector<ValueId> values_of(const std::vector<NodeId>& nodes) {
    std::vector<ValueId> list;
    list.reserve(nodes.size());
    for (const NodeId id : nodes) list.push_back({id, 0});
    return list;
  }

  // "%a, %b -> %b"; empty if both lists are the same.
  std::string list_difference(const Graph& a, const std::vector<ValueId>& olds, const Graph& b,
                              const std::vector<ValueId>& nows) const {
    const bool same = std::ranges::equal(olds, nows, [&](ValueId x, ValueId y) {
      return x.output == y.output && a.contains(x.node) && b.contains(y.node) &&
             same_node(a.node(x.node), b.node(y.node));
    });
    if (same) return {};
    const auto texts = [](const Graph& graph, const std::vector<ValueId>& values) {
      std::vector<std::string> list;
      list.reserve(values.size());
      for (const ValueId value : values) list.push_back(value_text(graph, value));
      return shortened(list_of(list));
    };
    return str(texts(a, olds), " -> ", texts(b, nows));
  }

  void compare_interface() {
    const auto note = [&](std::string_view what, const std::string& difference) {
      if (!difference.empty()) diff_.interface.push_back(str(what, ": ", difference));
    };
    note("parameters", list_difference(before_graph_, values_of(before_graph_.parameters()), after_graph_,
                                       values_of(after_graph_.parameters())));
    note("results",
         list_difference(before_graph_, before_graph_.results(), after_graph_, after_graph_.results()));
    for (const VariableDecl& now : after_graph_.variables()) {
      const VariableDecl* const old = before_graph_.find_variable(now.name);
      if (old == nullptr) {
        diff_.interface.push_back(str("variable @", now.name, " added: ", now.spec,
                                      now.copy_of.empty() ? "" : str(", a copy of @", now.copy_of)));
      } else if (const std::string what = variable_difference(*old, now); !what.empty()) {
        diff_.interface.push_back(str("variable @", now.name, ": ", what));
      }
    }
    for (const VariableDecl& old : before_graph_.variables()) {
      if (after_graph_.find_variable(old.name) == nullptr)
        diff_.interface.push_back(str("variable @", old.name, " removed"));
    }
  }

  static std::string variable_difference(const VariableDecl& old, const VariableDecl& now) {
    std::vector<std::string> differences;
    const auto note = [&](std::string_view what, const auto& x, const auto& y) {
      if (!(x == y)) differences.push_back(str(what, " ", x, " -> ", y));
    };
    note("type", old.spec, now.spec);
    note("synchronization", to_string(old.synchronization), to_string(now.synchronization));
    note("aggregation", to_string(old.aggregation), to_string(now.aggregation));
    note("axis of slices", old.slice_axis, now.slice_axis);
    note("extent of slices", old.slice_extent, now.slice_extent);
    note("trainable", old.trainable, now.trainable);
    note("device", old.device.empty() ? "none" : old.device, now.device.empty() ? "none" : now.device);
    note("copy of", old.copy_of, now.copy_of);
    note("replica", old.replica, now.replica);
    note("shares", old.shares, now.shares);
    if (!same_value(old.initial, now.initial)) differences.emplace_back("another initial value");
    return differences.empty() ? "" : list_of(differences);
  }

  const Graph& before_graph_;
  const Graph& after_graph_;
  Census before_;
  Census after_;
  GraphDiff diff_;
};

}  // namespace

GraphDiff diff_graphs(const Graph& before, const Graph& after) { return Comparison(before, after).run(); }

std::string to_text(const GraphDiff& diff) {
  std::string text = str(diff.by == DiffBy::kIdentity ? "compared by identity (the graphs share an origin)"
                                                      : "compared by name (the graphs share no origin)",
                         ": ", diff.added.size(), " added, ", diff.removed.size(), " removed, ",
                         diff.changed.size(), " changed, ", diff.unchanged, " unchanged\n");
  for (const std::string& line : diff.interface) text += str("* ", line, "\n");
  for (const OneSidedNode& node : diff.removed) text += str("- %", node.name, " = ", node.text, "\n");
  for (const OneSidedNode& node : diff.added) {
    text += str("+ %", node.name, " = ", node.text, node.from.empty() ? "" : "  // from " + node.from, "\n");
  }
  for (const NodeChange& change : diff.changed) {
    text += str("~ %", change.name, "\n");
    for (const std::string& line : change.details) text += str("    ", line, "\n");
  }
  return text;
}

}  // namespace lockstep
