// io/drawings/internal/drawing.h - the parts that dot.cpp and the drawings of a page share: boxes, edges,
// colours as DOT text.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/io/drawings/dot.h"
#include "lockstep/io/drawings/graph_view.h"

namespace lockstep::internal {

// A string for DOT, quoted; for labels Graphviz's escapes and entities are switched off, bytes that are not
// UTF-8 replaced.
std::string dot_quoted(std::string_view text);
// Text for labels in the HTML-like form, and for HTML.
std::string markup_escaped(std::string_view text);
// The text with bytes that are not UTF-8 replaced by '?'.
std::string valid_utf8(std::string_view text);

// Something drawn: a box, a scope as one box, or a stub for something outside of the drawing.
struct Item {
  enum class Kind : std::uint8_t { kNode, kScope, kOutsideNode, kOutsideScope, kMoreBefore, kMoreBehind };
  Kind kind = Kind::kNode;
  std::uint32_t index = 0;
  friend auto operator<=>(const Item&, const Item&) = default;
};
std::string id_of(Item item);  // "n12", "s3", ...

// Edges of a view between the same two items are drawn as one.
struct DrawnEdge {
  std::uint64_t stages = 0;
  std::vector<std::uint32_t> edges;  // of the view
};
using DrawnEdges = std::map<std::tuple<Item, Item, bool>, DrawnEdge>;  // from, to, control
void add_edge(DrawnEdges& edges, Item from, Item to, const GraphView& view, std::uint32_t edge);
// A line for each kind of value that flows at this stage, up to three: "f32[4]", "2 of f32[8,8]", "and 3
// more".
std::string label_of(const GraphView& view, const DrawnEdge& edge, std::size_t stage);
// Graphviz puts the label of an edge right beside its line: with blanks on either side it stands clear.
std::string clear_of_line(const std::string& label);

// A label over all stages: pairs of a stage and the text from that stage on. In stages without the thing it
// keeps its last text.
using StageLabels = std::vector<std::pair<std::uint32_t, std::string>>;
template <class LabelAt>
StageLabels labels_over(const GraphView& view, std::uint64_t stages, const LabelAt& label_at) {
  StageLabels labels;
  for (std::uint32_t s = 0; s < view.stages().size(); ++s) {
    if ((stages >> s & 1U) == 0) continue;
    std::string label = label_at(s);
    if (labels.empty()) {
      labels.emplace_back(0, std::move(label));
    } else if (labels.back().second != label) {
      labels.emplace_back(s, std::move(label));
    }
  }
  return labels;
}
// The longest of each line, so that there is room for all of them.
std::string widest(const StageLabels& labels);

// The colours of boxes: one for each set of devices, and of replicas, that occurs. By stage, since both
// change. In natural order: cpu:2 comes before cpu:10.
class Colours {
 public:
  Colours(const GraphView& view, ColourBy by);
  // Place in names(); -1: not placed, or of no replica.
  int of(const ViewAppearance& appearance) const;
  const std::vector<std::string>& names() const { return names_; }              // short, no two alike
  const std::vector<std::string>& whole_names() const { return whole_names_; }  // all devices of the set
  // "#cfe3f7"; no two of the first hundred are alike.
  static std::string fill(int colour);

 private:
  static std::string key(const ViewAppearance& appearance, ColourBy by);
  ColourBy by_;
  std::vector<std::string> names_, whole_names_;
  std::map<std::string, int> index_;  // by the whole name
};

// The lines of the label at a stage that has the box: name, op if the name does not say it, "x 8".
std::string box_label(const ViewNode& node, std::size_t stage);
std::string scope_label(const GraphView& view, const ViewScope& scope, std::size_t stage);
// shape="..." and the other attributes that mark a kind.
std::string_view outline_of(ViewKind kind);

}  // namespace lockstep::internal
