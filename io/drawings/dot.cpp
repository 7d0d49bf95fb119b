// io/drawings/dot.cpp - a graph as a drawing for Graphviz.
#include "lockstep/io/drawings/dot.h"

#include <algorithm>
#include <set>

#include "lockstep/core/error.h"
#include "lockstep/io/drawings/internal/drawing.h"

namespace lockstep {

namespace {

using internal::DrawnEdge;
using internal::Item;

class DotWriter {
 public:
  DotWriter(const GraphView& view, const DotOptions& options)
      : view_(view), options_(options), colours_(view, options.colours) {}

  std::string take() {
    out_ = "digraph lockstep {\n";
    out_ +=
        "  graph [fontname=\"Helvetica\", fontsize=11, nodesep=0.25, ranksep=0.35, newrank=true, "
        "style=rounded, "
        "color=\"#9a9a9a\"";
    if (!options_.title.empty()) out_ += str(", labelloc=t, label=", internal::dot_quoted(options_.title));
    out_ += "]\n";
    out_ +=
        "  node [fontname=\"Helvetica\", fontsize=10, height=0.3, margin=\"0.08,0.04\", color=\"#555555\"]\n";
    out_ +=
        "  edge [fontname=\"Helvetica\", fontsize=9, color=\"#555555\", fontcolor=\"#555555\", "
        "arrowsize=0.6]\n";
    write_scope(0, 1);
    write_edges();
    if (options_.legend) write_legend();
    out_ += "}\n";
    return std::move(out_);
  }

 private:
  // Whether a scope is drawn as one box: if it lies deeper than max_depth, or runs as one thing, like fused
  // nodes.
  bool is_box(std::uint32_t scope) const {
    const ViewScope& one = view_.scopes()[scope];
    if (scope == 0) return false;
    const bool whole =
        one.holder != ViewScope::kNoHolder && view_.nodes()[one.holder].op->region_kind == RegionKind::kNone;
    return whole || one.depth > options_.max_depth;
  }

  void indent(std::size_t depth) { out_.append(2 * depth, ' '); }

  void write_scope(std::uint32_t scope, std::size_t depth) {
    const ViewScope& one = view_.scopes()[scope];
    for (const std::uint32_t node : one.nodes) write_node(node, depth);
    for (const std::uint32_t inner : one.scopes) {
      if (is_box(inner)) {
        write_box(inner, depth);
        continue;
      }
      indent(depth);
      out_ += str("subgraph cluster_", inner, " {\n");
      indent(depth + 1);
      const ViewScope& child = view_.scopes()[inner];
      std::string label = child.copies.empty() ? child.label : internal::scope_label(view_, child, 0);
      std::ranges::replace(label, '\n', ' ');
      out_ += str("label=", internal::dot_quoted(label), "; labeljust=l; fontcolor=\"#555555\"\n");
      write_scope(inner, depth + 1);
      indent(depth);
      out_ += "}\n";
    }
  }

  void write_node(std::uint32_t index, std::size_t depth) {
    const ViewNode& node = view_.nodes()[index];
    const ViewAppearance& now = node.last();
    kinds_.insert(node.kind);
    const int colour = colours_.of(now);
    used_.insert(colour);
    indent(depth);
    out_ += str("n", index, " [label=", internal::dot_quoted(internal::box_label(node, 0)), ", ",
                internal::outline_of(node.kind), ", fillcolor=\"", internal::Colours::fill(colour), "\"");
    if (node.result) {
      out_ += ", peripheries=2";
      results_ = true;
    }
    out_ += str(", tooltip=", internal::dot_quoted(node.name), "]\n");
  }

  void write_box(std::uint32_t scope, std::size_t depth) {
    const ViewScope& one = view_.scopes()[scope];
    const bool holds = one.holder != ViewScope::kNoHolder;
    int colour = -1;
    if (holds) {
      kinds_.insert(ViewKind::kRegions);
      colour = colours_.of(view_.nodes()[one.holder].last());
      used_.insert(colour);
    } else {
      boxes_ = true;
    }
    indent(depth);
    out_ += str("s", scope, " [label=", internal::dot_quoted(internal::scope_label(view_, one, 0)), ", ",
                holds ? internal::outline_of(ViewKind::kRegions) : "shape=folder, style=filled",
                ", fillcolor=\"", holds ? internal::Colours::fill(colour) : "#ffffff", "\"");
    if (holds && view_.nodes()[one.holder].result) {
      out_ += ", peripheries=2";
      results_ = true;
    }
    out_ += str(", tooltip=", internal::dot_quoted(one.name), "]\n");
  }

  Item item_of(std::uint32_t node) const {
    Item item{Item::Kind::kNode, node};
    for (std::uint32_t scope = view_.nodes()[node].scope; scope != 0; scope = view_.scopes()[scope].parent) {
      if (is_box(scope)) item = {Item::Kind::kScope, scope};
    }
    return item;
  }

  void write_edges() {
    internal::DrawnEdges edges;
    for (std::uint32_t i = 0; i < view_.edges().size(); ++i) {
      const Item from = item_of(view_.edges()[i].from), to = item_of(view_.edges()[i].to);
      if (from != to) internal::add_edge(edges, from, to, view_, i);
    }
    for (const auto& [key, edge] : edges) {
      const auto& [from, to, control] = key;
      out_ += str("  ", internal::id_of(from), " -> ", internal::id_of(to));
      if (control) {
        controls_ = true;
        out_ += " [style=dashed, arrowhead=open, color=\"#999999\"]";
      } else if (options_.shapes) {
        out_ +=
            str(" [label=", internal::dot_quoted(internal::clear_of_line(internal::label_of(view_, edge, 0))),
                "]");
      }
      out_ += "\n";
    }
  }

  // One node with a table, in a corner of its own.
  void write_legend() {
    std::string rows;
    const auto row = [&](std::string_view sign, std::string_view fill, std::string_view text) {
      rows += str("<TR><TD BGCOLOR=\"", fill, "\">", sign, "</TD><TD ALIGN=\"LEFT\">",
                  internal::markup_escaped(text), "</TD></TR>");
    };
    for (const int colour : used_) {
      const bool none = colour < 0;
      if (none && used_.size() == 1) break;
      const char* nothing = options_.colours == ColourBy::kDevice ? "not placed" : "of no replica";
      row("    ", internal::Colours::fill(colour),
          none ? nothing : colours_.names()[static_cast<std::size_t>(colour)]);
    }
    for (const ViewKind kind : kinds_) {
      switch (kind) {
        case ViewKind::kCompute: break;
        case ViewKind::kParameter: row("house", "#ffffff", "parameter"); break;
        case ViewKind::kConstant: row("note", "#ffffff", "constant"); break;
        case ViewKind::kRead: row("cylinder", "#ffffff", "reads a variable"); break;
        case ViewKind::kUpdate: row("thick cylinder", "#ffffff", "updates a variable"); break;
        case ViewKind::kCollective: row("orange hexagon", "#ffffff", "joins replicas"); break;
        case ViewKind::kCopy: row("blue arrow", "#ffffff", "copies to another device"); break;
        case ViewKind::kRegions: row("3D box", "#ffffff", "holds graphs"); break;
      }
    }
    if (boxes_) row("folder", "#ffffff", "a scope");
    if (results_) row("double line", "#ffffff", "a result");
    if (controls_) row("dashed", "#ffffff", "runs after, takes nothing");
    if (rows.empty()) return;
    out_ += str("  legend [shape=plaintext, label=<<TABLE BORDER=\"0\" CELLBORDER=\"1\" CELLSPACING=\"0\" ",
                "CELLPADDING=\"3\" COLOR=\"#bbbbbb\"><TR><TD COLSPAN=\"2\"><B>legend</B></TD></TR>", rows,
                "</TABLE>>]\n");
  }

  const GraphView& view_;
  const DotOptions& options_;
  const internal::Colours colours_;
  std::string out_;
  std::set<ViewKind> kinds_;
  std::set<int> used_;
  bool results_ = false, controls_ = false, boxes_ = false;
};

}  // namespace

std::string to_dot(const Graph& graph, const DotOptions& options) {
  const GraphView view(graph, options.view);
  return DotWriter(view, options).take();
}

}  // namespace lockstep
