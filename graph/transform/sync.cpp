// graph/transform/sync.cpp - which values are equal on all replicas, why others are not, and which gradients
// replicas have yet to sum.
#include "lockstep/graph/transform/sync.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/graph/ir/internal/gradient_nodes.h"
#include "lockstep/graph/ir/replica_nodes.h"

namespace lockstep {

namespace {

bool same_values(std::span<const ValueId> values) {
  return std::ranges::all_of(values, [&](ValueId value) { return value == values[0]; });
}

}  // namespace

struct SyncAnalysis::Edges {
  std::vector<Edge> list;
  std::vector<std::uint32_t> sources;    // cells that are per replica by themselves
  std::vector<std::uint32_t> gradients;  // cells that gradients() made
  std::vector<std::uint32_t> together;   // cells that replicas make together
  std::vector<std::uint32_t> begin;      // by cell: its first entry in `ends`; set by arrange()
  std::vector<std::uint32_t> ends;

  // Marks an edge that does not carry "per replica", but does carry "depends on what replicas made together".
  static constexpr std::uint32_t kTogetherOnly = 0x80000000U;

  void add(std::uint32_t start, std::uint32_t end) { list.emplace_back(start, end); }
  void add_together(std::uint32_t start, std::uint32_t end) { list.emplace_back(start, end | kTogetherOnly); }

  // Sorts the edges by their start.
  void arrange(std::size_t cells) {
    begin.assign(cells + 1, 0);
    ends.resize(list.size());
    for (const Edge& edge : list) ++begin[edge.first + 1];
    for (std::size_t i = 0; i < cells; ++i) begin[i + 1] += begin[i];
    std::vector<std::uint32_t> next(begin.begin(), begin.end() - 1);
    for (const Edge& edge : list) ends[next[edge.first]++] = edge.second;
  }

  // The cells that can be reached from `starts`, along all edges (kAll) or without the kTogetherOnly ones
  // (kOwn). Sets `from`, if given, to the cell that each was reached from.
  enum class Along : std::uint8_t { kAll, kOwn };
  std::vector<bool> reach(const std::vector<std::uint32_t>& starts, Along along,
                          std::vector<std::uint32_t>* from = nullptr) const {
    std::vector<bool> reached(begin.size() - 1);
    std::vector<std::uint32_t> queue;
    for (const std::uint32_t start : starts) {
      if (reached[start]) continue;
      reached[start] = true;
      queue.push_back(start);
    }
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const std::uint32_t at = queue[head];
      for (std::uint32_t e = begin[at]; e < begin[at + 1]; ++e) {
        if (along == Along::kOwn && (ends[e] & kTogetherOnly) != 0) continue;
        const std::uint32_t end = ends[e] & ~kTogetherOnly;
        if (reached[end]) continue;
        reached[end] = true;
        if (from != nullptr) (*from)[end] = at;
        queue.push_back(end);
      }
    }
    return reached;
  }
};

SyncAnalysis::SyncAnalysis(const Graph& outermost) : outermost_(outermost) {
  add_cross(outermost);
  Edges edges;
  connect_cross(outermost, nullptr, edges);
  for (const Level& level : levels_) connect_level(level, edges);
  edges.arrange(cells_.size());
  from_.assign(cells_.size(), kNone);
  per_replica_ = edges.reach(edges.sources, Edges::Along::kOwn, &from_);
  together_ = edges.reach(edges.together, Edges::Along::kAll);
  edges.sources.insert(edges.sources.end(), edges.gradients.begin(), edges.gradients.end());
  share_ = edges.reach(edges.sources, Edges::Along::kOwn);
}

// --- levels and cells

void SyncAnalysis::add_cross(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (const auto replicated = ReplicatedNode::of(node)) {
      add_level(replicated->region(), replicated->range().world, replicated->is_update());
    } else {
      for (const Graph& region : node.regions()) add_cross(region);
    }
  }
}

void SyncAnalysis::add_level(const Graph& graph, std::int64_t replicas, bool final) {
  const auto level = static_cast<std::uint32_t>(levels_.size());
  index_.emplace(&graph, level);
  levels_.push_back({&graph, replicas, final});
  std::vector<std::uint32_t> first(graph.id_bound(), kNone);
  for (const Node& node : graph.nodes()) {
    first[node.id().index()] = static_cast<std::uint32_t>(cells_.size());
    const auto outputs = static_cast<std::uint32_t>(node.outputs().size());
    for (std::uint32_t i = 0; i < outputs; ++i) cells_.push_back({level, node.id().value, i});
    // A hub: connecting many inputs to many outputs directly would take too many edges.
    if (outputs > 1 && node.inputs().size() > 1) cells_.push_back({level, node.id().value, kHub});
  }
  first_.push_back(std::move(first));
  for (const Node& node : graph.nodes()) {
    const bool leaves = MergeCall::of(node).has_value();
    for (const Graph& region : node.regions()) {
      if (leaves) {
        add_cross(region);
      } else {
        add_level(region, replicas, final);
      }
    }
  }
}

std::uint32_t SyncAnalysis::cell(const Graph& level, ValueId value) const {
  const auto found = index_.find(&level);
  LOCKSTEP_CHECK(found != index_.end(), "the graph is no level of a replicated region");
  LOCKSTEP_CHECK(level.has_output(value), "the level has no such value");
  return first_[found->second][value.node.index()] + value.output;
}

// --- edges: what a per-replica value makes per replica

void SyncAnalysis::connect_cross(const Graph& graph, const MergeCall* merge, Edges& edges) {
  for (const Node& node : graph.nodes()) {
    if (const auto replicated = ReplicatedNode::of(node)) {
      connect_replicated(*replicated, merge, edges);
    } else {
      for (const Graph& region : node.regions()) connect_cross(region, nullptr, edges);
    }
  }
}

namespace {

// The result of another replicated node whose slots, one per replica in order, these values are.
std::optional<std::pair<const Graph*, ValueId>> result_of_replicas(const Graph& graph,
                                                                   std::span<const ValueId> values) {
  const auto maker = ReplicatedNode::of(graph.node(values[0].node));
  if (!maker || maker->replicas() != values.size()) return std::nullopt;
  const std::size_t result = maker->result(values[0].output);
  for (std::size_t r = 0; r < values.size(); ++r) {
    const auto output = static_cast<std::uint32_t>(maker->output(result, r));
    if (values[r] != ValueId{maker->node().id(), output}) return std::nullopt;
  }
  return std::pair(&maker->region(), maker->region().results()[result]);
}

// The input of a merge call whose slots, one per replica in order, these parameters are.
std::optional<ValueId> argument_of_merge(const MergeCall& merge, std::span<const ValueId> values) {
  if (merge.replicas() != values.size()) return std::nullopt;
  const std::vector<NodeId>& taken = merge.region().parameters();
  const auto input = static_cast<std::size_t>(std::ranges::find(taken, values[0].node) - taken.begin());
  if (input >= merge.node().inputs().size()) return std::nullopt;
  for (std::size_t r = 0; r < values.size(); ++r) {
    if (values[r].node != taken[merge.parameter(input, r)]) return std::nullopt;
  }
  return merge.node().inputs()[input];
}

}  // namespace

void SyncAnalysis::connect_replicated(const ReplicatedNode& node, const MergeCall* merge, Edges& edges) {
  const Graph& region = node.region();
  for (std::size_t i = node.shared(); i < region.parameters().size(); ++i) {
    const std::span<const ValueId> group = node.inputs(i);
    // One value for all replicas; but the one of a worker's only replica is its own.
    if (same_values(group) && (group.size() > 1 || !node.range().is_part())) continue;
    const std::uint32_t parameter = cell(region, {region.parameters()[i], 0});
    if (const auto made = result_of_replicas(node.node().graph(), group)) {
      edges.add(cell(*made->first, made->second), parameter);
      continue;
    }
    if (const auto argument = merge == nullptr ? std::nullopt : argument_of_merge(*merge, group)) {
      edges.add(cell(merge->node().graph(), *argument), parameter);
      continue;
    }
    edges.sources.push_back(parameter);
  }
}

void SyncAnalysis::connect_level(const Level& level, Edges& edges) {
  for (const Node& node : level.graph->nodes()) connect_node(level, node, edges);
}

bool SyncAnalysis::has_own_copies(const std::string& variable) const {
  const VariableDecl* decl = outermost_.find_variable(variable);
  if (decl == nullptr) return false;
  return decl->synchronization == Synchronization::kOnRead;
}

bool SyncAnalysis::names_own_copies(const Node& node, const std::string& attribute) const {
  const auto* variable = node.find<VariableRef>(attribute);
  return variable != nullptr && has_own_copies(variable->name);
}

void SyncAnalysis::connect_node(const Level& level, const Node& node, Edges& edges) {
  const Graph& graph = *level.graph;
  const std::uint32_t first = first_[index_.at(&graph)][node.id().index()];
  const auto outputs = static_cast<std::uint32_t>(node.outputs().size());
  const OpTraits& traits = node.op().traits;
  const auto all_outputs = [&](std::vector<std::uint32_t>& list) {
    for (std::uint32_t i = 0; i < outputs; ++i) list.push_back(first + i);
  };
  if (internal::is_gradient_share(node)) all_outputs(edges.gradients);
  if (const auto merge = MergeCall::of(node)) {
    const std::span<const ValueId> results = merge->region().results();
    const std::vector<std::size_t> firsts = merge->first_results();
    for (std::uint32_t i = 0; i < outputs; ++i) {
      if (!same_values(results.subspan(firsts[i], firsts[i + 1] - firsts[i])))
        edges.sources.push_back(first + i);
    }
    all_outputs(edges.together);
    connect_cross(merge->region(), &*merge, edges);
    return;
  }
  if (traits.is(ReplicaRole::kCollective) && traits.same_on_all) {
    all_outputs(edges.together);
    return;
  }
  if (traits.is(ReplicaRole::kSumOverReplicas)) return;
  // A share is mirrored if its inputs are; whether it must be summed is for is_summed() to say.
  const DifferenceSource difference = difference_of(node, outermost_);
  if (level.replicas > 1 && difference != DifferenceSource::kNone && difference != DifferenceSource::kShare)
    all_outputs(edges.sources);
  if (!node.regions().empty()) return connect_regions(node, edges);
  const auto& update = traits.updates_variable;
  const bool kept_equal = update && !names_own_copies(node, update->attribute);
  const std::uint32_t hub = outputs > 1 && node.inputs().size() > 1 ? first + outputs : kNone;
  for (std::uint32_t i = 0; hub != kNone && i < outputs; ++i) edges.add(hub, first + i);
  for (std::size_t i = 0; outputs > 0 && i < node.inputs().size(); ++i) {
    const std::uint32_t from = cell(graph, node.inputs()[i]);
    if (kept_equal && (i == update->operand || (update->indices && i == *update->indices))) {
      edges.add_together(from, first);
      continue;
    }
    if (hub != kNone) {
      edges.add(from, hub);
    } else {
      for (std::uint32_t j = 0; j < outputs; ++j) edges.add(from, first + j);
    }
  }
}

void SyncAnalysis::connect_regions(const Node& node, Edges& edges) {
  const Graph& graph = node.graph();
  const auto outputs = static_cast<std::uint32_t>(node.outputs().size());
  const auto output = [&](std::uint32_t i) { return cell(graph, {node.id(), i}); };
  const auto input = [&](std::size_t i) { return cell(graph, node.inputs()[i]); };
  const auto parameter = [&](const Graph& region, std::size_t i) {
    return cell(region, {region.parameters()[i], 0});
  };
  const auto result = [&](const Graph& region, std::size_t i) { return cell(region, region.results()[i]); };
  switch (node.op().region_kind) {
    case RegionKind::kCond:
      for (std::uint32_t i = 0; i < outputs; ++i) edges.add(input(0), output(i));
      for (const Graph& region : node.regions()) {
        for (std::size_t i = 1; i < node.inputs().size(); ++i) edges.add(input(i), parameter(region, i - 1));
        for (std::uint32_t i = 0; i < outputs; ++i) edges.add(result(region, i), output(i));
      }
      return;
    case RegionKind::kWhile: {
      const Graph& condition = node.regions()[0];
      const Graph& body = node.regions()[1];
      const std::size_t carried = body.results().size();
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        edges.add(input(i), parameter(condition, i));
        edges.add(input(i), parameter(body, i));
      }
      for (std::size_t i = 0; i < carried; ++i) {
        edges.add(result(body, i), parameter(condition, i));
        edges.add(result(body, i), parameter(body, i));
      }
      // If the loop keeps its trips, the carried values are followed by their values in each trip, and then
      // by the number of trips.
      for (std::uint32_t i = 0; i < outputs; ++i) {
        edges.add(result(condition, 0), output(i));
        if (i >= 2 * carried) continue;
        edges.add(input(i % carried), output(i));
        edges.add(result(body, i % carried), output(i));
      }
      return;
    }
    case RegionKind::kNone:
    case RegionKind::kReplicated: break;
  }
  // An unknown kind of region: everything outside may affect everything inside, and everything inside may
  // affect every output.
  if (outputs == 0 || node.regions().empty()) return;
  const bool has_hub = outputs > 1 && node.inputs().size() > 1;
  const std::uint32_t meet = has_hub ? output(outputs - 1) + 1 : output(0);
  for (std::size_t i = 0; i < node.inputs().size(); ++i) edges.add(input(i), meet);
  for (const Graph& region : node.regions()) {
    for (std::size_t i = 0; i < region.parameters().size(); ++i) edges.add(meet, parameter(region, i));
    for (std::size_t i = 0; i < region.results().size(); ++i) edges.add(result(region, i), meet);
  }
  for (std::uint32_t i = 0; i < outputs; ++i) {
    if (output(i) != meet) edges.add(meet, output(i));
  }
}

// --- answers

bool SyncAnalysis::covers(const Graph& level) const { return index_.contains(&level); }

const SyncAnalysis::Level& SyncAnalysis::level_of(const Graph& level) const {
  return levels_[index_.at(&level)];
}

ReplicaKind SyncAnalysis::at(const Graph& level, ValueId value) const {
  return per_replica_[cell(level, value)] ? ReplicaKind::kPerReplica : ReplicaKind::kMirrored;
}

bool SyncAnalysis::is_summed(const Graph& level, ValueId gradient) const {
  const std::uint32_t at = cell(level, gradient);
  return level_of(level).final || (together_[at] && !share_[at]);
}

std::vector<SyncAnalysis::Link> SyncAnalysis::chain(const Graph& level, ValueId value) const {
  std::vector<Link> links;
  std::uint32_t at = cell(level, value);
  if (!per_replica_[at]) return links;
  for (; at != kNone; at = from_[at]) {
    const Cell& here = cells_[at];
    if (here.output == kHub) continue;
    const NodeId id{here.node};
    links.push_back({&levels_[here.level].graph->node(id), {id, here.output}});
  }
  return links;
}

std::string SyncAnalysis::reason(const Node& node) const {
  if (MergeCall::of(node)) return "what a merge function gives each replica for itself";
  const std::string why = describe_difference(node, outermost_);
  return why.empty() ? "a per-replica input" : why;
}

std::string SyncAnalysis::explain(const Graph& level, ValueId value) const {
  const std::vector<Link> links = chain(level, value);
  if (links.empty())
    return str("'", level.node(value.node).name(), "' is the same on all replicas: nothing to explain");
  constexpr std::size_t kShown = 12;  // a long chain is shortened to its ends
  std::string text;
  for (std::size_t i = 0; i < links.size(); ++i) {
    const bool cut = links.size() > kShown && i >= kShown / 2 && i + kShown / 2 < links.size();
    if (cut) {
      if (i == kShown / 2) text += str(" <- (", links.size() - kShown, " more)");
      continue;
    }
    const Node& node = *links[i].node;
    if (!text.empty()) text += " <- ";
    text += node.name();
    const SourceSite site = node.site();
    const bool last = i + 1 == links.size();
    if (!site.known() && !last) continue;
    text += " (";
    if (site.known()) text += str(site.file, ":", site.line);
    if (last) text += str(site.known() ? ", " : "", reason(node));
    text += ")";
  }
  return text;
}

}  // namespace lockstep
