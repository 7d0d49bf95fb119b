// io/internal/drawing.h - what dot.cpp and the drawings of a page have in common: boxes, edges, colours as DOT text.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "lockstep/io/dot.h"
#include "lockstep/io/graph_view.h"

namespace lockstep::internal {

// A string for DOT, quoted; for labels Graphviz's escapes and entities are switched off, bytes that are not UTF-8 replaced.
std::string dot_quoted(std::string_view text);
// Text for labels in the HTML-like form, and for HTML.
std::string markup_escaped(std::string_view text);
// The text with what is not UTF-8 replaced by '?'.
std::string valid_utf8(std::string_view text);

// Something drawn: a box, a scope as one box, or a stub for something outside of the drawing.
struct Item {
  enum class Kind : std::uint8_t { kNode, kScope, kOutsideNode, kOutsideScope, kMoreBefore, kMoreBehind };
  Kind kind = Kind::kNode;
  std::uint32_t index = 0;
  friend auto operator<=>(const Item&, const Item&) = default;
};
std::string id_of(Item item);  // "n12", "s3", ...

// Edges of a view between the same two items are one.
struct DrawnEdge {
  std::uint64_t stages = 0;
  std::vector<std::pair<std::uint32_t, std::uint32_t>>
      values;                 // (box, output) that flow; empty for control edges
  std::uint32_t example = 0;  // one of the view's edges
};
using DrawnEdges = std::map<std::tuple<Item, Item, bool>, DrawnEdge>;  // from, to, control
void add_edge(DrawnEdges& edges, Item from, Item to, const GraphView& view, std::uint32_t edge);
// "f32[4]", or "3 values".
std::string label_of(const GraphView& view, const DrawnEdge& edge);

// Which colour boxes have: one for each set of devices, and of replicas, that occurs. By stage, since both change.
class Colours {
 public:
  Colours(const GraphView& view, ColourBy by);
  // Place in names(); -1: not placed, or of no replica.
  int of(const ViewAppearance& appearance) const;
  const std::vector<std::string>& names() const { return names_; }
  static constexpr int kCount = 10;  // then they begin again
  static std::string_view fill(int colour);

 private:
  static std::string key(const ViewAppearance& appearance, ColourBy by);
  ColourBy by_;
  std::vector<std::string> names_;
  std::map<std::string, int> index_;
};

// Lines of the label: name, op where the name does not say it, "x 8".
std::string box_label(const ViewNode& node, std::uint64_t copies);
std::string scope_label(const GraphView& view, const ViewScope& scope);
// shape="..." and what else marks a kind.
std::string_view outline_of(ViewKind kind);

}  // namespace lockstep::internal
