// io/drawings/scope_drawings.cpp - one drawing per scope of a view, laid out by Graphviz, for a page that
// styles it.
#include "lockstep/io/drawings/internal/scope_drawings.h"

#include <algorithm>
#include <set>

#include "lockstep/core/error.h"

namespace lockstep::internal {

namespace {

constexpr std::size_t kMaxOutside = 16;       // stubs in one drawing; any more are joined
constexpr std::size_t kManyEdges = 150;       // with more, their shapes would push everything apart
constexpr std::size_t kDrawingsAtOnce = 100;  // for one run of Graphviz

bool is_outside(Item item) { return item.kind != Item::Kind::kNode && item.kind != Item::Kind::kScope; }

// Edges by the drawing they are in: between children of the scope that holds both ends, and as stubs in every
// scope between that one and either end.
std::vector<DrawnEdges> edges_by_scope(const GraphView& view) {
  std::vector<DrawnEdges> drawings(view.scopes().size());
  const std::vector<ViewScope>& scopes = view.scopes();
  for (std::uint32_t i = 0; i < view.edges().size(); ++i) {
    const ViewEdge& edge = view.edges()[i];
    std::uint32_t common = view.nodes()[edge.from].scope, other = view.nodes()[edge.to].scope;
    while (common != other) {
      if (scopes[common].depth >= scopes[other].depth) {
        common = scopes[common].parent;
      } else {
        other = scopes[other].parent;
      }
    }
    const auto item_in = [&](std::uint32_t scope, std::uint32_t node, bool outside) -> Item {
      const std::uint32_t child = view.child_of(scope, node);
      if (child == GraphView::kHere) return {outside ? Item::Kind::kOutsideNode : Item::Kind::kNode, node};
      return {outside ? Item::Kind::kOutsideScope : Item::Kind::kScope, child};
    };
    add_edge(drawings[common], item_in(common, edge.from, false), item_in(common, edge.to, false), view, i);
    const Item before = item_in(common, edge.from, true), behind = item_in(common, edge.to, true);
    for (std::uint32_t at = view.nodes()[edge.from].scope; at != common; at = scopes[at].parent)
      add_edge(drawings[at], item_in(at, edge.from, false), behind, view, i);
    for (std::uint32_t at = view.nodes()[edge.to].scope; at != common; at = scopes[at].parent)
      add_edge(drawings[at], before, item_in(at, edge.to, false), view, i);
  }
  return drawings;
}

class ScopeWriter {
 public:
  ScopeWriter(const GraphView& view, std::uint32_t scope, const DrawnEdges& edges, ScopeDrawing& drawing)
      : view_(view), scope_(view.scopes()[scope]), drawing_(drawing), edges_(join_outside(edges, drawing)) {}

  std::string dot() {
    // Fonts have the size that the style sheet gives them. Large drawings are laid out with less care:
    // otherwise they would take too long.
    out_ = str("digraph {\n  graph [nodesep=0.22, ranksep=0.2, bgcolor=transparent",
               is_large() ? ", nslimit=4, mclimit=0.7" : "", "]\n",
               "  node [fontname=\"Helvetica\", fontsize=14, height=0.3, margin=\"0.09,0.04\"]\n"
               "  edge [fontname=\"Helvetica\", fontsize=11, arrowsize=0.6]\n");
    for (const std::uint32_t node : scope_.nodes) write_node(node);
    for (const std::uint32_t inner : scope_.scopes) write_scope(inner);
    write_outside();
    for (const auto& [key, edge] : edges_) write_edge(key, edge);
    return out_ + "}\n";
  }

 private:
  bool is_large() const { return edges_.size() > kManyEdges; }

  // If there are very many things outside, the rest becomes one stub on each side.
  static DrawnEdges join_outside(const DrawnEdges& edges, ScopeDrawing& drawing) {
    std::set<Item> outside;
    for (const auto& [key, edge] : edges) {
      for (const Item item : {std::get<0>(key), std::get<1>(key)}) {
        if (is_outside(item)) outside.insert(item);
      }
    }
    if (outside.size() <= kMaxOutside) return edges;
    const std::set<Item> kept(outside.begin(), std::next(outside.begin(), kMaxOutside));
    DrawnEdges joined;
    std::set<Item> before, behind;
    for (const auto& [key, edge] : edges) {
      auto [from, to, control] = key;
      if (is_outside(from) && !kept.contains(from)) {
        before.insert(from);
        from = {Item::Kind::kMoreBefore, 0};
      }
      if (is_outside(to) && !kept.contains(to)) {
        behind.insert(to);
        to = {Item::Kind::kMoreBehind, 0};
      }
      DrawnEdge& into = joined[{from, to, control}];
      into.stages |= edge.stages;
      into.edges.insert(into.edges.end(), edge.edges.begin(), edge.edges.end());
    }
    for (const Item item : before) drawing.more_before.push_back(id_of(item));
    for (const Item item : behind) drawing.more_behind.push_back(id_of(item));
    return joined;
  }

  void write_box(Item item, const StageLabels& labels, std::string_view css, std::string_view outline) {
    const std::string id = id_of(item);
    out_ += str("  ", id, " [id=\"", id, "\", class=\"", css, "\", label=", dot_quoted(widest(labels)), ", ",
                outline, "]\n");
    if (labels.size() > 1) drawing_.labels.emplace_back(id, labels);
  }

  void write_node(std::uint32_t index) {
    const ViewNode& node = view_.nodes()[index];
    std::string outline(outline_of(node.kind));
    if (node.result) outline += ", peripheries=2";
    const StageLabels labels =
        labels_over(view_, node.stages, [&](std::size_t stage) { return box_label(node, stage); });
    write_box({Item::Kind::kNode, index}, labels, str("box ", to_string(node.kind)), outline);
  }

  void write_scope(std::uint32_t index) {
    const ViewScope& scope = view_.scopes()[index];
    const bool holds = scope.holder != ViewScope::kNoHolder;
    const StageLabels labels =
        labels_over(view_, scope.stages, [&](std::size_t stage) { return scope_label(view_, scope, stage); });
    write_box({Item::Kind::kScope, index}, labels,
              scope.part ? "part"
              : holds    ? "scope holder"
                         : "scope",
              holds ? outline_of(ViewKind::kRegions) : "shape=folder, style=filled");
  }

  void write_edge(const DrawnEdges::key_type& key, const DrawnEdge& edge) {
    const auto& [from, to, control] = key;
    StageLabels labels;
    if (!control)
      labels =
          labels_over(view_, edge.stages, [&](std::size_t stage) { return label_of(view_, edge, stage); });
    out_ += str("  ", id_of(from), " -> ", id_of(to), " [id=\"e", drawing_.edges.size(), "\"");
    if (control) out_ += ", class=\"control\", style=dashed, arrowhead=open";
    if (!control && !is_large()) out_ += str(", label=", dot_quoted(clear_of_line(widest(labels))));
    out_ += "]\n";
    drawing_.edges.push_back({id_of(from), id_of(to), control, edge.stages, std::move(labels)});
  }

  void write_outside() {
    std::set<Item> written;
    for (const auto& [key, edge] : edges_) {
      for (const Item item : {std::get<0>(key), std::get<1>(key)}) {
        if (!is_outside(item) || !written.insert(item).second) continue;
        const bool node = item.kind == Item::Kind::kOutsideNode,
                   scope = item.kind == Item::Kind::kOutsideScope;
        const bool before = item.kind == Item::Kind::kMoreBefore;
        const std::size_t joined = before ? drawing_.more_before.size() : drawing_.more_behind.size();
        write_box(item,
                  {{0, node    ? view_.nodes()[item.index].name
                       : scope ? view_.scopes()[item.index].name
                               : str("and ", joined, " more")}},
                  "outside", "shape=box, style=\"rounded,dashed\", fontsize=11");
      }
    }
  }

  const GraphView& view_;
  const ViewScope& scope_;
  ScopeDrawing& drawing_;
  const DrawnEdges edges_;
  std::string out_;
};

// Graphviz's output for one drawing, without the parts that the page does not use: comments, titles that
// would pop up, colours and fonts that its style sheet sets, decimals of coordinates that nobody can see.
// They are more than half of the whole.
std::string trimmed(std::string_view svg) {
  struct Span {
    std::string_view begin, end;  // removed with the text in between; no end: `begin` alone
  };
  constexpr Span kUnused[] = {{"<!--", "-->\n"},
                              {"<title>", "</title>\n"},
                              {" fill=\"", "\""},
                              {" stroke=\"", "\""},
                              {" font-family=\"", "\""},
                              {" font-size=\"", "\""},
                              {" text-anchor=\"middle\"", ""},
                              {" xmlns=\"http://www.w3.org/2000/svg\"", ""},
                              {" xmlns:xlink=\"http://www.w3.org/1999/xlink\"", ""}};
  constexpr std::string_view kDigits = "0123456789";
  const auto is_digit = [&](char c) { return kDigits.find(c) != std::string_view::npos; };
  std::string out;
  bool in_tag = false;
  for (std::size_t at = 0; at < svg.size();) {
    const std::string_view rest = svg.substr(at);
    in_tag = rest[0] == '<' || (in_tag && rest[0] != '>');
    if (in_tag && rest[0] == '.' && at > 0 && is_digit(svg[at - 1]) && rest.size() > 2 && is_digit(rest[1])) {
      out += rest.substr(0, 2);
      at += std::min(rest.find_first_not_of(kDigits, 1), rest.size());
      continue;
    }
    const bool may = rest[0] == ' ' || rest[0] == '<';
    const auto* unused =
        may ? std::ranges::find_if(kUnused, [&](const Span& one) { return rest.starts_with(one.begin); })
            : std::end(kUnused);
    if (unused == std::end(kUnused)) {
      out += svg[at++];
      continue;
    }
    const std::size_t end = rest.find(unused->end, unused->begin.size());
    at += end == std::string_view::npos ? rest.size() : end + unused->end.size();
  }
  return out;
}

}  // namespace

std::vector<ScopeDrawing> draw_scopes(const GraphView& view, const GraphvizOptions& options) {
  const std::vector<DrawnEdges> edges = edges_by_scope(view);
  std::vector<ScopeDrawing> drawings(view.scopes().size());
  for (std::size_t first = 0; first < drawings.size(); first += kDrawingsAtOnce) {
    const std::size_t last = std::min(first + kDrawingsAtOnce, drawings.size());
    std::string dot;
    for (std::size_t s = first; s < last; ++s)
      dot += ScopeWriter(view, static_cast<std::uint32_t>(s), edges[s], drawings[s]).dot();
    const std::string all = run_graphviz(dot, "svg", options);
    std::size_t at = 0;
    for (std::size_t s = first; s < last; ++s) {
      const std::size_t begin = all.find("<svg", at), end = all.find("</svg>", at);
      if (begin == std::string::npos || end == std::string::npos) {
        throw FailedPrecondition(str("Graphviz gave ", s - first, " drawings of ", last - first, "; is '",
                                     options.program, "' Graphviz's dot?"));
      }
      at = end + 6;
      drawings[s].svg = trimmed(std::string_view(all).substr(begin, at - begin));
    }
  }
  return drawings;
}

}  // namespace lockstep::internal
