// strategies/proof/drift.cpp - traces two differing values back to where they begin to differ.
#include "lockstep/strategies/proof/internal/drift.h"

#include <algorithm>

#include "lockstep/core/device.h"
#include "lockstep/graph/transform/replica_kind.h"

namespace lockstep::internal {

namespace {

std::string where(const Node& node) {
  const SourceSite site = node.site();
  std::string text = node.op().name;
  const std::string_view file = site.file == nullptr ? std::string_view() : std::string_view(site.file);
  if (!file.empty()) text += str(", ", file, ":", site.line);
  return text;
}

std::ptrdiff_t parameter_of(const Graph& graph, NodeId id) {
  const auto found = std::ranges::find(graph.parameters(), id);
  return found == graph.parameters().end() ? -1 : found - graph.parameters().begin();
}

// The value that a chain of copies was made from.
ValueId source_of(const Graph& graph, ValueId value) {
  while (graph.node(value.node).op().traits.transfers) value = graph.node(value.node).inputs()[0];
  return value;
}

std::vector<LevelClasses::Update> updates_of(const LevelClasses& classes, std::size_t variable) {
  std::vector<LevelClasses::Update> updates;
  for (const LevelClasses::Update& update : classes.updates()) {
    if (update.variable == variable) updates.push_back(update);
  }
  return updates;
}

std::uint32_t output_for(const Node& node, const std::string& variable) {
  std::uint32_t at = 0;
  for (const std::string& name : updated_variables(node)) {
    if (name == variable) return at;
    ++at;
  }
  return 0;
}

}  // namespace

void Drift::enter(const Node& owner, std::size_t region) {
  levels_.push_back({&owner.regions()[region], &level().classes->region(owner.id(), region), &owner, region});
}

// Replaces parameters of a region by their arguments; in a loop, possibly by the body's results.
bool Drift::leave(ValueId& a, ValueId& b) {
  const std::ptrdiff_t first = parameter_of(*level().graph, a.node),
                       second = parameter_of(*level().graph, b.node);
  if (first < 0 || second < 0 || levels_.size() < 2) return false;
  const Node& owner = *level().owner;
  const bool loop = owner.op().region_kind == RegionKind::kWhile;
  const auto i = static_cast<std::size_t>(first), j = static_cast<std::size_t>(second);
  const std::size_t skip = loop ? 0 : 1;
  const Level inside = level();
  levels_.pop_back();
  const ValueId outer_a = owner.inputs()[i + skip], outer_b = owner.inputs()[j + skip];
  if (!loop || differ(outer_a, outer_b)) {
    a = outer_a;
    b = outer_b;
    return true;
  }
  // They enter the loop equal: a trip makes them differ.
  enter(owner, 1);
  const std::vector<ValueId>& results = level().graph->results();
  if (i >= results.size() || j >= results.size()) {
    levels_.back() = inside;
    return false;
  }
  a = results[i];
  b = results[j];
  return true;
}

// Do they enter a loop equal, so that a trip makes them differ?
bool Drift::differs_by_trips(ValueId a, ValueId b) const {
  const std::ptrdiff_t i = parameter_of(*level().graph, a.node), j = parameter_of(*level().graph, b.node);
  if (i < 0 || j < 0 || levels_.size() < 2 || level().owner->op().region_kind != RegionKind::kWhile)
    return false;
  const LevelClasses& outside = *levels_[levels_.size() - 2].classes;
  const std::span<const ValueId> inputs = level().owner->inputs();
  return outside.of(inputs[static_cast<std::size_t>(i)]) == outside.of(inputs[static_cast<std::size_t>(j)]);
}

// Replaces two outputs of one node by the results of its regions for them.
bool Drift::descend(const Node& node, ValueId& a, ValueId& b) {
  if (!level().classes->has_regions(node.id())) return false;
  const bool loop = node.op().region_kind == RegionKind::kWhile;
  if (loop) {
    const std::size_t carried = node.regions()[1].results().size();
    const std::uint32_t i = a.output, j = b.output;
    if (i >= 2 * carried || j >= 2 * carried) return false;
    const ValueId first = node.inputs()[i % carried], second = node.inputs()[j % carried];
    if (differ(first, second)) {
      a = first;
      b = second;
      return true;
    }
    enter(node, 1);
    a = level().graph->results()[i % carried];
    b = level().graph->results()[j % carried];
    return true;
  }
  for (std::size_t region = 0; region < 2; ++region) {
    const LevelClasses& inner = level().classes->region(node.id(), region);
    const std::vector<ValueId>& results = node.regions()[region].results();
    if (inner.of(results[a.output]) == inner.of(results[b.output])) continue;
    enter(node, region);
    a = results[a.output];
    b = results[b.output];
    return true;
  }
  return false;
}

void Drift::follow(ValueId a, ValueId b) {
  for (;;) {
    if (!seen_.insert({level().graph, a, b}).second) {
      reason_ = "each trip of the loop takes them further apart";
      return;
    }
    if (leave(a, b)) continue;
    const ValueId from_a = source_of(*level().graph, a), from_b = source_of(*level().graph, b);
    if (from_a != a || from_b != b) {
      a = from_a;
      b = from_b;
      continue;
    }
    const Node& first = level().graph->node(a.node);
    const Node& second = level().graph->node(b.node);
    steps_.emplace_back(&first, &second);
    if (a.node == b.node) {
      if (descend(first, a, b)) continue;
      reason_ = "its outputs are not proven equal to each other";
      return;
    }
    if (&first.op() != &second.op() || first.inputs().size() != second.inputs().size() ||
        a.output != b.output) {
      reason_ = "they are computed in different ways";
      return;
    }
    // The first input that differs; preferably one that leads out of a loop, not round it.
    const std::size_t none = first.inputs().size();
    std::size_t i = none;
    for (std::size_t j = 0; j < none; ++j) {
      if (!differ(first.inputs()[j], second.inputs()[j])) continue;
      const bool leads_out = !differs_by_trips(first.inputs()[j], second.inputs()[j]);
      if (i == none || leads_out) i = j;
      if (leads_out) break;
    }
    if (i == none) {
      reason_ = why(first, second);
      return;
    }
    a = first.inputs()[i];
    b = second.inputs()[i];
  }
}

// Why two nodes of one op with equal inputs are not equal.
std::string Drift::why(const Node& a, const Node& b) {
  const OpTraits& traits = a.op().traits;
  const Effect effects = effects_of(a);
  if (parameter_of(*level().graph, a.id()) >= 0) {
    return str(
        "fed to each replica by itself; what all replicas should see whole is shared: "
        "enter-replicas(shared=[",
        a.name(), "]), lockstep run --shared ", a.name(), ", Strategy::distribute(step, {\"", a.name(),
        "\"}), or InputSpec::shared of function()");
  }
  if (differs_by_itself(traits)) return "its value differs between replicas";
  if (has(effects, Effect::kOpaque | Effect::kHost))
    return "nobody knows what this code gives on another replica";
  if (std::ranges::any_of(a.attributes(),
                          [](const Attribute& x) { return std::holds_alternative<Lambda>(x.value); }))
    return "code cannot be compared, so it is not known to give equal values";
  if (has(effects, Effect::kRandom)) return "each replica draws random numbers of its own";
  if (!a.device().empty() && !b.device().empty() &&
      Device::parse(a.device()).kind != Device::parse(b.device()).kind) {
    return str("one is on ", a.device(), " and the other on ", b.device(),
               ", and devices of two kinds do not give the same bits: mirror over devices of one kind");
  }
  if (traits.reads_variable) {
    const auto* read = a.find<VariableRef>(*traits.reads_variable);
    const auto* other = b.find<VariableRef>(*traits.reads_variable);
    if (read == nullptr || other == nullptr) return "they read different variables";
    const VariableDecl* decl = proof_.graph().find_variable(read->name);
    if (decl != nullptr && decl->synchronization == Synchronization::kOnRead)
      return str("each replica has a '", read->name,
                 "' of its own (synchronized on read, or allowed to drift)");
    return str("'", read->name, "' and '", other->name, "' are not equal here");
  }
  if (!a.regions().empty()) return "what is inside of them is not proven equal";
  return "their attributes, or the variables they use, are not equal";
}

bool Drift::differ_inside(const LevelClasses& classes, std::size_t a, std::size_t b) const {
  const auto first = updates_of(classes, a), second = updates_of(classes, b);
  if (first.size() != second.size()) return true;
  return !std::ranges::equal(first, second, {}, &LevelClasses::Update::after, &LevelClasses::Update::after);
}

void Drift::follow_variables(std::size_t a, std::size_t b) {
  const std::vector<LevelClasses::Update> first = updates_of(*level().classes, a),
                                          second = updates_of(*level().classes, b);
  std::size_t p = 0;
  while (p < first.size() && p < second.size() && first[p].after == second[p].after) ++p;
  const std::vector<VariableDecl>& variables = proof_.graph().variables();
  if (p >= first.size() || p >= second.size()) {
    reason_ = str("'", variables[a].name, "' is updated ", first.size(), " times and '", variables[b].name,
                  "' ", second.size(), " times");
    const auto& longer = first.size() > second.size() ? first : second;
    if (p < longer.size()) {
      const Node& node = level().graph->node(longer[p].node);
      steps_.emplace_back(&node, &node);
    }
    return;
  }
  const Node& node = level().graph->node(first[p].node);
  const Node& other = level().graph->node(second[p].node);
  if (node.id() == other.id() && level().classes->has_regions(node.id())) {
    steps_.emplace_back(&node, &node);
    for (std::size_t region = 0; region < node.regions().size(); ++region) {
      if (!differ_inside(level().classes->region(node.id(), region), a, b)) continue;
      enter(node, region);
      follow_variables(a, b);
      return;
    }
    reason_ = "they are not proven equal inside";
    return;
  }
  follow({node.id(), output_for(node, variables[a].name)},
         {other.id(), output_for(other, variables[b].name)});
}

std::string Drift::text() const {
  constexpr std::size_t kFirst = 16, kLast = 4;
  std::string text;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (steps_.size() > kFirst + kLast + 1 && i == kFirst) {
      text += str("\n  ... ", steps_.size() - kFirst - kLast, " more nodes");
      i = steps_.size() - kLast;
    }
    const auto& [a, b] = steps_[i];
    text += str("\n  ", i == 0 ? "" : "from ", "'", a->name(), "'");
    if (a != b) text += str(" and '", b->name(), "'");
    text += str(" (", where(*b), ")");
  }
  return text + ": " + reason_;
}

}  // namespace lockstep::internal
