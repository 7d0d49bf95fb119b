// io/drawings/graph_view.cpp - a graph, or several states of one, folded so that it can be drawn.
#include "lockstep/io/drawings/graph_view.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/base/name_set.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/io/drawings/internal/communication.h"
#include "lockstep/io/drawings/internal/view_maker.h"

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

const ViewAppearance* ViewNode::at(std::size_t stage) const {
  for (const ViewAppearance& one : appearances) {
    if (one.stage == stage) return &one;
  }
  return nullptr;
}

namespace internal {

namespace {

ViewKind kind_of(const Node& node, bool is_parameter) {
  const OpTraits& traits = node.op().traits;
  if (node.op().region_kind != RegionKind::kNone) return ViewKind::kRegions;
  const Communication communication = communication_of(node);
  if (communication == Communication::kJoinsReplicas) return ViewKind::kCollective;
  if (traits.updates_variable || traits.merges_updates) return ViewKind::kUpdate;
  if (traits.reads_variable) return ViewKind::kRead;
  if (traits.gives_attribute) return ViewKind::kConstant;
  if (communication == Communication::kTransfers) return ViewKind::kCopy;
  if (is_parameter) return ViewKind::kParameter;
  return node.regions().empty() ? ViewKind::kCompute : ViewKind::kRegions;
}

// The identities of a graph's nodes, those in regions included.
void collect_identities(const Graph& graph, std::unordered_set<std::uint64_t>& into) {
  for (const Node& node : graph.nodes()) {
    into.insert(node.provenance().identity);
    for (const Graph& region : node.regions()) collect_identities(region, into);
  }
}

bool stems_from(const Graph& graph, const std::unordered_set<std::uint64_t>& identities) {
  return std::ranges::any_of(graph.nodes(), [&](const Node& node) {
    if (identities.contains(node.provenance().identity) || identities.contains(node.provenance().origin))
      return true;
    return std::ranges::any_of(node.regions(),
                               [&](const Graph& region) { return stems_from(region, identities); });
  });
}

}  // namespace

// --- boxes and edges

class ViewMaker {
 public:
  ViewMaker(GraphView& view, const ViewOptions& options) : view_(view), options_(options) {}

  void run() {
    for (std::size_t s = 0; s < view_.stages_.size(); ++s) {
      stage_ = static_cast<std::uint32_t>(s);
      view_.compared_by_.push_back(how_to_compare());
      levels_.clear();
      entries_.clear();
      Level& top = levels_.emplace_back();
      top.graph = view_.stages_[s].graph;
      collect(top);
      make_boxes();
      connect();
      mark_results(top);
      compare();
      remember_stage();
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
    std::string path = {};                  // of the scope that its nodes lie in, with a slash at the end
    bool flat = false;                      // its names make no scopes
    std::uint64_t copies = 1;               // replicas that each of its nodes stands for
    std::vector<std::uint32_t> entry = {};  // by node; kNone: not drawn
    std::vector<bool> is_parameter = {};    // by node
    // Replicated regions that are drawn in place of their nodes.
    std::unordered_map<NodeId, Level*> inlined = {};
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
  // The nodes of this stage that become one box.
  struct Class {
    std::string name = {};  // unique in this stage
    std::vector<std::uint32_t> entries = {};
    std::uint32_t box = kNone;
  };

  DiffBy how_to_compare() const {
    if (stage_ == 0) return DiffBy::kIdentity;
    std::unordered_set<std::uint64_t> identities;
    collect_identities(*view_.stages_[stage_ - 1].graph, identities);
    return stems_from(*view_.stages_[stage_].graph, identities) ? DiffBy::kIdentity : DiffBy::kName;
  }

  // Names from files may have any length; nobody reads a long one to its end, and each box has its scope's
  // name, too.
  static constexpr std::size_t kMaxName = 500;
  static constexpr std::size_t kMaxPath = 1000;
  static std::string shortened(const std::string& name) {
    if (name.size() <= kMaxName) return name;
    const auto inside = [&](std::size_t at) {  // in the middle of a UTF-8 character
      return at > 0 && at < name.size() && (static_cast<unsigned char>(name[at]) & 0xC0U) == 0x80U;
    };
    std::size_t head = kMaxName / 2, tail = name.size() - kMaxName / 2;
    while (inside(head)) --head;
    while (inside(tail)) ++tail;
    return str(std::string_view(name).substr(0, head), "...", std::string_view(name).substr(tail));
  }

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
    level.is_parameter.assign(graph.id_bound(), false);
    for (const NodeId id : graph.parameters()) level.is_parameter[id.index()] = true;
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
        inner.path = region_path(level.path + shortened(name), node, i);
        // Regions that lie deeper than anybody looks share the scope of the regions around them.
        if (inner.path.size() > kMaxPath) inner.path.resize(inner.path.rfind('/', kMaxPath - 1) + 1);
        inner.copies = level.copies;
        inner.flat = node.op().region_kind == RegionKind::kNone;
        collect(inner);
      }
    }
  }

  // Collects the region of a `replicated` node in place of the node; false for any other node.
  bool inline_region(Level& level, const Node& node) {
    const auto replicated = ReplicatedNode::of(node);
    if (!replicated) return false;
    const Graph& region = replicated->region();
    Level& inner = levels_.emplace_back();
    inner.graph = &region;
    inner.path = level.path;
    inner.copies = level.copies * replicated->replicas();
    for (std::size_t i = 0; i < region.parameters().size(); ++i) {
      std::vector<Source>& sources = inner.parameters[region.parameters()[i]];
      for (const ValueId input : replicated->inputs(i)) find_sources(level, input, sources);
      std::ranges::sort(sources);
      sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
    }
    level.inlined.emplace(node.id(), &inner);
    collect(inner);
    return true;
  }

  // Finds the drawn outputs that a value comes from.
  void find_sources(const Level& level, ValueId value, std::vector<Source>& out) const {
    if (!level.graph->contains(value.node)) return;
    if (const auto found = level.inlined.find(value.node); found != level.inlined.end()) {
      const Level& inner = *found->second;
      const std::size_t result = ReplicatedNode(level.graph->node(value.node)).result(value.output);
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
    // The outputs that a collective gives to its replicas count as one.
    const Node& node = *entries_[entry].node;
    std::uint32_t output = value.output;
    if (options_.fold_replicas && node.op().traits.is(ReplicaRole::kCollective)) {
      const std::size_t each = node.outputs().size() / joined_replicas(node);
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

  // Nodes of one class become one box: a box of an earlier stage, if one can be matched, or a new one.
  void make_boxes() {
    classes_.clear();
    std::unordered_map<std::uint64_t, std::size_t> class_of_group;
    NameSet names;  // taken in this stage
    for (std::uint32_t e = 0; e < entries_.size(); ++e) {
      const Entry& entry = entries_[e];
      const auto [found, made] = class_of_group.try_emplace(entry.group, classes_.size());
      if (made) classes_.push_back({name_for(entry, names)});
      classes_[found->second].entries.push_back(e);
    }
    find_boxes();
    for (Class& one : classes_) {
      const Entry& first = entries_[one.entries[0]];
      if (one.box == kNone) one.box = new_box(one.name, first);
      ViewNode& box = view_.nodes_[one.box];
      ViewAppearance& now = box.appearances.emplace_back();
      now = {stage_, ViewChange::kNone, 0, {}, one.name == box.name ? std::string() : one.name};
      box.stages |= std::uint64_t{1} << stage_;
      for (const std::uint32_t e : one.entries) {
        entries_[e].box = one.box;
        now.nodes.push_back(entries_[e].node);
        now.copies += entries_[e].level->copies;
      }
      std::ranges::sort(now.nodes, [](const Node* a, const Node* b) {
        return std::pair(a->provenance().replica, a->id()) < std::pair(b->provenance().replica, b->id());
      });
      boxes_[str(one.name, '\n', box.op->name)] = one.box;
      level_of_box_[one.box] = first.level->path;
    }
  }

  std::string name_for(const Entry& entry, NameSet& taken) const {
    std::string plain = options_.fold_replicas ? without_replica(entry.node->name()) : entry.node->name();
    // A node that runs as one thing has no scopes inside: the names in its region are made up.
    if (entry.level->flat) std::ranges::replace(plain, '/', '.');
    const std::string own = shortened(entry.node->name());
    plain = shortened(plain);
    std::string name = entry.level->path + (plain.empty() ? own : plain);
    if (taken.contains(name)) name = entry.level->path + own;
    for (std::size_t i = 2; taken.contains(name); ++i) name = str(entry.level->path, own, "'", i);
    taken.insert(name);
    return name;
  }

  std::uint32_t new_box(const std::string& name, const Entry& entry) {
    ViewNode box;
    box.name = name;
    box.op = &entry.node->op();
    box.kind = kind_of(*entry.node, entry.level->is_parameter[entry.node->id().index()]);
    view_.nodes_.push_back(std::move(box));
    level_of_box_.emplace_back();
    return static_cast<std::uint32_t>(view_.nodes_.size() - 1);
  }

  // --- boxes found again

  // Finds the boxes of classes that earlier stages had: by the identity of their nodes in the stage before,
  // then by their origin, then by name. Each box is found once. A node that moves into a region or out of one
  // gets another box, since it is drawn elsewhere.
  void find_boxes() {
    std::vector<bool> taken(view_.nodes_.size());
    const auto take = [&](Class& one, std::uint32_t box) {
      const Entry& entry = entries_[one.entries[0]];
      const bool fits = !taken[box] && view_.nodes_[box].op->name == entry.node->op().name &&
                        level_of_box_[box].empty() == entry.level->path.empty();
      if (fits) {
        one.box = box;
        taken[box] = true;
      }
      return fits;
    };
    if (stage_ > 0 && view_.compared_by_[stage_] == DiffBy::kIdentity) {
      for (Class& one : classes_) {
        for (const std::uint32_t e : one.entries) {
          const auto found = by_identity_.find(entries_[e].node->provenance().identity);
          if (found != by_identity_.end() && take(one, found->second)) break;
        }
      }
      find_by_origin(taken, take);
    }
    for (Class& one : classes_) {
      if (one.box != kNone) continue;
      const auto found = boxes_.find(str(one.name, '\n', entries_[one.entries[0]].node->op().name));
      if (found != boxes_.end()) take(one, found->second);
    }
  }

  // A clone has the origin of its model. Among several with one origin and op (a node and its gradient, say)
  // names tell which is which; if then one is left on each side, the two match.
  template <class Take>
  void find_by_origin(const std::vector<bool>& taken, const Take& take) {
    std::map<std::pair<std::uint64_t, std::string_view>, std::vector<Class*>> lost;  // by origin and op
    for (Class& one : classes_) {
      const Node& node = *entries_[one.entries[0]].node;
      if (one.box == kNone) lost[{node.provenance().origin, node.op().name}].push_back(&one);
    }
    for (auto& [key, classes] : lost) {
      const auto found = by_origin_.find(key.first);
      if (found == by_origin_.end()) continue;
      std::vector<std::uint32_t> left;
      for (const std::uint32_t box : found->second) {
        if (taken[box] || view_.nodes_[box].op->name != key.second) continue;
        const auto same = std::ranges::find_if(classes, [&](const Class* one) {
          return one->box == kNone && one->name == current_name(view_.nodes_[box]);
        });
        if (same == classes.end() || !take(**same, box)) left.push_back(box);
      }
      std::erase_if(classes, [](const Class* one) { return one->box != kNone; });
      if (left.size() == 1 && classes.size() == 1) take(*classes[0], left[0]);
    }
  }

  static const std::string& current_name(const ViewNode& box) {
    return box.last().name.empty() ? box.name : box.last().name;
  }

  void remember_stage() {
    by_identity_.clear();
    by_origin_.clear();
    for (const Class& one : classes_) {
      for (const std::uint32_t e : one.entries) {
        const Provenance& provenance = entries_[e].node->provenance();
        by_identity_.try_emplace(provenance.identity, one.box);
        std::vector<std::uint32_t>& boxes = by_origin_[provenance.origin];
        if (boxes.empty() || boxes.back() != one.box) boxes.push_back(one.box);
      }
    }
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
        // To run after a replicated region is to run after the nodes that give its results.
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

  // The key that tells a node from the others of its graph.
  std::uint64_t key_of(const Node& node) const {
    const bool by_identity = view_.compared_by_[stage_] == DiffBy::kIdentity;
    return by_identity ? node.provenance().identity : hash_text(node.name());
  }

  std::vector<std::uint64_t> wires(const Node& node) const {
    std::vector<std::uint64_t> out;
    const Graph& graph = node.graph();
    const auto key = [&](NodeId id) { return graph.contains(id) ? key_of(graph.node(id)) : 0; };
    for (const ValueId input : node.inputs()) {
      out.push_back(key(input.node));
      out.push_back(input.output);
    }
    std::vector<std::uint64_t> controls;
    for (const NodeId control : node.controls()) controls.push_back(key(control));
    std::ranges::sort(controls);
    out.insert(out.end(), controls.begin(), controls.end());
    return out;
  }

  ViewChange change_between(const ViewAppearance& before, const ViewAppearance& now) const {
    if (before.nodes.size() != now.nodes.size() || before.copies != now.copies) return ViewChange::kRemade;
    bool rewired = false, changed = false;
    for (std::size_t i = 0; i < now.nodes.size(); ++i) {
      const Node &a = *before.nodes[i], &b = *now.nodes[i];
      if (key_of(a) != key_of(b)) return ViewChange::kRemade;
      rewired = rewired || wires(a) != wires(b);
      changed = changed || a.name() != b.name() || a.device() != b.device() ||
                a.provenance().replica != b.provenance().replica || !same_but_for_wires(a, b);
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
  std::vector<Class> classes_;
  NameMap<std::uint32_t> boxes_;           // of all stages so far, by name and op
  std::vector<std::string> level_of_box_;  // by box: the path of its level in the last stage it was in
  // Of the stage before: boxes by the identity of their nodes, and by the origin of their nodes.
  std::unordered_map<std::uint64_t, std::uint32_t> by_identity_;
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> by_origin_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, bool>, std::uint64_t> edges_;
};

}  // namespace internal

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
  internal::ViewMaker(*this, options).run();
  internal::ViewFolder(*this, options).run();
}

std::string GraphView::spec_of(const ViewEdge& edge, std::size_t stage) const {
  if (edge.control || (edge.stages >> stage & 1U) == 0) return {};
  const ViewAppearance* from = nodes_[edge.from].at(stage);
  if (from == nullptr || from->nodes[0]->outputs().size() <= edge.output) return {};
  return lockstep::to_string(from->nodes[0]->outputs()[edge.output]);
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
