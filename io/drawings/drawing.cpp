// io/drawings/drawing.cpp - the parts that dot.cpp and the drawings of a page share: boxes, edges, colours as
// DOT text.
#include "lockstep/io/drawings/internal/drawing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "lockstep/core/base/utf8.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

namespace {

constexpr std::array<std::string_view, 10> kFills = {"#cfe3f7", "#fde2c4", "#d5edd0", "#f6d3dc", "#e3d8f1",
                                                     "#fbf0b8", "#cdeceb", "#ecd9c6", "#dbe4c3", "#e0e0e0"};

// Digits count as numbers: "cpu:2" comes before "cpu:10".
bool comes_before(std::string_view a, std::string_view b) {
  constexpr std::string_view kDigits = "0123456789";
  while (!a.empty() && !b.empty()) {
    const std::size_t x = std::min(a.find_first_not_of(kDigits), a.size());
    const std::size_t y = std::min(b.find_first_not_of(kDigits), b.size());
    if (x == 0 || y == 0) {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
      continue;
    }
    std::string_view m = a.substr(0, x), n = b.substr(0, y);
    m.remove_prefix(std::min(m.find_first_not_of('0'), m.size()));
    n.remove_prefix(std::min(n.find_first_not_of('0'), n.size()));
    if (m.size() != n.size()) return m.size() < n.size();
    if (m != n) return m < n;
    a.remove_prefix(x);
    b.remove_prefix(y);
  }
  return a.size() < b.size();
}

// The first few of a sorted set of devices.
std::string short_name(const std::string& whole) {
  constexpr std::size_t kShown = 3;
  std::size_t at = 0, shown = 0;
  while (shown < kShown && at != std::string::npos) {
    at = whole.find(", ", at == 0 ? 0 : at + 2);
    ++shown;
  }
  if (at == std::string::npos) return whole;
  std::size_t more = 0;
  for (std::size_t next = at; next != std::string::npos; next = whole.find(", ", next + 2)) ++more;
  return str(whole.substr(0, at), " and ", more, " more");
}

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
  drawn.edges.push_back(edge);
}

std::string label_of(const GraphView& view, const DrawnEdge& edge, std::size_t stage) {
  constexpr std::size_t kShown = 3;
  std::set<std::pair<std::uint32_t, std::uint32_t>> values;  // a value that several nodes read counts once
  std::vector<std::pair<std::string, std::size_t>> specs;    // each with the number of its values
  for (const std::uint32_t i : edge.edges) {
    const ViewEdge& one = view.edges()[i];
    std::string spec = view.spec_of(one, stage);
    if (spec.empty() || !values.insert({one.from, one.output}).second) continue;
    const auto found = std::ranges::find(specs, spec, &std::pair<std::string, std::size_t>::first);
    if (found == specs.end()) {
      specs.emplace_back(std::move(spec), 1);
    } else {
      ++found->second;
    }
  }
  std::string out;
  std::size_t shown = 0, told = 0;
  for (const auto& [spec, count] : specs) {
    if (shown++ == kShown) break;
    out += str(out.empty() ? "" : "\n", count > 1 ? str(count, " of ") : "", spec);
    told += count;
  }
  if (told < values.size()) out += str("\nand ", values.size() - told, " more");
  return out;
}

std::string clear_of_line(const std::string& label) {
  if (label.empty()) return label;
  std::string out = "  ";
  for (const char c : label) out += c == '\n' ? " \n  " : std::string(1, c);
  return out + " ";
}

std::string widest(const StageLabels& labels) {
  std::vector<std::string> lines;
  for (const auto& [stage, label] : labels) {
    std::size_t at = 0;
    for (std::size_t i = 0; at != std::string::npos; ++i) {
      const std::size_t end = label.find('\n', at);
      std::string line = label.substr(at, end == std::string::npos ? end : end - at);
      if (i == lines.size()) lines.emplace_back();
      if (line.size() > lines[i].size()) lines[i] = std::move(line);
      at = end == std::string::npos ? end : end + 1;
    }
  }
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) out += str(i == 0 ? "" : "\n", lines[i]);
  return out;
}

// --- colours

Colours::Colours(const GraphView& view, ColourBy by) : by_(by) {
  std::set<std::string> keys;
  for (const ViewNode& node : view.nodes()) {
    for (const ViewAppearance& one : node.appearances) keys.insert(key(one, by));
  }
  keys.erase("");
  whole_names_.assign(keys.begin(), keys.end());
  std::ranges::sort(whole_names_, comes_before);
  std::map<std::string, std::size_t> alike;
  for (const std::string& whole : whole_names_) ++alike[short_name(whole)];
  for (const std::string& whole : whole_names_) {
    index_.emplace(whole, static_cast<int>(names_.size()));
    const std::string name = short_name(whole);
    names_.push_back(alike[name] == 1 ? name : whole);
  }
}

std::string Colours::key(const ViewAppearance& appearance, ColourBy by) {
  if (by == ColourBy::kReplica) {
    if (appearance.copies > 1) return str(appearance.copies, " replicas");
    const std::int32_t replica = appearance.nodes[0]->provenance().replica;
    return replica < 0 ? "" : str("replica ", replica);
  }
  std::vector<std::string_view> devices;
  for (const Node* node : appearance.nodes) {
    if (!node->device().empty()) devices.push_back(node->device());
  }
  std::ranges::sort(devices, comes_before);
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  std::string out;
  for (const std::string_view device : devices) out += str(out.empty() ? "" : ", ", device);
  return out;
}

int Colours::of(const ViewAppearance& appearance) const {
  const auto found = index_.find(key(appearance, by_));
  return found == index_.end() ? -1 : found->second;
}

std::string Colours::fill(int colour) {
  if (colour < 0) return "#f7f7f7";
  if (static_cast<std::size_t>(colour) < kFills.size())
    return std::string(kFills[static_cast<std::size_t>(colour)]);
  // Hues step around the circle by the golden section: only colours many steps apart come close.
  constexpr double kGoldenSection = 0.618033988749895;
  const double turn = colour * kGoldenSection, hue = 6 * (turn - std::floor(turn));
  constexpr double kDark = 0.62, kLight = 0.95;
  std::string out = "#";
  for (const double offset : {0.0, 4.0, 2.0}) {  // red, green, blue
    const double place = std::fmod(hue + offset, 6.0), distance = std::abs(place - 3) - 1;
    const auto level =
        static_cast<unsigned>(255 * (kDark + (kLight - kDark) * std::clamp(distance, 0.0, 1.0)));
    constexpr std::string_view kHex = "0123456789abcdef";
    out += {kHex[level / 16], kHex[level % 16]};
  }
  return out;
}

// --- boxes

std::string box_label(const ViewNode& node, std::size_t stage) {
  const ViewAppearance& now = *node.at(stage);
  std::string out = node.label;
  if (!now.name.empty()) out = now.name.substr(now.name.rfind('/') + 1);
  // Names such as "matmul_1" and "grad/matmul" already say the op.
  const std::string_view last = std::string_view(out).substr(out.rfind('/') + 1);
  const bool says = last.starts_with(node.op->name) &&
                    last.find_first_not_of("_0123456789", node.op->name.size()) == std::string_view::npos;
  if (!says) out += str("\n", node.op->name);
  if (now.copies > 1) out += str(says ? "\nx " : "  x ", now.copies);
  return out;
}

std::string scope_label(const GraphView& view, const ViewScope& scope, std::size_t stage) {
  if (!scope.copies.empty()) {
    const std::string& last = scope.copies.back();
    return str(scope.label, " ... ", last.substr(last.rfind('/') + 1), "\nx ", scope.copies.size(),
               scope.chained ? ", one behind the other" : "");
  }
  if (scope.holder != ViewScope::kNoHolder && view.nodes()[scope.holder].at(stage) != nullptr)
    return box_label(view.nodes()[scope.holder], stage);
  std::size_t times = 1;  // drawn once for all copies of the scopes around it
  for (std::uint32_t at = scope.parent; at != 0; at = view.scopes()[at].parent)
    times *= std::max<std::size_t>(view.scopes()[at].copies.size(), 1);
  const bool even = times > 1 && scope.sizes[stage] % times == 0;
  const std::size_t size = even ? scope.sizes[stage] / times : scope.sizes[stage];
  return str(scope.label, "\n", size, size == 1 ? " node" : " nodes", even ? str(" x ", times) : "");
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
