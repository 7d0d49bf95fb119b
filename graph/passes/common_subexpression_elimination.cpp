// graph/passes/common_subexpression_elimination.cpp - computes equal things once.
#include "lockstep/graph/passes/common_subexpression_elimination.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/base/number_table.h"
#include "lockstep/core/hasher.h"
#include "lockstep/graph/ir/attribute_hash.h"
#include "lockstep/graph/ir/internal/gradient_nodes.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/replica_kind.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

using internal::Hasher;
using internal::NumberTable;

// Two nodes are equal if their keys are. Inputs that were merged are replaced by the values they were merged
// into.
struct NodeKey {
  std::vector<ValueId> inputs;   // sorted if the op is commutative
  std::vector<NodeId> controls;  // sorted
};

bool may_merge(const Node& node) {
  const Effect effects = effects_of(node);
  return node.regions().empty() && !node.outputs().empty() &&
         (effects == Effect::kPure || effects == Effect::kRandom);
}

// Does the node's value depend on which replica it is for?
bool is_per_replica(const Node& node) {
  return differs_by_itself(node.op().traits) || has(effects_of(node), Effect::kRandom);
}

bool same_attributes(const Node& a, const Node& b) {
  return std::ranges::equal(a.attributes(), b.attributes(),
                            [](const Attribute& left, const Attribute& right) {
                              return left.name == right.name && same_value(left.value, right.value);
                            });
}

class CommonSubexpressionElimination final : public Pass {
 public:
  std::string_view name() const override { return "common-subexpression-elimination"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext& /*context*/) override {
    bool changed = false;
    for_each_level(graph, [&](Graph& level) { changed = merge(level, graph) || changed; });
    return outcome_of(changed);
  }

  bool merge(Graph& graph, const Graph& outermost) const {
    // In the code of a replica a gradient stays apart from an equal value that is none: the one has yet to be
    // summed over all replicas.
    std::optional<bool> replica_code;
    const auto may_be_one = [&](const Node& a, const Node& b) {
      if (internal::is_gradient_share(a) == internal::is_gradient_share(b)) return true;
      if (!replica_code) replica_code = is_replica_code(outermost, graph);
      return !*replica_code;
    };
    std::vector<NodeId> merged_into(graph.id_bound());
    const auto follow = [&](NodeId id) {
      const NodeId target = merged_into[id.index()];
      return target.valid() ? target : id;
    };
    const auto key_of = [&](const Node& node, NodeKey& key) {
      key.inputs.clear();
      key.controls.clear();
      for (const ValueId input : node.inputs()) key.inputs.push_back({follow(input.node), input.output});
      for (const NodeId control : node.controls()) key.controls.push_back(follow(control));
      if (node.op().traits.commutative && key.inputs.size() >= 2 && key.inputs[1] < key.inputs[0]) {
        std::swap(key.inputs[0], key.inputs[1]);
      }
      std::ranges::sort(key.controls);
      key.controls.erase(std::unique(key.controls.begin(), key.controls.end()), key.controls.end());
    };

    std::vector<bool> is_parameter(graph.id_bound(), false);
    for (const NodeId parameter : graph.parameters()) is_parameter[parameter.index()] = true;
    NumberTable staying;  // ids of nodes that stay
    staying.reset(graph.size() + 1);
    std::vector<Rewriter::Replacement> duplicates;
    NodeKey key;
    NodeKey other_key;
    for (const NodeId id : graph.topological_order()) {
      const Node& node = graph.node(id);
      if (is_parameter[id.index()] || !may_merge(node)) continue;
      key_of(node, key);
      const std::uint64_t hash = hash_of(node, key);
      const std::uint32_t twin = staying.find(hash, [&](std::uint32_t number) {
        const Node& other = graph.node(NodeId(number));
        key_of(other, other_key);
        return same(node, key, other, other_key) && may_be_one(node, other);
      });
      if (twin == NumberTable::kNone) {
        staying.insert(hash, id.index());
        continue;
      }
      merged_into[id.index()] = NodeId(twin);
      Rewriter::Replacement& duplicate = duplicates.emplace_back(Rewriter::Replacement{id});
      for (std::uint32_t i = 0; i < node.outputs().size(); ++i) duplicate.to.push_back({NodeId(twin), i});
    }
    if (duplicates.empty()) return false;
    Rewriter(graph, name()).replace_and_erase(duplicates);
    return true;
  }

  static std::uint64_t hash_of(const Node& node, const NodeKey& key) {
    Hasher hasher;
    hasher.add(reinterpret_cast<std::uintptr_t>(&node.op()));
    for (const ValueId input : key.inputs)
      hasher.add((std::uint64_t{input.node.value} << 32U) | input.output);
    for (const NodeId control : key.controls) hasher.add(~std::uint64_t{control.value});
    for (const Attribute& attribute : node.attributes()) {
      hasher.add(attribute.name);
      internal::add_value(hasher, attribute.value);
    }
    return hasher.result();
  }

  static bool same(const Node& a, const NodeKey& a_key, const Node& b, const NodeKey& b_key) {
    return &a.op() == &b.op() && a_key.inputs == b_key.inputs && a_key.controls == b_key.controls &&
           a.device() == b.device() && std::ranges::equal(a.outputs(), b.outputs()) &&
           same_attributes(a, b) && (a.provenance().replica == b.provenance().replica || !is_per_replica(a));
  }
};

}  // namespace

std::unique_ptr<Pass> make_common_subexpression_elimination() {
  return std::make_unique<CommonSubexpressionElimination>();
}

void internal::register_common_subexpression_elimination(PassRegistry& registry) {
  add_pass(registry, "common-subexpression-elimination", "computes equal things once",
           make_common_subexpression_elimination);
}

}  // namespace lockstep
