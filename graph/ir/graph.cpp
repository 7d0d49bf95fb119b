// graph/ir/graph.cpp - the dataflow of one step, as a value.
#include "lockstep/graph/ir/graph.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "lockstep/core/base/name_hash.h"

namespace lockstep {

std::vector<Attribute>& NodeInit::own_attributes() {
  if (const Node* from = std::exchange(attributes_of, nullptr)) attributes = from->attributes();
  return attributes;
}

std::uint64_t Graph::new_identity(std::uint64_t count) {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(count, std::memory_order_relaxed);
}

void Graph::throw_missing(NodeId id) {
  throw Error(ErrorCode::kInternal, str("there is no node with id ", id.value));
}

Graph::Graph() noexcept = default;
Graph::Graph(const Graph& other) : parts_(other.parts_) { adopt(); }
Graph::Graph(Graph&& other) noexcept : parts_(std::exchange(other.parts_, Parts())) { adopt(); }
Graph& Graph::operator=(const Graph& other) {
  if (this != &other) *this = Graph(other);
  return *this;
}
Graph& Graph::operator=(Graph&& other) noexcept {
  if (this == &other) return *this;
  parts_ = std::exchange(other.parts_, Parts());
  adopt();
  return *this;
}
Graph::~Graph() = default;

void Graph::adopt() noexcept {
  for (std::size_t i = 0; i < id_bound(); ++i) slot(NodeId(i)).graph_ = this;
}

Node& Graph::append_slot() {
  Node& fresh = parts_.nodes.emplace_back();
  fresh.id_ = NodeId(id_bound() - 1);
  fresh.graph_ = this;
  return fresh;
}

void Graph::reserve(std::size_t nodes) {
  if (nodes * 2 > parts_.names.capacity()) rebuild_name_index(std::max(nodes, parts_.live * 2));
}

// --- names

NodeId Graph::find(std::string_view name) const {
  const std::uint32_t found =
      parts_.names.find(hash_name(name), [&](std::uint32_t id) { return slot(NodeId(id)).name_ == name; });
  return found == internal::NumberTable::kNone ? NodeId() : NodeId(found);
}

// `capacity` must be at least the number of live names.
void Graph::rebuild_name_index(std::size_t capacity) {
  parts_.names.reset(capacity);
  for (const Node& node : nodes()) parts_.names.insert(hash_name(node.name_), node.id_.index());
}

// Makes room for one more name; the only step of indexing that can fail.
void Graph::reserve_name() {
  if (!parts_.names.has_room()) rebuild_name_index((parts_.live + 1) * 2);
}

std::string Graph::unique_name(std::string_view base) const {
  std::string name(base);
  if (!find(name).valid()) return name;
  std::uint32_t& suffix = parts_.next_suffix[name];
  do {
    name.resize(base.size());
    name += '_';
    name += std::to_string(++suffix);
  } while (find(name).valid());
  return name;
}

void Graph::add_parameter(NodeId id) { parts_.parameters.push_back(id); }
void Graph::add_result(ValueId value) { parts_.results.push_back(value); }
void Graph::set_parameters(std::vector<NodeId> parameters) { parts_.parameters = std::move(parameters); }
void Graph::set_results(std::vector<ValueId> results) { parts_.results = std::move(results); }

void Graph::rename(NodeId id, std::string name) {
  Node& node = at(id);
  if (node.name_ == name) return;
  if (name.empty() || find(name).valid()) {
    throw InvalidArgument(
        str("cannot rename '", node.name_, "' to '", name, "': the name is empty or taken"));
  }
  reserve_name();
  parts_.names.erase(hash_name(node.name_), id.index());
  node.name_ = std::move(name);
  parts_.names.insert(hash_name(node.name_), id.index());
}

// Keeps an unregistered op alive as long as any graph that has, or had, a node of it.
void Graph::keep_op(const OpDef& op) {
  auto& kept = parts_.unknown_ops;
  if (!kept.contains(&op)) kept.emplace(&op, OpRegistry::global().find_or_unknown(op.name));
}

// --- nodes

NodeId Graph::add(NodeInit init) {
  LOCKSTEP_CHECK(init.op != nullptr);
  if (init.name.empty()) throw InvalidArgument(str("a node of op '", init.op->name, "' needs a name"));
  if (find(init.name).valid()) throw InvalidArgument(str("a node named '", init.name, "' exists already"));
  LOCKSTEP_CHECK(id_bound() < internal::NumberTable::kMaxNumber, "too many nodes");
  // First every step that may run out of memory, so that no node is left half added.
  if (!init.op->known) [[unlikely]]
    keep_op(*init.op);
  const StringId device = init.device.empty() ? StringId() : intern(init.device);
  const std::uint32_t site = parts_.sites.add(init.site, parts_.strings);
  std::shared_ptr<const std::vector<Attribute>> attributes;
  if (init.attributes_of != nullptr) {
    attributes = init.attributes_of->attributes_;
  } else if (!init.attributes.empty()) {
    if (init.attributes.size() > 1) std::ranges::sort(init.attributes, {}, &Attribute::name);
    attributes = std::make_shared<const std::vector<Attribute>>(std::move(init.attributes));
  }
  if (!init.regions.empty() && parts_.region_owners.size() == parts_.region_owners.capacity())
    parts_.region_owners.reserve(2 * parts_.region_owners.size() + 4);
  reserve_name();
  Node& node = append_slot();
  node.op_ = init.op;
  node.name_ = std::move(init.name);
  node.inputs_ = std::move(init.inputs);
  node.controls_ = std::move(init.controls);
  parts_.in_order = parts_.in_order && names_earlier(node);
  node.outputs_ = std::move(init.outputs);
  node.attributes_ = std::move(attributes);
  node.regions_ = std::move(init.regions);
  if (!node.regions_.empty()) parts_.region_owners.push_back(node.id_);
  node.device_ = device;
  node.site_ = site;
  if (init.provenance) {
    node.provenance_ = *init.provenance;
  } else {
    node.provenance_ = Provenance{};
    node.provenance_.identity = node.provenance_.origin = new_identity();
  }
  ++parts_.live;
  parts_.names.insert(hash_name(node.name_), node.id_.index());
  return node.id_;
}

void Graph::erase(NodeId id) {
  Node& node = at(id);
  parts_.names.erase(hash_name(node.name_), id.index());
  --parts_.live;
  const NodeId kept = node.id_;
  node = Node();
  node.id_ = kept;
  node.graph_ = this;
}

void Graph::set_input(NodeId id, std::size_t index, ValueId value) {
  Node& node = at(id);
  LOCKSTEP_CHECK(index < node.inputs_.size());
  node.inputs_[index] = value;
  parts_.in_order = parts_.in_order && value.node < id;
}

void Graph::set_inputs(NodeId id, std::span<const ValueId> inputs) {
  Node& node = at(id);
  node.inputs_ = SmallVector<ValueId, 2>(inputs);
  parts_.in_order = parts_.in_order && names_earlier(node);
}

void Graph::add_control(NodeId id, NodeId before) {
  Node& node = at(id);
  if (std::ranges::find(node.controls_, before) == node.controls_.end()) node.controls_.push_back(before);
  parts_.in_order = parts_.in_order && before < id;
}

void Graph::set_controls(NodeId id, std::span<const NodeId> controls) {
  Node& node = at(id);
  node.controls_ = SmallVector<NodeId, 2>(controls);
  parts_.in_order = parts_.in_order && names_earlier(node);
}

void Graph::set_op(NodeId id, const OpDef& op) {
  Node& node = at(id);
  if (!op.known) keep_op(op);
  node.op_ = &op;
}

void Graph::set_outputs(NodeId id, std::span<const TensorSpec> outputs) {
  at(id).outputs_ = SmallVector<TensorSpec, 1>(outputs);
}

void Graph::set_attribute(NodeId id, std::string_view name, AttributeValue value) {
  Node& node = at(id);
  std::vector<Attribute> attributes = node.attributes();
  const auto place = std::ranges::lower_bound(attributes, name, {}, &Attribute::name);
  if (place != attributes.end() && place->name == name) {
    place->value = std::move(value);
  } else {
    attributes.insert(place, Attribute{std::string(name), std::move(value)});
  }
  node.attributes_ = std::make_shared<const std::vector<Attribute>>(std::move(attributes));
}

void Graph::remove_attribute(NodeId id, std::string_view name) {
  Node& node = at(id);
  if (find_attribute(node.attributes(), name) == nullptr) return;
  std::vector<Attribute> kept = node.attributes();
  std::erase_if(kept, [&](const Attribute& attribute) { return attribute.name == name; });
  node.attributes_ = kept.empty() ? nullptr : std::make_shared<const std::vector<Attribute>>(std::move(kept));
}

void Graph::set_device(NodeId id, std::string_view device) {
  Node& node = at(id);
  node.device_ = device.empty() ? StringId() : intern(device);
}

void Graph::set_provenance(NodeId id, const Provenance& provenance) { at(id).provenance_ = provenance; }

std::vector<NodeId> Graph::region_owners() const {
  if (parts_.live == id_bound()) return parts_.region_owners;  // no node was erased
  std::vector<NodeId> owners;
  owners.reserve(parts_.region_owners.size());
  std::ranges::copy_if(parts_.region_owners, std::back_inserter(owners),
                       [&](NodeId id) { return contains(id); });
  return owners;
}

Graph& Graph::region(NodeId id, std::size_t index) {
  Node& node = at(id);
  LOCKSTEP_CHECK(index < node.regions_.size());
  return node.regions_[index];
}

// --- order

bool Graph::names_earlier(const Node& node) {
  const auto is_earlier = [&](NodeId before) { return before < node.id_; };
  return std::ranges::all_of(node.inputs_, is_earlier, &ValueId::node) &&
         std::ranges::all_of(node.controls_, is_earlier);
}

std::vector<NodeId> Graph::topological_order(std::vector<NodeId>* cycle) const {
  if (cycle != nullptr) cycle->clear();
  std::vector<NodeId> order;
  order.reserve(parts_.live);
  if (parts_.in_order || std::ranges::all_of(nodes(), names_earlier)) {
    if (parts_.live == id_bound()) {  // no node was erased: the order is 0, 1, 2, ...
      for (std::size_t i = 0; i < id_bound(); ++i) order.emplace_back(i);
    } else {
      for (const Node& node : nodes()) order.push_back(node.id_);
    }
    return order;
  }
  enum : std::uint8_t { kNew, kOpen, kDone };
  std::vector<std::uint8_t> state(id_bound(), kNew);
  struct Frame {
    NodeId id;
    std::uint32_t next;  // which input or control to look at next
  };
  std::vector<Frame> stack;
  for (std::size_t i = 0; i < id_bound(); ++i) {
    if (state[i] != kNew || !slot(NodeId(i)).alive()) continue;
    stack.push_back({NodeId(i), 0});
    state[i] = kOpen;
    while (!stack.empty()) {
      Frame& top = stack.back();
      const Node& node = slot(top.id);
      const std::size_t inputs = node.inputs_.size();
      bool descended = false;
      while (top.next < inputs + node.controls_.size()) {
        const std::uint32_t at = top.next++;
        const NodeId before = at < inputs ? node.inputs_[at].node : node.controls_[at - inputs];
        if (!contains(before)) continue;  // left to the verifier
        if (state[before.index()] == kNew) {
          state[before.index()] = kOpen;
          stack.push_back({before, 0});
          descended = true;
          break;
        }
        if (state[before.index()] == kOpen && cycle != nullptr && cycle->empty()) {
          // The stack from `before` upward is the cycle: each entry reads the one above it.
          auto start = stack.rbegin();
          while (start->id != before) cycle->push_back((start++)->id);
          cycle->push_back(before);
        }
      }
      if (descended) continue;
      state[top.id.index()] = kDone;
      order.push_back(top.id);
      stack.pop_back();
    }
  }
  return order;
}

std::vector<NodeId> Graph::compact() {
  parts_.in_order = parts_.in_order || std::ranges::all_of(nodes(), names_earlier);
  std::vector<NodeId> order = topological_order();
  if (parts_.in_order && order.size() == id_bound()) return order;  // every node keeps its id

  std::vector<NodeId> moved(id_bound());
  for (std::size_t i = 0; i < order.size(); ++i) moved[order[i].index()] = NodeId(i);
  const auto follow = [&](NodeId id) { return id.index() < moved.size() ? moved[id.index()] : NodeId(); };
  const auto move_node = [&](Node& from, Node& target, NodeId id) {
    if (&from != &target) target = std::move(from);
    target.id_ = id;
    for (ValueId& input : target.inputs_) input.node = follow(input.node);
    for (NodeId& control : target.controls_) control = follow(control);
  };
  if (parts_.in_order) {  // move the nodes down in place, which touches the least memory
    for (const NodeId from : order) move_node(slot(from), slot(moved[from.index()]), moved[from.index()]);
    parts_.nodes.truncate(order.size());
  } else {
    internal::ChunkedVector<Node> old = std::exchange(parts_.nodes, {});
    parts_.in_order = true;  // unless there are cycles, see below
    for (const NodeId from : order) {
      Node& target = append_slot();
      move_node(old[from.index()], target, target.id_);
      parts_.in_order = parts_.in_order && names_earlier(target);
    }
  }
  for (NodeId& owner : parts_.region_owners) owner = follow(owner);
  std::erase_if(parts_.region_owners, [](NodeId id) { return !id.valid(); });
  std::ranges::sort(parts_.region_owners);
  for (NodeId& parameter : parts_.parameters) parameter = follow(parameter);
  std::erase_if(parts_.parameters, [](NodeId id) { return !id.valid(); });
  for (ValueId& result : parts_.results) result.node = follow(result.node);
  if (parts_.live * 8 < parts_.names.capacity()) {
    rebuild_name_index(parts_.live);  // mostly erased names, or far too large
  } else {
    parts_.names.renumber([&](std::uint32_t id) { return moved[id].index(); });
  }
  return moved;
}

}  // namespace lockstep
