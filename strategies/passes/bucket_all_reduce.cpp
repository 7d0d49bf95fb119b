// strategies/passes/bucket_all_reduce.cpp - many small all-reduces become a few large ones.
#include "lockstep/strategies/passes/bucket_all_reduce.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/strategies/passes/internal/depths.h"
#include "lockstep/strategies/passes/internal/registrations.h"

namespace lockstep {

namespace {

constexpr std::string_view kBucketAllReduce = "bucket-all-reduce";

bool can_join(const Node& node) {
  const OpTraits& traits = node.op().traits;
  if (!traits.is(ReplicaRole::kCollective) || !traits.same_on_all || !node.regions().empty()) return false;
  if (node.find<std::string>("reduce") == nullptr || node.inputs().empty()) return false;
  if (node.outputs().size() != node.inputs().size() || !node.op().inputs.accepts(1 << 20)) return false;
  for (const TensorSpec& spec : node.outputs()) {
    if (spec.dtype != node.outputs()[0].dtype) return false;
  }
  return joined_replicas(node) == 1 && !awaits_joining(node);
}

bool same_attributes(const Node& a, const Node& b) {
  return std::ranges::equal(a.attributes(), b.attributes(), [](const Attribute& x, const Attribute& y) {
    return x.name == y.name && same_value(x.value, y.value);
  });
}

// A reduction that may go into a pack.
struct Item {
  NodeId node;
  std::uint32_t depth = 0;  // reductions on the longest path to it
  std::uint32_t level = 0;  // depth of its deepest input
  std::size_t ready = 0;    // when its last input is ready
  std::int64_t bytes = 0;
};

class BucketLevel {
 public:
  BucketLevel(Graph& graph, const Graph& outermost, const BucketAllReduceOptions& options)
      : graph_(graph), outermost_(outermost), options_(options) {}

  bool run() {
    const std::vector<Item> items = find_items();
    // Groups of items that may be joined with one another, ordered by their first items.
    std::vector<std::vector<Item>> groups;
    std::size_t first = 0;  // first group of this depth; few groups per depth: one for each kind of reduction
    for (const Item& item : items) {
      if (!groups.empty() && groups.back()[0].depth != item.depth) first = groups.size();
      std::size_t at = first;
      while (at < groups.size() && !alike(groups[at][0], item)) ++at;
      if (at == groups.size()) groups.emplace_back();
      groups[at].push_back(item);
    }
    for (const std::vector<Item>& group : groups) {
      for (const std::vector<Item>& pack : options_.num_packs > 0 ? by_number(group) : by_bytes(group)) {
        if (pack.size() > 1) join(pack);
      }
    }
    if (!edit_) return false;
    edit_->replace_and_erase(replaced_);
    return true;
  }

 private:
  // Sorted by depth, then by readiness.
  std::vector<Item> find_items() const {
    std::vector<Item> items;
    for (const Node& node : graph_.nodes()) {
      if (can_join(node)) items.push_back({.node = node.id()});
    }
    if (items.size() < 2) return {};
    const std::vector<NodeId> order = graph_.topological_order();
    std::vector<std::size_t> position(graph_.id_bound());
    std::vector<std::uint32_t> depth(graph_.id_bound());
    for (std::size_t at = 0; at < order.size(); ++at) {
      const Node& node = graph_.node(order[at]);
      position[order[at].index()] = at;
      std::uint32_t behind = 0;
      const auto comes_after = [&](NodeId before) {
        behind = std::max(behind, depth[before.index()] + (can_join(graph_.node(before)) ? 1U : 0U));
      };
      for (const ValueId input : node.inputs()) comes_after(input.node);
      for (const NodeId before : node.controls()) comes_after(before);
      depth[order[at].index()] = behind;
    }
    const std::vector<std::uint32_t> depths = internal::depths_of(graph_);
    for (Item& item : items) {
      item.depth = depth[item.node.index()];
      for (const ValueId input : graph_.node(item.node).inputs()) {
        item.level = std::max(item.level, depths[input.node.index()]);
        item.ready = std::max(item.ready, position[input.node.index()]);
        const TensorSpec& spec = graph_.spec(input);
        if (spec.shape.is_known()) item.bytes += num_bytes(spec);
      }
    }
    std::ranges::stable_sort(items, [&](const Item& a, const Item& b) {
      if (a.depth != b.depth) return a.depth < b.depth;
      if (a.level != b.level) return a.level < b.level;
      return a.ready != b.ready ? a.ready < b.ready : position[a.node.index()] < position[b.node.index()];
    });
    return items;
  }

  bool alike(const Item& a, const Item& b) const {
    const Node& first = graph_.node(a.node);
    const Node& second = graph_.node(b.node);
    const auto dtype = [](const Node& node) { return node.outputs()[0].dtype; };
    return a.depth == b.depth && &first.op() == &second.op() && dtype(first) == dtype(second) &&
           first.device() == second.device() && same_attributes(first, second);
  }

  using Packs = std::vector<std::vector<Item>>;

  Packs by_bytes(const std::vector<Item>& group) const {
    Packs packs(1);
    std::int64_t bytes = 0;
    for (const Item& item : group) {
      if (options_.bytes_per_pack > 0 && bytes > options_.bytes_per_pack) {
        packs.emplace_back();
        bytes = 0;
      }
      packs.back().push_back(item);
      bytes += item.bytes;
    }
    return packs;
  }

  // Closes a pack when the packed bytes reach its part of the total, or when the items left are just enough
  // to give each later pack one.
  Packs by_number(const std::vector<Item>& group) const {
    const auto wanted = static_cast<std::size_t>(options_.num_packs);
    double total = 0;
    for (const Item& item : group) total += static_cast<double>(item.bytes);
    const bool sizes = total > 0;  // no size is known: all items count the same
    if (!sizes) total = static_cast<double>(group.size());
    Packs packs(1);
    double packed = 0;
    for (std::size_t i = 0; i < group.size(); ++i) {
      const double size = sizes ? static_cast<double>(group[i].bytes) : 1.0;
      const double part = total * static_cast<double>(packs.size()) / static_cast<double>(wanted);
      const bool full = packed >= part || group.size() - i <= wanted - packs.size();
      if (!packs.back().empty() && full && packs.size() < wanted) packs.emplace_back();
      packs.back().push_back(group[i]);
      packed += size;
    }
    return packs;
  }

  void join(const std::vector<Item>& pack) {
    if (!edit_) edit_.emplace(graph_, kBucketAllReduce, &outermost_);
    const Node& first = graph_.node(pack[0].node);
    const std::string name = first.name() + "/pack";
    Rewriter::NewNode joined{.op = first.op().name, .name = name};
    joined.attributes = first.attributes();
    joined.origin = pack[0].node;
    for (const Item& item : pack) {
      const Node& node = graph_.node(item.node);
      joined.inputs.insert(joined.inputs.end(), node.inputs().begin(), node.inputs().end());
      for (const NodeId before : node.controls()) joined.controls.push_back(before);
    }
    std::ranges::sort(joined.controls);
    joined.controls.erase(std::unique(joined.controls.begin(), joined.controls.end()), joined.controls.end());
    const NodeId made = edit_->insert(std::move(joined));
    std::uint32_t output = 0;
    for (const Item& item : pack) {
      Rewriter::Replacement replacement{.node = item.node};
      for (std::size_t i = 0; i < graph_.node(item.node).outputs().size(); ++i)
        replacement.to.push_back({made, output++});
      replaced_.push_back(std::move(replacement));
    }
  }

  Graph& graph_;
  const Graph& outermost_;
  const BucketAllReduceOptions& options_;
  std::optional<Rewriter> edit_;
  std::vector<Rewriter::Replacement> replaced_;
};

const OptionTable<BucketAllReduceOptions>& bucket_all_reduce_options() {
  static const auto table = OptionTable<BucketAllReduceOptions>(
                                "bucket-all-reduce", "many small all-reduces become a few large ones")
                                .option("bytes_per_pack", &BucketAllReduceOptions::bytes_per_pack,
                                        "a pack is closed when it is larger; 0: one pack")
                                .option("num_packs", &BucketAllReduceOptions::num_packs,
                                        "above 0: that many packs of about equal bytes");
  return table;
}

class BucketAllReduce final : public Pass {
 public:
  explicit BucketAllReduce(const BucketAllReduceOptions& options) : options_(options) {}
  std::string_view name() const override { return kBucketAllReduce; }
  std::string to_string() const override {
    if (options_.num_packs > 0) return print_pass(kBucketAllReduce, {{"num_packs", options_.num_packs}});
    return print_pass(kBucketAllReduce, {{"bytes_per_pack", options_.bytes_per_pack}});
  }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    bool changed = false;
    for_each_level(graph,
                   [&](Graph& level) { changed = BucketLevel(level, graph, options_).run() || changed; });
    return outcome_of(changed);
  }

  BucketAllReduceOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_bucket_all_reduce(BucketAllReduceOptions options) {
  for (const auto& [name, value] :
       {std::pair("bytes_per_pack", options.bytes_per_pack), std::pair("num_packs", options.num_packs)}) {
    if (value < 0)
      throw BadOptionValue(str(kBucketAllReduce, ": ", name, " must be at least 0, got ", value));
  }
  if (options.num_packs > 0 && options.bytes_per_pack != BucketAllReduceOptions::kDefaultBytes) {
    throw BadOptionValue(str(kBucketAllReduce, ": bytes_per_pack=", options.bytes_per_pack,
                             " and num_packs=", options.num_packs, " say two things; give one of them"));
  }
  return std::make_unique<BucketAllReduce>(options);
}

void internal::register_bucket_all_reduce(PassRegistry& registry) {
  add_pass(registry, bucket_all_reduce_options(), make_bucket_all_reduce);
}

}  // namespace lockstep
