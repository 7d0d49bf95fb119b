#include "lockstep/io/internal/drawing.h"

#include <algorithm>
#include <array>
#include <set>

#include "lockstep/core/error.h"
#include "lockstep/core/utf8.h"

namespace lockstep::internal {

namespace {

constexpr std::array<std::string_view, Colours::kCount> kFills = {"#cfe3f7", "#fde2c4", "#d5edd0", "#f6d3dc",
                                                                  "#e3d8f1", "#fbf0b8", "#cdeceb", "#ecd9c6",
                                                                  "#dbe4c3", "#e0e0e0"};

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (length == 0 || (byte < 0x20 && text[0] != '\n' && text[0] != '\t') || byte == 0x7f) {
      out += '?';
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

std::string markup_escaped(std::string_view text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string dot_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '&': out += "&amp;"; break;
      case '\n': out += "\\n"; break;
      default: out += c;
    }
  }
  return out + "\"";
}

std::string id_of(Item item) {
  switch (item.kind) {
    case Item::Kind::kNode: return str("n", item.index);
    case Item::Kind::kScope: return str("s", item.index);
    case Item::Kind::kOutsideNode: return str("on", item.index);
    case Item::Kind::kOutsideScope: return str("os", item.index);
    case Item::Kind::kMoreBefore: return "mb";
    case Item::Kind::kMoreBehind: return "ma";
  }
  return "?";
}

// --- edges

void add_edge(DrawnEdges& edges, Item from, Item to, const GraphView& view, std::uint32_t edge) {
  const ViewEdge& one = view.edges()[edge];
  DrawnEdge& drawn = edges[{from, to, one.control}];
  drawn.stages |= one.stages;
  drawn.example = edge;
  if (one.control) return;
  const std::pair value(one.from, one.output);
  if (drawn.values.empty() || drawn.values.back() != value) drawn.values.push_back(value);
}

std::string label_of(const GraphView& view, const DrawnEdge& edge) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> values = edge.values;
  std::ranges::sort(values);
  const auto last = std::unique(values.begin(), values.end());
  const auto count = static_cast<std::size_t>(last - values.begin());
  if (count == 0) return {};
  return count == 1 ? view.spec_of(view.edges()[edge.example]) : str(count, " values");
}

// --- colours

Colours::Colours(const GraphView& view, ColourBy by) : by_(by) {
  std::set<std::string> keys;
  for (const ViewNode& node : view.nodes()) {
    for (const ViewAppearance& one : node.appearances) keys.insert(key(one, by));
  }
  keys.erase("");
  for (const std::string& name : keys) {
    index_.emplace(name, static_cast<int>(names_.size()));
    names_.push_back(name);
  }
}

std::string Colours::key(const ViewAppearance& appearance, ColourBy by) {
  if (by == ColourBy::kReplica) {
    if (appearance.copies > 1) return str(appearance.copies, " replicas");
    const std::int32_t replica = appearance.nodes[0]->provenance().replica;
    return replica < 0 ? "" : str("replica ", replica);
  }
  std::vector<std::string_view> devices;  // in the order of replicas
  for (const Node* node : appearance.nodes) {
    if (!node->device().empty() && std::ranges::find(devices, node->device()) == devices.end())
      devices.push_back(node->device());
  }
  constexpr std::size_t kShown = 3;
  std::string out;
  for (std::size_t i = 0; i < std::min(devices.size(), kShown); ++i)
    out += str(i == 0 ? "" : ", ", devices[i]);
  if (devices.size() > kShown) out += str(" and ", devices.size() - kShown, " more");
  return out;
}

int Colours::of(const ViewAppearance& appearance) const {
  const auto found = index_.find(key(appearance, by_));
  return found == index_.end() ? -1 : found->second;
}

std::string_view Colours::fill(int colour) {
  return colour < 0 ? "#f7f7f7" : kFills[static_cast<std::size_t>(colour % kCount)];
}

// --- boxes

std::string box_label(const ViewNode& node, std::uint64_t copies) {
  std::string out = node.label;
  // "matmul_1" and "grad/matmul" say what they are.
  const std::size_t slash = node.label.rfind('/');
  const std::string_view last =
      std::string_view(node.label).substr(slash == std::string::npos ? 0 : slash + 1);
  const bool says = last.starts_with(node.op->name) &&
                    last.find_first_not_of("_0123456789", node.op->name.size()) == std::string_view::npos;
  if (!says) out += str("\n", node.op->name);
  if (copies > 1) out += str(says ? "\nx " : "  x ", copies);
  return out;
}

std::string scope_label(const GraphView& view, const ViewScope& scope) {
  if (scope.copies.empty() && scope.holder != ViewScope::kNoHolder) {
    const ViewNode& holder = view.nodes()[scope.holder];
    std::uint64_t copies = 1;
    for (const ViewAppearance& one : holder.appearances) copies = std::max(copies, one.copies);
    return box_label(holder, copies);
  }
  if (scope.copies.empty()) return str(scope.label, "\n", scope.size, scope.size == 1 ? " node" : " nodes");
  const std::string& last = scope.copies.back();
  const std::size_t slash = last.rfind('/');
  return str(scope.label, " ... ", slash == std::string::npos ? last : last.substr(slash + 1), "\nx ",
             scope.copies.size(), scope.chained ? ", one behind the other" : "");
}

std::string_view outline_of(ViewKind kind) {
  switch (kind) {
    case ViewKind::kCompute: return "shape=box, style=\"rounded,filled\"";
    case ViewKind::kParameter: return "shape=invhouse, style=filled";
    case ViewKind::kConstant: return "shape=note, style=filled";
    case ViewKind::kRead: return "shape=cylinder, style=filled";
    case ViewKind::kUpdate: return "shape=cylinder, style=filled, penwidth=2";
    case ViewKind::kCollective: return "shape=hexagon, style=filled, color=\"#c2410c\", penwidth=2.5";
    case ViewKind::kCopy: return "shape=cds, style=filled, color=\"#1d4ed8\", penwidth=2";
    case ViewKind::kRegions: return "shape=box3d, style=filled";
  }
  return "";
}

}  // namespace lockstep::internal
