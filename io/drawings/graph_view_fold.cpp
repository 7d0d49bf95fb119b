// io/drawings/graph_view_fold.cpp - folds equal replicas and equal layers of a view into one.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/drawings/graph_view.h"
#include "lockstep/io/drawings/internal/view_maker.h"

namespace lockstep::internal {

namespace {

// "layer" for "layer", "layer_3" and "layer3".
std::string_view stem_of(std::string_view label) {
  const std::size_t last = label.find_last_not_of("0123456789");
  if (last == std::string_view::npos || last + 1 == label.size()) return label;
  label = label.substr(0, last + 1);
  if (label.size() > 1 && label.back() == '_') label.remove_suffix(1);
  return label;
}

}  // namespace

void ViewFolder::run() {
  make_tree();
  twins_.resize(view_.nodes_.size());
  for (std::uint32_t i = 0; i < twins_.size(); ++i) twins_[i] = i;
  if (options_.fold_layers) {
    hash_scopes();
    fold_layers();
  }
  fold_edges();
  count();
  leave_out_single();
  if (options_.max_children > 1) cut_into_parts();
  number();
}

// --- the tree of names

namespace {

// Drawings recurse into scopes, so their depth is bounded. A deeper node is in the deepest scope, with the
// rest of its path as its label.
constexpr std::size_t kMaxScopes = 64;

// The scope of a node of this name.
std::string_view scope_path(std::string_view name) {
  std::size_t end = 0;
  std::size_t scopes = 0;
  for (std::size_t at = name.find('/'); at != std::string_view::npos && scopes < kMaxScopes;
       at = name.find('/', at + 1), ++scopes) {
    end = at;
  }
  return name.substr(0, end);
}

}  // namespace

std::uint32_t ViewFolder::scope_of(std::string_view path) {
  if (path.empty()) return 0;
  const auto found = by_name_.find(std::string(path));
  if (found != by_name_.end()) return found->second;
  const std::size_t slash = path.rfind('/');
  const std::uint32_t parent = slash == std::string_view::npos ? 0 : scope_of(path.substr(0, slash));
  const auto made = static_cast<std::uint32_t>(view_.scopes_.size());
  ViewScope scope;
  scope.name = path;
  scope.label = slash == std::string_view::npos ? path : path.substr(slash + 1);
  scope.parent = parent;
  scope.depth = view_.scopes_[parent].depth + 1;
  view_.scopes_.push_back(std::move(scope));
  view_.scopes_[parent].scopes.push_back(made);
  by_name_.emplace(path, made);
  return made;
}

void ViewFolder::make_tree() {
  view_.scopes_.assign(1, ViewScope{});
  for (std::uint32_t i = 0; i < view_.nodes_.size(); ++i) {
    ViewNode& node = view_.nodes_[i];
    const std::string_view path = scope_path(node.name);
    node.label = path.empty() && !node.name.starts_with('/') ? node.name : node.name.substr(path.size() + 1);
    // A node with regions lies in the scope that is named after it, beside the nodes of its regions.
    const bool holds = !node.appearances[0].nodes[0]->regions().empty() &&
                       scope_path(node.name + "/").size() == node.name.size();
    node.scope = scope_of(holds ? std::string_view(node.name) : path);
    view_.scopes_[node.scope].nodes.push_back(i);
    if (holds) view_.scopes_[node.scope].holder = i;
  }
  for (const ViewNode& node : view_.nodes_) tree_scope_.push_back(node.scope);
  for (const ViewScope& scope : view_.scopes_) {
    const bool inside = !in_region_.empty() && in_region_[scope.parent];
    in_region_.push_back(inside || scope.holder != ViewScope::kNoHolder);
    tree_parent_.push_back(scope.parent);
    tree_scopes_.push_back(scope.scopes);
    tree_nodes_.push_back(scope.nodes);
  }
}

std::uint32_t ViewFolder::common_scope(std::uint32_t a, std::uint32_t b) const {
  const std::vector<ViewScope>& scopes = view_.scopes_;
  while (a != b) {
    if (scopes[a].depth >= scopes[b].depth) {
      a = tree_parent_[a];
    } else {
      b = tree_parent_[b];
    }
  }
  return a;
}

// --- layers

// The node that its scope is named after has no label in there.
std::string_view ViewFolder::label_within(std::uint32_t node) const {
  const ViewNode& one = view_.nodes_[node];
  return view_.scopes_[tree_scope_[node]].name == one.name ? std::string_view() : std::string_view(one.label);
}

// A hash of a node's label, op and path inside a scope.
std::uint64_t ViewFolder::hash_within(std::uint32_t scope, std::uint32_t node) const {
  std::uint64_t h = mix(hash_text(label_within(node)), hash_text(view_.nodes_[node].op->name));
  for (std::uint32_t at = tree_scope_[node]; at != scope; at = tree_parent_[at])
    h = mix(h, hash_text(view_.scopes_[at].label));
  return h;
}

void ViewFolder::hash_scopes() {
  hashes_.assign(view_.scopes_.size(), 0);
  for (const ViewEdge& edge : view_.edges_) {
    const std::uint32_t in = common_scope(tree_scope_[edge.from], tree_scope_[edge.to]);
    if (in_region_[in]) continue;  // the node that holds the region counts its contents
    std::uint64_t h = mix(hash_within(in, edge.from), hash_within(in, edge.to));
    h = mix(mix(h, edge.output), edge.stages);
    hashes_[in] += mix(h, edge.control ? 1 : 0);  // a sum: edges come in any order
  }
  for (std::uint32_t i = 0; i < view_.nodes_.size(); ++i) {
    const ViewNode& node = view_.nodes_[i];
    if (in_region_[node.scope] && view_.scopes_[node.scope].holder != i) continue;
    std::uint64_t h =
        mix(hash_text(label_within(i)), hash_of_node(*node.last().nodes[0], SamePlace::kOtherLayer));
    for (const ViewAppearance& one : node.appearances) {
      h = mix(mix(h, one.stage), static_cast<std::uint64_t>(one.change));
      h = mix(h, one.copies);
      h = mix(h, hash_text(one.nodes[0]->device()));
    }
    hashes_[node.scope] += h;
  }
  for (std::size_t s = hashes_.size(); --s > 0;) {
    // A scope's sum is final once its inner scopes are added, which come first here; then its parent counts
    // it.
    if (in_region_[tree_parent_[s]]) continue;
    hashes_[s] = mix(hashes_[s], 5);
    hashes_[tree_parent_[s]] += mix(hash_text(view_.scopes_[s].label), hashes_[s]);
  }
}

// Pairs the nodes and scopes of two equal scopes, one by one.
void ViewFolder::pair(std::uint32_t copy, std::uint32_t with) {
  if (in_region_[copy]) return pair_regions(copy, with);
  const auto nodes_of = [&](std::uint32_t scope) {
    std::vector<std::uint32_t> list = tree_nodes_[scope];
    std::ranges::sort(list, {}, [&](std::uint32_t node) {
      return std::pair(label_within(node), std::string_view(view_.nodes_[node].op->name));
    });
    return list;
  };
  const auto scopes_of = [&](std::uint32_t scope) {
    std::vector<std::uint32_t> list = tree_scopes_[scope];
    std::ranges::sort(list, {},
                      [&](std::uint32_t inner) { return std::string_view(view_.scopes_[inner].label); });
    return list;
  };
  const auto nodes = nodes_of(copy), their_nodes = nodes_of(with);
  const auto scopes = scopes_of(copy), their_scopes = scopes_of(with);
  LOCKSTEP_CHECK(nodes.size() == their_nodes.size() && scopes.size() == their_scopes.size(), "scopes '",
                 view_.scopes_[copy].name, "' and '", view_.scopes_[with].name, "' are not of one structure");
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (twins_[nodes[i]] == nodes[i]) twins_[nodes[i]] = their_nodes[i];
  }
  for (std::size_t i = 0; i < scopes.size(); ++i) pair(scopes[i], their_scopes[i]);
}

// Names inside regions are made up (after what they stand for outside), so nodes are paired by their order.
void ViewFolder::pair_regions(std::uint32_t copy, std::uint32_t with) {
  const std::vector<std::uint32_t> nodes = nodes_below(copy), others = nodes_below(with);
  LOCKSTEP_CHECK(nodes.size() == others.size(), "regions in '", view_.scopes_[copy].name, "' and '",
                 view_.scopes_[with].name, "' are not of one structure");
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (twins_[nodes[i]] == nodes[i]) twins_[nodes[i]] = others[i];
  }
}

std::vector<std::uint32_t> ViewFolder::nodes_below(std::uint32_t scope) const {
  std::vector<std::uint32_t> nodes = tree_nodes_[scope];
  for (const std::uint32_t inner : tree_scopes_[scope]) {
    const std::vector<std::uint32_t> more = nodes_below(inner);
    nodes.insert(nodes.end(), more.begin(), more.end());
  }
  std::ranges::sort(nodes);
  return nodes;
}

void ViewFolder::fold_layers() {
  for (std::size_t s = 0; s < view_.scopes_.size(); ++s) {
    ViewScope& scope = view_.scopes_[s];
    if (in_region_[s]) continue;
    std::map<std::pair<std::string_view, std::uint64_t>, std::uint32_t> first;
    std::vector<std::uint32_t> kept;
    for (const std::uint32_t child : scope.scopes) {
      ViewScope& other = view_.scopes_[child];
      const auto [found, made] = first.try_emplace({stem_of(other.label), hashes_[child]}, child);
      if (made) {
        kept.push_back(child);
        continue;
      }
      ViewScope& with = view_.scopes_[found->second];
      if (with.copies.empty()) with.copies.push_back(with.name);
      with.copies.push_back(other.name);
      pair(child, found->second);
    }
    scope.scopes = std::move(kept);
  }
  for (std::uint32_t& twin : twins_) {
    while (twins_[twin] != twin) twin = twins_[twin];
  }
}

void ViewFolder::fold_edges() {
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, bool>, std::uint64_t> edges;
  for (const ViewEdge& edge : view_.edges_) {
    const std::uint32_t from = twins_[edge.from], to = twins_[edge.to];
    const std::uint32_t before = common_scope(tree_scope_[edge.from], tree_scope_[edge.to]);
    const std::uint32_t after = common_scope(tree_scope_[from], tree_scope_[to]);
    if (view_.scopes_[after].depth > view_.scopes_[before].depth) {  // from one copy to another
      std::uint32_t at = after;
      while (view_.scopes_[at].depth > view_.scopes_[before].depth + 1) at = tree_parent_[at];
      view_.scopes_[at].chained = true;
    } else if (from != to) {
      edges[{from, to, edge.output, edge.control}] |= edge.stages;
    }
  }
  view_.edges_.clear();
  for (const auto& [key, stages] : edges) {
    const auto& [from, to, output, control] = key;
    view_.edges_.push_back({from, to, output, control, stages});
  }
}

void ViewFolder::add_size(ViewScope& scope, const ViewNode& node) const {
  scope.sizes.resize(view_.stages_.size());
  for (const ViewAppearance& one : node.appearances)
    scope.sizes[one.stage] += static_cast<std::size_t>(one.copies);
}

void ViewFolder::count() {
  view_.scopes_[0].sizes.resize(view_.stages_.size());
  for (std::uint32_t i = 0; i < view_.nodes_.size(); ++i) {
    ViewNode& node = view_.nodes_[i];
    node.drawn_as = twins_[i];
    node.scope = tree_scope_[node.drawn_as];
    // The scope it is drawn in, and every scope around that one, count it.
    for (std::uint32_t at = node.scope;; at = tree_parent_[at]) {
      add_size(view_.scopes_[at], node);
      view_.scopes_[at].stages |= node.stages;
      if (at == 0) break;
    }
  }
}

// --- scopes that are worth drawing

void ViewFolder::leave_out_single() {
  std::vector<ViewScope>& scopes = view_.scopes_;
  for (std::size_t s = scopes.size(); --s > 0;) {  // inner ones first
    ViewScope& scope = scopes[s];
    if (scope.nodes.size() + scope.scopes.size() != 1 || !scope.copies.empty()) continue;
    ViewScope& parent = scopes[scope.parent];
    const auto at = std::ranges::find(parent.scopes, static_cast<std::uint32_t>(s));
    if (at == parent.scopes.end()) continue;  // folded into another one
    if (!scope.nodes.empty()) {
      ViewNode& node = view_.nodes_[scope.nodes[0]];
      if (node.name != scope.name) node.label = scope.label + "/" + node.label;
      parent.scopes.erase(at);
      parent.nodes.push_back(scope.nodes[0]);
      node.scope = scope.parent;
    } else {
      ViewScope& child = scopes[scope.scopes[0]];
      child.label = scope.label + "/" + child.label;
      child.parent = scope.parent;
      *at = scope.scopes[0];
    }
    scope.nodes.clear();
    scope.scopes.clear();
  }
  for (ViewScope& scope : scopes) std::ranges::sort(scope.nodes);
}

std::uint32_t ViewFolder::first_node(std::uint32_t scope) const {
  if (first_.size() < view_.scopes_.size()) first_.resize(view_.scopes_.size(), kNone);
  std::uint32_t& first = first_[scope];
  if (first != kNone) return first;
  std::uint32_t least = kNone;
  for (const std::uint32_t node : view_.scopes_[scope].nodes) least = std::min(least, node);
  for (const std::uint32_t inner : view_.scopes_[scope].scopes) least = std::min(least, first_node(inner));
  return first_[scope] = least;
}

void ViewFolder::cut_into_parts() {
  struct Part {
    std::uint32_t first = 0, index = 0;
    bool scope = false;
  };
  const std::size_t limit = options_.max_children;
  for (std::uint32_t s = 0; s < view_.scopes_.size(); ++s) {  // parts made here are visited in turn
    std::vector<Part> items;
    if (view_.scopes_[s].nodes.size() + view_.scopes_[s].scopes.size() <= limit) continue;
    for (const std::uint32_t node : view_.scopes_[s].nodes) items.push_back({node, node, false});
    for (const std::uint32_t scope : view_.scopes_[s].scopes)
      items.push_back({first_node(scope), scope, true});
    std::ranges::sort(items, {},
                      [](const Part& item) { return std::tuple(item.first, item.index, item.scope); });
    // About as many parts as things in each, on as few levels as the limit allows.
    std::size_t levels = 1;
    for (std::size_t room = limit; room < items.size(); room *= limit) ++levels;
    const double root = std::pow(static_cast<double>(items.size()), 1 / static_cast<double>(levels));
    const std::size_t parts = std::min(limit, static_cast<std::size_t>(std::ceil(root)));
    view_.scopes_[s].nodes.clear();
    view_.scopes_[s].scopes.clear();
    for (std::size_t p = 0; p < parts; ++p) {
      const auto made = static_cast<std::uint32_t>(view_.scopes_.size());
      ViewScope part;
      part.label = str("part ", p + 1, " of ", parts);
      part.name = view_.scopes_[s].name.empty() ? part.label : view_.scopes_[s].name + "/" + part.label;
      part.parent = s;
      part.part = true;
      part.sizes.resize(view_.stages_.size());
      const std::size_t begin = items.size() * p / parts, end = items.size() * (p + 1) / parts;
      for (std::size_t i = begin; i < end; ++i) {
        const Part& item = items[i];
        if (item.scope) {
          part.scopes.push_back(item.index);
          view_.scopes_[item.index].parent = made;
          for (std::size_t stage = 0; stage < part.sizes.size(); ++stage)
            part.sizes[stage] += view_.scopes_[item.index].sizes[stage];
          part.stages |= view_.scopes_[item.index].stages;
        } else {
          part.nodes.push_back(item.index);
          view_.nodes_[item.index].scope = made;
          add_size(part, view_.nodes_[item.index]);
          part.stages |= view_.nodes_[item.index].stages;
        }
      }
      view_.scopes_.push_back(std::move(part));
      view_.scopes_[s].scopes.push_back(made);
    }
  }
}

// Renumbers the scopes that are drawn, parents first.
void ViewFolder::number() {
  std::vector<ViewScope>& scopes = view_.scopes_;
  std::vector<std::uint32_t> order{0}, place(scopes.size(), kNone);
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = static_cast<std::uint32_t>(i);
    std::vector<std::uint32_t>& inner = scopes[order[i]].scopes;
    std::ranges::sort(inner, {}, [&](std::uint32_t scope) { return first_node(scope); });
    std::ranges::copy(inner, std::back_inserter(order));
  }
  std::vector<ViewScope> kept;
  kept.reserve(order.size());
  for (const std::uint32_t old : order) {
    ViewScope scope = std::move(scopes[old]);
    scope.parent = place[scope.parent];
    scope.depth = kept.empty() ? 0 : kept[scope.parent].depth + 1;
    for (std::uint32_t& inner : scope.scopes) inner = place[inner];
    kept.push_back(std::move(scope));
  }
  scopes = std::move(kept);
  for (std::uint32_t i = 0; i < view_.nodes_.size(); ++i) {
    ViewNode& node = view_.nodes_[i];
    if (node.drawn_as == i) node.scope = place[node.scope];
  }
  for (ViewNode& node : view_.nodes_) node.scope = view_.nodes_[node.drawn_as].scope;
}

}  // namespace lockstep::internal
