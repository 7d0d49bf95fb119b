#include "lockstep/io/graph_view.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/internal/view_maker.h"

namespace lockstep {

std::string_view to_string(ViewKind kind) {
  switch (kind) {
    case ViewKind::kCompute: return "compute";
    case ViewKind::kParameter: return "parameter";
    case ViewKind::kConstant: return "constant";
    case ViewKind::kRead: return "read";
    case ViewKind::kUpdate: return "update";
    case ViewKind::kCollective: return "collective";
    case ViewKind::kCopy: return "copy";
    case ViewKind::kRegions: return "regions";
  }
  return "?";
}

std::string_view to_string(ViewChange change) {
  switch (change) {
    case ViewChange::kNone: return "none";
    case ViewChange::kAdded: return "added";
    case ViewChange::kRewired: return "rewired";
    case ViewChange::kChanged: return "changed";
    case ViewChange::kRemade: return "remade";
  }
  return "?";
}

ViewKind kind_of(const Node& node) {
  const OpDef& op = node.op();
  if (op.region_kind != RegionKind::kNone) return ViewKind::kRegions;
  // Lowered collectives say how many replicas they join, too.
  const bool joins =
      op.traits.collective || has(op.effects, Effect::kCollective) || node.find<std::int64_t>("replicas");
  if (joins) return ViewKind::kCollective;
  if (op.traits.updates_variable) return ViewKind::kUpdate;
  if (op.traits.reads_variable) return ViewKind::kRead;
  if (op.traits.gives_attribute) return ViewKind::kConstant;
  if (op.name == "copy") return ViewKind::kCopy;
  if (std::ranges::find(node.graph().parameters(), node.id()) != node.graph().parameters().end())
    return ViewKind::kParameter;
  return node.regions().empty() ? ViewKind::kCompute : ViewKind::kRegions;
}

const ViewAppearance* ViewNode::at(std::size_t stage) const {
  for (const ViewAppearance& one : appearances) {
    if (one.stage == stage) return &one;
  }
  return nullptr;
}

// --- what tells nodes apart

std::string without_replica(std::string_view name) {
  constexpr std::string_view kPrefix = "replica_";
  std::string out;
  while (!name.empty()) {
    const std::size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    name = slash == std::string_view::npos ? std::string_view() : name.substr(slash + 1);
    const bool numbered = part.starts_with(kPrefix) && part.size() > kPrefix.size() &&
                          part.find_first_not_of("0123456789", kPrefix.size()) == std::string_view::npos;
    if (numbered) continue;
    if (!out.empty()) out += '/';
    out += part;
  }
  return out;
}

namespace {

std::uint64_t hash_of_spec(const TensorSpec& spec, std::uint64_t seed) {
  std::uint64_t h = mix(seed, static_cast<std::uint64_t>(spec.dtype));
  for (const std::int64_t dim : spec.shape.dims()) h = mix(h, static_cast<std::uint64_t>(dim));
  return mix(h, spec.shape.rank());
}

std::uint64_t hash_of_attribute(const AttributeValue& value, SamePlace place) {
  return std::visit(
      [&]<class T>(const T& one) -> std::uint64_t {
        if constexpr (std::is_same_v<T, Tensor>) {
          return one.defined() ? hash_of_spec(one.spec(), 1) : 0;
        } else if constexpr (std::is_same_v<T, VariableRef>) {
          if (place == SamePlace::kOtherLayer) return 4;
          return hash_text(place == SamePlace::kOtherReplica ? without_replica(one.name) : one.name);
        } else if constexpr (std::is_same_v<T, Lambda>) {
          return 2;
        } else if constexpr (std::is_same_v<T, std::string>) {
          return hash_text(one);
        } else if constexpr (std::is_same_v<T, Shape>) {
          return hash_of_spec({DType::kF32, one}, 3);
        } else if constexpr (std::is_same_v<T, double>) {
          return std::hash<double>()(one);
        } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
          return static_cast<std::uint64_t>(one);
        } else {
          std::uint64_t h = one.size();
          for (const auto& element : one) h = mix(h, hash_of_attribute(AttributeValue(element), place));
          return h;
        }
      },
      value);
}

}  // namespace

std::uint64_t hash_of_node(const Node& node, SamePlace place) {
  std::uint64_t h = hash_text(node.op().name);
  for (const TensorSpec& spec : node.outputs()) h = hash_of_spec(spec, h);
  const bool any_key = place == SamePlace::kOtherLayer && has(node.op().effects, Effect::kRandom);
  for (const Attribute& attribute : node.attributes()) {
    h = mix(h, hash_text(attribute.name));
    if (!any_key || type_of(attribute.value) != AttributeType::kInt)
      h = mix(h, hash_of_attribute(attribute.value, place));
  }
  for (const Graph& region : node.regions()) {
    h = mix(h, region.size());
    for (const Node& inner : region.nodes()) {
      h = mix(h, hash_of_node(inner, place));
      for (const ValueId input : inner.inputs()) h = mix(mix(h, input.node.value), input.output);
    }
  }
  return h;
}

// --- boxes and edges

class ViewMaker {
 public:
  ViewMaker(GraphView& view, const ViewOptions& options) : view_(view), options_(options) {}

  void run() {
    for (std::size_t s = 0; s < view_.stages_.size(); ++s) {
      stage_ = static_cast<std::uint32_t>(s);
      levels_.clear();
      entries_.clear();
      classes_.clear();
      Level& top = levels_.emplace_back();
      top.graph = view_.stages_[s].graph;
      collect(top);
      make_boxes();
      connect();
      mark_results(top);
      compare();
    }
    for (const auto& [key, stages] : edges_) {
      const auto& [from, to, output, control] = key;
      view_.edges_.push_back({from, to, output, control, stages});
    }
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;
  struct Source {
    std::uint32_t entry = 0, output = 0;
    friend auto operator<=>(const Source&, const Source&) = default;
  };
  // The outermost graph or a region.
  struct Level {
    const Graph* graph = nullptr;
    std::string path = {};                  // of the scope that its nodes lie in, with a slash behind it
    bool flat = false;                      // its names make no scopes
    std::uint64_t copies = 1;               // replicas that each of its nodes stands for
    std::vector<std::uint32_t> entry = {};  // by node; kNone: not drawn
    std::unordered_map<NodeId, Level*> inlined =
        {};  // replicated regions that are drawn in place of their nodes
    // Of an inlined region: where its parameters' values come from.
    std::unordered_map<NodeId, std::vector<Source>> parameters = {};
  };
  // A node of this stage.
  struct Entry {
    const Node* node = nullptr;
    Level* level = nullptr;
    std::uint64_t group = 0;  // equal for equal nodes of several replicas
    std::uint32_t box = 0;
  };

  static std::string region_path(const std::string& owner, const Node& node, std::size_t region) {
    if (node.regions().size() == 1) return owner + "/";
    const RegionKind kind = node.op().region_kind;
    if (kind == RegionKind::kCond) return owner + (region == 0 ? "/then/" : "/else/");
    if (kind == RegionKind::kWhile) return owner + (region == 0 ? "/condition/" : "/body/");
    return str(owner, "/region_", region, "/");
  }

  void collect(Level& level) {
    const Graph& graph = *level.graph;
    level.entry.assign(graph.id_bound(), kNone);
    for (const NodeId id : graph.topological_order()) {
      const Node& node = graph.node(id);
      if (level.parameters.contains(id)) continue;
      if (options_.fold_replicas && inline_region(level, node)) continue;
      level.entry[id.index()] = static_cast<std::uint32_t>(entries_.size());
      entries_.push_back({&node, &level, class_of(level, node), 0});
      for (std::size_t i = 0; i < node.regions().size(); ++i) {
        Level& inner = levels_.emplace_back();
        inner.graph = &node.regions()[i];
        const std::string name = options_.fold_replicas ? without_replica(node.name()) : node.name();
        inner.path = region_path(level.path + name, node, i);
        inner.copies = level.copies;
        inner.flat = node.op().region_kind == RegionKind::kNone;
        collect(inner);
      }
    }
  }

  // The region of a `replicated` node in place of the node.
  bool inline_region(Level& level, const Node& node) {
    if (node.op().region_kind != RegionKind::kReplicated || node.regions().size() != 1) return false;
    const auto* replicas = node.find<std::int64_t>("replicas");
    const auto* shared = node.find<std::int64_t>("shared");
    if (replicas == nullptr || shared == nullptr || *replicas < 1 || *shared < 0) return false;
    const auto n = static_cast<std::size_t>(*replicas), s = static_cast<std::size_t>(*shared);
    const Graph& region = node.regions()[0];
    if (region.parameters().size() < s || s + (region.parameters().size() - s) * n != node.inputs().size())
      return false;
    Level& inner = levels_.emplace_back();
    inner.graph = &region;
    inner.path = level.path;
    inner.copies = level.copies * n;
    for (std::size_t i = 0; i < region.parameters().size(); ++i) {
      std::vector<Source>& sources = inner.parameters[region.parameters()[i]];
      const std::size_t first = i < s ? i : s + (i - s) * n, count = i < s ? 1 : n;
      for (std::size_t r = 0; r < count; ++r) find_sources(level, node.inputs()[first + r], sources);
      std::ranges::sort(sources);
      sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
    }
    level.inlined.emplace(node.id(), &inner);
    collect(inner);
    return true;
  }

  // The drawn outputs that a value is.
  void find_sources(const Level& level, ValueId value, std::vector<Source>& out) const {
    if (!level.graph->contains(value.node)) return;
    if (const auto found = level.inlined.find(value.node); found != level.inlined.end()) {
      const Level& inner = *found->second;
      const Node& owner = level.graph->node(value.node);
      const std::size_t result =
          value.output / static_cast<std::size_t>(*owner.find<std::int64_t>("replicas"));
      const std::vector<ValueId>& results = inner.graph->results();
      if (result < results.size()) find_sources(inner, results[result], out);
      return;
    }
    if (const auto found = level.parameters.find(value.node); found != level.parameters.end()) {
      out.insert(out.end(), found->second.begin(), found->second.end());
      return;
    }
    const std::uint32_t entry = level.entry[value.node.index()];
    if (entry == kNone) return;  // on a cycle, or not collected yet
    // What a collective gives each of its replicas is one thing.
    const Node& node = *entries_[entry].node;
    std::uint32_t output = value.output;
    const auto* replicas = node.find<std::int64_t>("replicas");
    if (options_.fold_replicas && node.op().traits.collective && replicas != nullptr && *replicas > 0) {
      const std::size_t each = node.outputs().size() / static_cast<std::size_t>(*replicas);
      if (each > 0) output %= static_cast<std::uint32_t>(each);
    }
    out.push_back({entry, output});
  }

  std::uint64_t class_of(const Level& level, const Node& node) {
    if (!options_.fold_replicas) return mix(1, entries_.size());
    std::uint64_t h = hash_text(level.path + without_replica(node.name()));
    h = mix(h, hash_of_node(node, SamePlace::kOtherReplica));
    std::vector<Source> sources;
    for (const ValueId input : node.inputs()) {
      sources.clear();
      find_sources(level, input, sources);
      std::uint64_t one = 7;  // the order among replicas does not matter
      for (const Source& source : sources)
        one = std::max(one, mix(entries_[source.entry].group, source.output));
      h = mix(h, one);
    }
    return h;
  }

  // Nodes of one class become one box; boxes of earlier stages with the same name and op are found again.
  void make_boxes() {
    std::unordered_map<std::string_view, std::uint64_t> owner_of_name;  // the class that has it in this stage
    std::deque<std::string> names;
    for (Entry& entry : entries_) {
      const auto found = classes_.find(entry.group);
      if (found != classes_.end()) {
        entry.box = found->second;
      } else {
        std::string plain = options_.fold_replicas ? without_replica(entry.node->name()) : entry.node->name();
        // What runs as one thing has no scopes inside: names there are made up.
        if (entry.level->flat) std::ranges::replace(plain, '/', '.');
        std::string name = entry.level->path + (plain.empty() ? entry.node->name() : plain);
        if (owner_of_name.contains(name)) name = entry.level->path + entry.node->name();
        for (std::size_t i = 2; owner_of_name.contains(name); ++i)
          name = str(entry.level->path, entry.node->name(), "'", i);
        owner_of_name.emplace(names.emplace_back(name), entry.group);
        entry.box = box_of(name, *entry.node);
        classes_.emplace(entry.group, entry.box);
      }
      ViewNode& box = view_.nodes_[entry.box];
      if (box.appearances.empty() || box.appearances.back().stage != stage_) {
        box.appearances.push_back({stage_, ViewChange::kNone, 0, {}});
        box.stages |= std::uint64_t{1} << stage_;
      }
      box.appearances.back().nodes.push_back(entry.node);
      box.appearances.back().copies += entry.level->copies;
    }
    for (ViewNode& box : view_.nodes_) {
      if (box.appearances.back().stage != stage_) continue;
      std::ranges::sort(box.appearances.back().nodes, [](const Node* a, const Node* b) {
        return std::pair(a->provenance().replica, a->id()) < std::pair(b->provenance().replica, b->id());
      });
    }
  }

  std::uint32_t box_of(const std::string& name, const Node& node) {
    const auto [found, made] =
        boxes_.try_emplace(str(name, '\n', node.op().name), static_cast<std::uint32_t>(view_.nodes_.size()));
    if (made) {
      ViewNode box;
      box.name = name;
      box.op = &node.op();
      box.kind = kind_of(node);
      view_.nodes_.push_back(std::move(box));
    }
    return found->second;
  }

  void connect() {
    const std::uint64_t bit = std::uint64_t{1} << stage_;
    std::vector<Source> sources;
    for (const Entry& entry : entries_) {
      const auto add = [&](bool control) {
        for (const Source& source : sources) {
          const std::uint32_t from = entries_[source.entry].box;
          if (from == entry.box) continue;
          edges_[{from, entry.box, control ? 0 : source.output, control}] |= bit;
        }
        sources.clear();
      };
      for (const ValueId input : entry.node->inputs()) find_sources(*entry.level, input, sources);
      add(false);
      for (const NodeId control : entry.node->controls()) {
        // After all of a replicated region: after what it gives.
        if (const auto found = entry.level->inlined.find(control); found != entry.level->inlined.end()) {
          for (const ValueId result : found->second->graph->results())
            find_sources(*found->second, result, sources);
        } else {
          find_sources(*entry.level, {control, 0}, sources);
        }
      }
      add(true);
    }
  }

  void mark_results(const Level& top) {
    std::vector<Source> sources;
    for (const ValueId result : top.graph->results()) find_sources(top, result, sources);
    for (const Source& source : sources) view_.nodes_[entries_[source.entry].box].result = true;
  }

  // --- what became of boxes

  // What a node is wired to, by identity.
  static std::vector<std::uint64_t> wires(const Node& node) {
    std::vector<std::uint64_t> out;
    const Graph& graph = node.graph();
    const auto identity = [&](NodeId id) {
      return graph.contains(id) ? graph.node(id).provenance().identity : 0;
    };
    for (const ValueId input : node.inputs()) {
      out.push_back(identity(input.node));
      out.push_back(input.output);
    }
    std::vector<std::uint64_t> controls;
    for (const NodeId control : node.controls()) controls.push_back(identity(control));
    std::ranges::sort(controls);
    out.insert(out.end(), controls.begin(), controls.end());
    return out;
  }

  static ViewChange change_between(const ViewAppearance& before, const ViewAppearance& now) {
    if (before.nodes.size() != now.nodes.size() || before.copies != now.copies) return ViewChange::kRemade;
    bool rewired = false, changed = false;
    for (std::size_t i = 0; i < now.nodes.size(); ++i) {
      const Node &a = *before.nodes[i], &b = *now.nodes[i];
      if (a.provenance().identity != b.provenance().identity) return ViewChange::kRemade;
      rewired = rewired || wires(a) != wires(b);
      changed = changed || a.device() != b.device() || a.provenance().replica != b.provenance().replica ||
                hash_of_node(a, SamePlace::kNode) != hash_of_node(b, SamePlace::kNode);
    }
    return rewired ? ViewChange::kRewired : changed ? ViewChange::kChanged : ViewChange::kNone;
  }

  void compare() {
    if (stage_ == 0) return;
    for (ViewNode& box : view_.nodes_) {
      if (box.appearances.back().stage != stage_) continue;
      ViewAppearance& now = box.appearances.back();
      const std::size_t count = box.appearances.size();
      if (count < 2 || box.appearances[count - 2].stage + 1 != stage_) {
        now.change = ViewChange::kAdded;
      } else {
        now.change = change_between(box.appearances[count - 2], now);
      }
    }
  }

  GraphView& view_;
  const ViewOptions& options_;
  std::uint32_t stage_ = 0;
  std::deque<Level> levels_;
  std::vector<Entry> entries_;
  std::unordered_map<std::uint64_t, std::uint32_t> classes_;  // of this stage, to boxes
  std::unordered_map<std::string, std::uint32_t> boxes_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, bool>, std::uint64_t> edges_;
};

// --- the view

GraphView::GraphView(const Graph& graph, const ViewOptions& options)
    : GraphView(std::vector<ViewStage>{{"graph", &graph}}, options) {}

GraphView::GraphView(std::vector<ViewStage> stages, const ViewOptions& options) : stages_(std::move(stages)) {
  if (stages_.empty()) throw InvalidArgument("a view needs at least one graph, got none");
  if (stages_.size() > kMaxStages) {
    throw InvalidArgument(str("a view shows at most ", kMaxStages, " states of a graph, got ", stages_.size(),
                              "; leave out those that changed nothing"));
  }
  for (const ViewStage& stage : stages_) {
    if (stage.graph == nullptr) throw InvalidArgument(str("stage '", stage.name, "' has no graph"));
  }
  ViewMaker(*this, options).run();
  ViewFolder(*this, options).run();
}

std::string GraphView::spec_of(const ViewEdge& edge) const {
  if (edge.control) return {};
  std::size_t stage = stages_.size();
  while (stage-- > 0) {
    if ((edge.stages >> stage & 1U) == 0) continue;
    const ViewAppearance* from = nodes_[edge.from].at(stage);
    if (from == nullptr || from->nodes[0]->outputs().size() <= edge.output) break;
    return lockstep::to_string(from->nodes[0]->outputs()[edge.output]);
  }
  return {};
}

std::uint32_t GraphView::child_of(std::uint32_t ancestor, std::uint32_t node) const {
  std::uint32_t scope = nodes_[node].scope, below = kHere;
  while (scopes_[scope].depth > scopes_[ancestor].depth) {
    below = scope;
    scope = scopes_[scope].parent;
  }
  return scope == ancestor ? below : kElsewhere;
}

}  // namespace lockstep
