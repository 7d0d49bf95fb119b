#include "lockstep/graph/ir/graph.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <iterator>
#include <unordered_map>

#include "lockstep/core/large_pages.h"
#include "lockstep/core/name_hash.h"

namespace lockstep {

namespace {

constexpr std::uint32_t kTombstone = 0xFFFFFFFFU;
std::uint32_t low_half(std::uint64_t entry) { return static_cast<std::uint32_t>(entry); }

// What an index holds for a number.
std::uint64_t entry_for(std::uint64_t hash, std::size_t number) {
  return (hash >> 32U << 32U) | (number + 1U);
}

// Lists up to this length are searched from one end to the other: most regions are small, and many, and then
// need no index of their strings and sites to be copied with them.
constexpr std::size_t kShortList = 8;

// A chunk for so many nodes, behind the others.
std::vector<Node>& add_chunk(std::vector<std::vector<Node>>& chunks, std::size_t nodes) {
  std::vector<Node> chunk;
  chunk.reserve(nodes);
  prefer_large_pages(chunk.data(), nodes * sizeof(Node));
  return chunks.emplace_back(std::move(chunk));
}

}  // namespace

std::string_view to_string(Synchronization value) {
  switch (value) {
    case Synchronization::kAuto: return "auto";
    case Synchronization::kNone: return "none";
    case Synchronization::kOnWrite: return "on_write";
    case Synchronization::kOnRead: return "on_read";
  }
  return "?";
}

std::string_view to_string(Aggregation value) {
  switch (value) {
    case Aggregation::kNone: return "none";
    case Aggregation::kSum: return "sum";
    case Aggregation::kMean: return "mean";
    case Aggregation::kOnlyFirstReplica: return "only_first_replica";
    case Aggregation::kSlices: return "slices";
  }
  return "?";
}

std::vector<Attribute>& NodeInit::own_attributes() {
  if (const Node* from = std::exchange(attributes_of, nullptr)) attributes = from->attributes();
  return attributes;
}

struct Graph::Tables {
  struct SiteHash {
    std::size_t operator()(const Site& s) const {
      static_assert(std::has_unique_object_representations_v<Site>);
      return hash_name(
          {reinterpret_cast<const char*>(&s), sizeof s});  // NOLINT(*-reinterpret-cast): its bytes
    }
  };
  std::unordered_map<std::string_view, std::uint32_t, NameHash> strings;
  std::unordered_map<Site, std::uint32_t, SiteHash> sites;
  NameMap<std::uint32_t> next_suffix;  // for unique_name
  // Ops that nobody registered, of nodes that are or were here.
  std::unordered_map<const OpDef*, std::shared_ptr<const OpDef>> unknown_ops;
};

Graph::Tables& Graph::tables() const {
  if (tables_ == nullptr) tables_ = std::make_unique<Tables>();
  return *tables_;
}

Graph::Graph() noexcept = default;
Graph::~Graph() = default;

Graph::Graph(const Graph& other)
    : slots_(other.slots_),
      live_(other.live_),
      in_order_(other.in_order_),
      region_owners_(other.region_owners_),
      name_index_(other.name_index_),
      name_index_used_(other.name_index_used_),
      parameters_(other.parameters_),
      results_(other.results_),
      variables_(other.variables_),
      variable_index_(other.variable_index_),
      strings_(other.strings_),
      sites_(other.sites_),
      last_site_(other.last_site_),
      tables_(other.tables_ == nullptr ? nullptr : std::make_unique<Tables>(*other.tables_)) {
  chunks_.reserve(other.chunks_.size());
  for (const std::vector<Node>& chunk : other.chunks_) {
    std::vector<Node>& copy = add_chunk(chunks_, kFirstChunk << chunks_.size());
    copy.insert(copy.end(), chunk.begin(), chunk.end());
  }
  adopt();
}

Graph::Graph(Graph&& other) noexcept
    : chunks_(std::move(other.chunks_)),
      slots_(std::exchange(other.slots_, 0)),
      live_(std::exchange(other.live_, 0)),
      in_order_(std::exchange(other.in_order_, true)),
      region_owners_(std::move(other.region_owners_)),
      name_index_(std::move(other.name_index_)),
      name_index_used_(std::exchange(other.name_index_used_, 0)),
      parameters_(std::move(other.parameters_)),
      results_(std::move(other.results_)),
      variables_(std::move(other.variables_)),
      variable_index_(std::move(other.variable_index_)),
      strings_(std::move(other.strings_)),
      sites_(std::move(other.sites_)),
      last_site_(std::exchange(other.last_site_, 0)),
      tables_(std::move(other.tables_)) {
  adopt();  // a moved-from graph is an empty one, as moved-from vectors are
}

Graph& Graph::operator=(const Graph& other) {
  if (this != &other) *this = Graph(other);
  return *this;
}

Graph& Graph::operator=(Graph&& other) noexcept {
  if (this == &other) return *this;
  chunks_ = std::move(other.chunks_);
  slots_ = std::exchange(other.slots_, 0);
  live_ = std::exchange(other.live_, 0);
  in_order_ = std::exchange(other.in_order_, true);
  region_owners_ = std::move(other.region_owners_);
  name_index_ = std::move(other.name_index_);
  name_index_used_ = std::exchange(other.name_index_used_, 0);
  parameters_ = std::move(other.parameters_);
  results_ = std::move(other.results_);
  variables_ = std::move(other.variables_);
  variable_index_ = std::move(other.variable_index_);
  strings_ = std::move(other.strings_);
  sites_ = std::move(other.sites_);
  last_site_ = std::exchange(other.last_site_, 0);
  tables_ = std::move(other.tables_);
  other.chunks_.clear();
  other.region_owners_.clear();
  other.name_index_.clear();
  other.parameters_.clear();
  other.results_.clear();
  other.variables_.clear();
  other.variable_index_.clear();
  other.strings_.clear();
  other.sites_.clear();
  adopt();
  return *this;
}

void Graph::adopt() {
  for (std::size_t i = 0; i < slots_; ++i) slot(NodeId(i)).graph_ = this;
}

std::uint64_t Graph::new_identity(std::uint64_t count) {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(count, std::memory_order_relaxed);
}

void Graph::throw_missing(NodeId id) {
  throw Error(ErrorCode::kInternal, str("there is no node with id ", id.value));
}

Node& Graph::append_slot() {
  const SlotPlace place = place_of_slot(slots_);
  if (place.chunk == chunks_.size()) add_chunk(chunks_, kFirstChunk << place.chunk);
  Node& fresh = chunks_[place.chunk].emplace_back();
  fresh.id_ = NodeId(slots_);
  fresh.graph_ = this;
  ++slots_;
  return fresh;
}

void Graph::reserve(std::size_t nodes) {
  if (nodes * 2 > name_index_.size()) rebuild_name_index(std::max(nodes, live_ * 2));
}

const VariableDecl* Graph::find_variable(std::string_view name) const {
  if (variable_index_.empty()) return nullptr;
  const std::size_t mask = variable_index_.size() - 1;
  const std::size_t hash = hash_name(name);
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    const std::uint64_t entry = variable_index_[at];
    if (entry == 0) return nullptr;
    if (((entry ^ hash) >> 32U) != 0) continue;
    const VariableDecl& decl = variables_[low_half(entry) - 1];
    if (decl.name == name) return &decl;
  }
}

// --- names

NodeId Graph::find(std::string_view name) const {
  if (name_index_.empty()) return {};
  const std::size_t mask = name_index_.size() - 1;
  const std::size_t hash = hash_name(name);
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    const std::uint64_t entry = name_index_[at];
    if (entry == 0) return {};
    if (((entry ^ hash) >> 32U) != 0 || low_half(entry) == kTombstone) continue;
    const NodeId id(low_half(entry) - 1);
    if (slot(id).name_ == name) return id;
  }
}

// For at least as many names as there are.
void Graph::rebuild_name_index(std::size_t capacity) {
  std::size_t size = 16;
  while (size < capacity * 3 / 2) size *= 2;
  std::vector<std::uint64_t> index;
  index.reserve(size);
  prefer_large_pages(index.data(), size * sizeof(index[0]));  // before they are touched
  index.assign(size, 0);
  name_index_ = std::move(index);
  name_index_used_ = 0;
  for (const Node& node : nodes()) index_name(node.id_);
}

// For one name more; the only step of indexing that can fail.
void Graph::reserve_name() {
  if ((name_index_used_ + 1) * 4 > name_index_.size() * 3)
    rebuild_name_index(std::max<std::size_t>((live_ + 1) * 2, 16));
}

void Graph::index_name(NodeId id) noexcept {
  const std::size_t mask = name_index_.size() - 1;
  const std::size_t hash = hash_name(slot(id).name_);
  std::size_t at = hash & mask;
  while (name_index_[at] != 0 && low_half(name_index_[at]) != kTombstone) at = (at + 1) & mask;
  if (name_index_[at] == 0) ++name_index_used_;
  name_index_[at] = entry_for(hash, id.index());
}

// Nodes were moved, names were not: every entry keeps its place.
void Graph::renumber_name_index(std::span<const NodeId> moved) {
  if (live_ * 8 < name_index_.size()) return rebuild_name_index(live_);  // mostly graves, or far too large
  for (std::uint64_t& entry : name_index_) {
    if (entry == 0 || low_half(entry) == kTombstone) continue;
    entry = entry_for(entry, moved[low_half(entry) - 1U].index());
  }
}

void Graph::unindex_name(NodeId id) {
  const std::size_t mask = name_index_.size() - 1;
  std::size_t at = hash_name(slot(id).name_) & mask;
  while (low_half(name_index_[at]) != id.value + 1) at = (at + 1) & mask;
  name_index_[at] = kTombstone;
}

std::string Graph::unique_name(std::string_view base) const {
  std::string name(base);
  if (!find(name).valid()) return name;
  std::uint32_t& suffix = tables().next_suffix[name];
  do {
    name.resize(base.size());
    name += '_';
    name += std::to_string(++suffix);
  } while (find(name).valid());
  return name;
}

void Graph::add_parameter(NodeId id) { parameters_.push_back(id); }
void Graph::add_result(ValueId value) { results_.push_back(value); }
void Graph::set_parameters(std::vector<NodeId> parameters) { parameters_ = std::move(parameters); }
void Graph::set_results(std::vector<ValueId> results) { results_ = std::move(results); }

void Graph::rename(NodeId id, std::string name) {
  Node& node = at(id);
  if (node.name_ == name) return;
  if (name.empty() || find(name).valid()) {
    throw InvalidArgument(
        str("cannot rename '", node.name_, "' to '", name, "': the name is empty or taken"));
  }
  reserve_name();
  unindex_name(id);
  node.name_ = std::move(name);
  index_name(id);
}

// --- strings and sites

StringId Graph::intern(std::string_view text) {
  if (strings_.size() <= kShortList) {
    for (std::size_t i = 0; i < strings_.size(); ++i) {
      if (*strings_[i] == text) return StringId(i);
    }
  } else {
    const auto& known = tables().strings;
    if (const auto found = known.find(text); found != known.end()) return StringId(found->second);
  }
  strings_.push_back(std::make_shared<const std::string>(text));
  if (strings_.size() > kShortList) {
    auto& known = tables().strings;
    for (std::size_t i = known.size(); i < strings_.size(); ++i)
      known.emplace(*strings_[i], static_cast<std::uint32_t>(i));
  }
  return StringId(strings_.size() - 1);
}

std::uint32_t Graph::intern_site(const SourceSite& site) {
  if (!site.known()) return 0;
  // Most nodes come from where the last one came from, or from nearby.
  const auto same = [&](std::uint32_t id, const char* text) { return *strings_[id] == text; };
  const bool any = last_site_ != 0;
  const Site last = any ? sites_[last_site_ - 1] : Site{};
  const bool same_file = any && same(last.file, site.file);
  const bool same_function = any && same(last.function, site.function);
  if (same_file && same_function && last.line == site.line) return last_site_;
  const Site key{same_file ? last.file : intern(site.file).value,
                 same_function ? last.function : intern(site.function).value, site.line};
  if (sites_.size() <= kShortList) {
    const auto found = std::ranges::find(sites_, key);
    if (found != sites_.end()) return last_site_ = static_cast<std::uint32_t>(found - sites_.begin()) + 1;
  } else {
    const auto& known = tables().sites;
    if (const auto found = known.find(key); found != known.end()) return last_site_ = found->second;
  }
  sites_.push_back(key);
  if (sites_.size() > kShortList) {
    auto& known = tables().sites;
    for (std::size_t i = known.size(); i < sites_.size(); ++i)
      known.emplace(sites_[i], static_cast<std::uint32_t>(i + 1));
  }
  return last_site_ = static_cast<std::uint32_t>(sites_.size());
}

// An op that nobody registered lives as long as a graph that has had a node of it.
void Graph::keep_op(const OpDef& op) {
  auto& kept = tables().unknown_ops;
  if (!kept.contains(&op)) kept.emplace(&op, OpRegistry::global().find_or_unknown(op.name));
}

// --- nodes

NodeId Graph::add(NodeInit init) {
  LOCKSTEP_CHECK(init.op != nullptr);
  if (init.name.empty()) throw InvalidArgument(str("a node of op '", init.op->name, "' needs a name"));
  if (find(init.name).valid()) throw InvalidArgument(str("a node named '", init.name, "' exists already"));
  LOCKSTEP_CHECK(slots_ < kTombstone - 1, "too many nodes");
  // First whatever may fail for want of memory, so that no node is half there.
  if (!init.op->known) [[unlikely]]
    keep_op(*init.op);
  const StringId device = init.device.empty() ? StringId() : intern(init.device);
  const std::uint32_t site = intern_site(init.site);
  std::shared_ptr<const std::vector<Attribute>> attributes;
  if (init.attributes_of != nullptr) {
    attributes = init.attributes_of->attributes_;
  } else if (!init.attributes.empty()) {
    if (init.attributes.size() > 1) std::ranges::sort(init.attributes, {}, &Attribute::name);
    attributes = std::make_shared<const std::vector<Attribute>>(std::move(init.attributes));
  }
  if (!init.regions.empty() && region_owners_.size() == region_owners_.capacity())
    region_owners_.reserve(2 * region_owners_.size() + 4);
  reserve_name();
  Node& node = append_slot();
  node.op_ = init.op;
  node.name_ = std::move(init.name);
  node.inputs_ = std::move(init.inputs);
  node.controls_ = std::move(init.controls);
  in_order_ = in_order_ && names_earlier(node);
  node.outputs_ = std::move(init.outputs);
  node.attributes_ = std::move(attributes);
  node.regions_ = std::move(init.regions);
  if (!node.regions_.empty()) region_owners_.push_back(node.id_);
  node.device_ = device;
  node.site_ = site;
  if (init.provenance) {
    node.provenance_ = *init.provenance;
  } else {
    node.provenance_ = Provenance{};
    node.provenance_.identity = node.provenance_.origin = new_identity();
  }
  ++live_;
  index_name(node.id_);
  return node.id_;
}

void Graph::erase(NodeId id) {
  Node& node = at(id);
  unindex_name(id);
  --live_;
  const NodeId kept = node.id_;
  node = Node();
  node.id_ = kept;
  node.graph_ = this;
}

void Graph::set_input(NodeId id, std::size_t index, ValueId value) {
  Node& node = at(id);
  LOCKSTEP_CHECK(index < node.inputs_.size());
  node.inputs_[index] = value;
  in_order_ = in_order_ && value.node < id;
}

void Graph::set_inputs(NodeId id, std::span<const ValueId> inputs) {
  Node& node = at(id);
  node.inputs_ = SmallVector<ValueId, 2>(inputs);
  in_order_ = in_order_ && names_earlier(node);
}

void Graph::add_control(NodeId id, NodeId before) {
  Node& node = at(id);
  if (std::ranges::find(node.controls_, before) == node.controls_.end()) node.controls_.push_back(before);
  in_order_ = in_order_ && before < id;
}

void Graph::set_controls(NodeId id, std::span<const NodeId> controls) {
  Node& node = at(id);
  node.controls_ = SmallVector<NodeId, 2>(controls);
  in_order_ = in_order_ && names_earlier(node);
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
  if (live_ == slots_) return region_owners_;  // none was erased
  std::vector<NodeId> owners;
  owners.reserve(region_owners_.size());
  std::ranges::copy_if(region_owners_, std::back_inserter(owners), [&](NodeId id) { return contains(id); });
  return owners;
}

Graph& Graph::region(NodeId id, std::size_t index) {
  Node& node = at(id);
  LOCKSTEP_CHECK(index < node.regions_.size());
  return node.regions_[index];
}

std::string copy_name(std::string_view variable, std::int64_t replica) {
  std::string name(variable);
  if (replica > 0) name.append("/replica_").append(std::to_string(replica));
  return name;
}

namespace {

// What a declaration says about its copies, by itself.
void check_copies(const VariableDecl& decl) {
  const bool sliced = decl.aggregation == Aggregation::kSlices;
  if (!sliced && (decl.slice_axis != 0 || decl.slice_extent != 0))
    throw InvalidArgument(
        str("variable '", decl.name, "' has an axis or extent of slices, but not their aggregation"));
  if (sliced && decl.synchronization != Synchronization::kOnRead) {
    throw InvalidArgument(str("variable '", decl.name,
                              "' has slices for copies, which differ: its synchronization must be on_read"));
  }
  const auto rank = static_cast<std::int32_t>(decl.spec.shape.rank());
  if (sliced && (decl.slice_axis < 0 || decl.slice_axis >= rank || decl.slice_extent < 0)) {
    throw InvalidArgument(str("variable '", decl.name, "', ", decl.spec, ", has no slices of ",
                              decl.slice_extent, " along axis ", decl.slice_axis));
  }
  if (!decl.copy_of.empty() && decl.initial.defined() && decl.synchronization != Synchronization::kOnRead) {
    throw InvalidArgument(str("variable '", decl.name, "' is a copy of '", decl.copy_of,
                              "' that is kept equal to it: it cannot have an initial value of its own"));
  }
}

}  // namespace

void Graph::declare_variable(VariableDecl decl) {
  if (decl.name.empty()) throw InvalidArgument("a variable needs a name");
  check_copies(decl);
  if (!decl.spec.shape.is_known()) {
    throw InvalidArgument(str("variable '", decl.name, "' needs a known shape, got ", decl.spec));
  }
  if (decl.initial.defined() && decl.initial.spec() != decl.spec) {
    throw InvalidArgument(str("variable '", decl.name, "' is declared ", decl.spec,
                              " but its initial value is ", decl.initial.spec()));
  }
  if (!decl.copy_of.empty()) {
    const VariableDecl* original = find_variable(decl.copy_of);
    if (original == nullptr || !original->copy_of.empty() || original->spec != decl.spec) {
      throw InvalidArgument(str("variable '", decl.name, "' is a copy of '", decl.copy_of,
                                "', which must be declared before it, as ", decl.spec,
                                " and as no copy itself"));
    }
  } else if (decl.shares) {
    throw InvalidArgument(str("variable '", decl.name, "' shares memory but is no copy of another"));
  }
  if (find_variable(decl.name) != nullptr)
    throw InvalidArgument(str("variable '", decl.name, "' is declared already"));
  if ((variables_.size() + 1) * 2 > variable_index_.size()) {
    variable_index_.assign(std::bit_ceil((variables_.size() + 1) * 4), 0);
    for (std::size_t i = 0; i < variables_.size(); ++i) index_variable(i);
  }
  variables_.push_back(std::move(decl));
  index_variable(variables_.size() - 1);
}

void Graph::index_variable(std::size_t place) {
  const std::size_t mask = variable_index_.size() - 1;
  const std::size_t hash = hash_name(variables_[place].name);
  std::size_t at = hash & mask;
  while (variable_index_[at] != 0) at = (at + 1) & mask;
  variable_index_[at] = entry_for(hash, place);
}

void Graph::redeclare_variable(VariableDecl decl) {
  const VariableDecl* const found = find_variable(decl.name);
  if (found == nullptr)
    throw InvalidArgument(str("variable '", decl.name, "' is not declared, so nothing can be changed of it"));
  check_copies(decl);
  VariableDecl& held = variables_[static_cast<std::size_t>(found - variables_.data())];
  const bool reshaped = held.spec != decl.spec;
  if (held.copy_of != decl.copy_of || (decl.initial.defined() && decl.initial.spec() != decl.spec) ||
      (decl.shares && decl.copy_of.empty()) || !decl.spec.shape.is_known() ||
      (reshaped && !decl.copy_of.empty())) {
    throw InvalidArgument(str("variable '", decl.name, "' is declared ", held.spec,
                              held.copy_of.empty() ? "" : str(" as a copy of '", held.copy_of, "'"),
                              ", which cannot become ", decl.spec,
                              decl.copy_of.empty() ? "" : str(", a copy of '", decl.copy_of, "'")));
  }
  for (VariableDecl& copy : variables_) {
    if (!reshaped || copy.copy_of != decl.name) continue;
    copy.spec = decl.spec;
    copy.initial = Tensor();
  }
  held = std::move(decl);
}

void Graph::remove_variable(std::string_view name) {
  if (find_variable(name) == nullptr)
    throw InvalidArgument(str("variable '", name, "' is not declared, so that it cannot be removed"));
  std::erase_if(variables_, [name = std::string(name)](const VariableDecl& decl) {
    return decl.name == name || decl.copy_of == name;
  });
  std::ranges::fill(variable_index_, 0);
  for (std::size_t i = 0; i < variables_.size(); ++i) index_variable(i);
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
  order.reserve(live_);
  if (in_order_ || std::ranges::all_of(nodes(), names_earlier)) {
    if (live_ == slots_) {  // no need to look at them again
      for (std::size_t i = 0; i < slots_; ++i) order.emplace_back(i);
    } else {
      for (const Node& node : nodes()) order.push_back(node.id_);
    }
    return order;
  }
  enum : std::uint8_t { kNew, kOpen, kDone };
  std::vector<std::uint8_t> state(slots_, kNew);
  struct Frame {
    NodeId id;
    std::uint32_t next;  // which input or control to look at next
  };
  std::vector<Frame> stack;
  for (std::size_t i = 0; i < slots_; ++i) {
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
        if (!contains(before)) continue;  // the verifier's business
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
  in_order_ = in_order_ || std::ranges::all_of(nodes(), names_earlier);
  std::vector<NodeId> order = topological_order();
  if (in_order_ && order.size() == slots_) return order;  // each keeps its id

  std::vector<NodeId> moved(slots_);
  for (std::size_t i = 0; i < order.size(); ++i) moved[order[i].index()] = NodeId(i);
  const auto follow = [&](NodeId id) { return id.index() < moved.size() ? moved[id.index()] : NodeId(); };
  const auto move_node = [&](Node& from, Node& target, NodeId id) {
    if (&from != &target) target = std::move(from);
    target.id_ = id;
    for (ValueId& input : target.inputs_) input.node = follow(input.node);
    for (NodeId& control : target.controls_) control = follow(control);
  };
  if (in_order_) {  // they close up where they are, which touches the least memory
    for (const NodeId from : order) move_node(slot(from), slot(moved[from.index()]), moved[from.index()]);
    slots_ = order.size();
    const SlotPlace end = place_of_slot(slots_);
    chunks_.resize(end.chunk + 1);
    chunks_.back().resize(end.offset);
  } else {
    std::vector<std::vector<Node>> old = std::move(chunks_);
    chunks_.clear();
    slots_ = 0;
    in_order_ = true;  // but for cycles
    for (const NodeId from : order) {
      const SlotPlace place = place_of_slot(from.index());
      Node& target = append_slot();
      move_node(old[place.chunk][place.offset], target, target.id_);
      in_order_ = in_order_ && names_earlier(target);
    }
  }
  for (NodeId& owner : region_owners_) owner = follow(owner);
  std::erase_if(region_owners_, [](NodeId id) { return !id.valid(); });
  std::ranges::sort(region_owners_);
  for (NodeId& parameter : parameters_) parameter = follow(parameter);
  std::erase_if(parameters_, [](NodeId id) { return !id.valid(); });
  for (ValueId& result : results_) result.node = follow(result.node);
  renumber_name_index(moved);
  return moved;
}

}  // namespace lockstep
