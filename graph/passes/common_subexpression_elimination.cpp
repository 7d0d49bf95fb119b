#include "lockstep/graph/passes/common_subexpression_elimination.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/replica_kind.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

class Hasher {
 public:
  void mix(std::uint64_t value) {
    state_ = (state_ ^ value) * 0x9E3779B97F4A7C15U;
    state_ ^= state_ >> 29U;
  }
  void mix_bytes(const void* data, std::size_t size) {
    const char* at = static_cast<const char*>(data);
    mix(size);
    for (; size >= 8; size -= 8, at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, at, 8);
      mix(word);
    }
    std::uint64_t rest = 0;
    if (size > 0) std::memcpy(&rest, at, size);
    mix(rest);
  }
  void mix(const std::string& text) { mix_bytes(text.data(), text.size()); }
  void mix(const Shape& shape) {
    for (const std::int64_t dim : shape.dims()) mix(static_cast<std::uint64_t>(dim));
  }
  void mix(const AttributeValue& value) {
    mix(value.index());
    std::visit([this](const auto& held) { mix_held(held); }, value);
  }
  std::uint64_t value() const { return state_; }

 private:
  void mix_held(bool held) { mix(std::uint64_t{held}); }
  void mix_held(std::int64_t held) { mix(static_cast<std::uint64_t>(held)); }
  void mix_held(double held) { mix(std::bit_cast<std::uint64_t>(held)); }
  void mix_held(const std::string& held) { mix(held); }
  void mix_held(DType held) { mix(static_cast<std::uint64_t>(held)); }
  void mix_held(const Shape& held) { mix(held); }
  void mix_held(const Tensor& held) {
    if (held.defined()) mix_bytes(held.raw(), held.num_bytes());
  }
  void mix_held(const VariableRef& held) { mix(held.name); }
  void mix_held(const Lambda& /*held*/) {}  // equal to nothing
  template <class T>
  void mix_held(const std::vector<T>& held) {
    mix(held.size());
    for (const T& item : held) mix_held(item);
  }

  std::uint64_t state_ = 0x2545F4914F6CDD1DU;
};

// What decides whether two nodes are equal, with merged inputs replaced by what they were merged into.
struct NodeKey {
  std::vector<ValueId> inputs;   // the two of a commutative op sorted
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
    for_each_level(graph, [&](Graph& level) { changed = merge(level) || changed; });
    return outcome_of(changed);
  }

  bool merge(Graph& graph) const {
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
    // Open addressing over the nodes that stay: their hash and id.
    std::vector<std::pair<std::uint64_t, NodeId>> table(std::bit_ceil(graph.size() * 2 + 1));
    std::vector<Rewriter::Replacement> duplicates;
    NodeKey key;
    NodeKey other_key;
    for (const NodeId id : graph.topological_order()) {
      const Node& node = graph.node(id);
      if (is_parameter[id.index()] || !may_merge(node)) continue;
      key_of(node, key);
      const std::uint64_t hash = hash_of(node, key);
      for (std::size_t at = hash & (table.size() - 1);; at = (at + 1) & (table.size() - 1)) {
        auto& [entry_hash, entry] = table[at];
        if (!entry.valid()) {
          entry_hash = hash;
          entry = id;
          break;
        }
        if (entry_hash != hash) continue;
        const Node& other = graph.node(entry);
        key_of(other, other_key);
        if (!same(node, key, other, other_key)) continue;
        merged_into[id.index()] = entry;
        Rewriter::Replacement& duplicate = duplicates.emplace_back(Rewriter::Replacement{id});
        for (std::uint32_t i = 0; i < node.outputs().size(); ++i) duplicate.to.push_back({entry, i});
        break;
      }
    }
    if (duplicates.empty()) return false;
    Rewriter(graph, name()).replace_and_erase(duplicates);
    return true;
  }

  static std::uint64_t hash_of(const Node& node, const NodeKey& key) {
    Hasher hasher;
    hasher.mix(reinterpret_cast<std::uintptr_t>(&node.op()));
    for (const ValueId input : key.inputs)
      hasher.mix((std::uint64_t{input.node.value} << 32U) | input.output);
    for (const NodeId control : key.controls) hasher.mix(~std::uint64_t{control.value});
    for (const Attribute& attribute : node.attributes()) {
      hasher.mix(attribute.name);
      hasher.mix(attribute.value);
    }
    return hasher.value();
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
