// strategies/proof/congruence.cpp - which values of a flat graph are proven equal, bit by bit.
#include "lockstep/strategies/proof/congruence.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/base/name_set.h"
#include "lockstep/core/device.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/transform/replica_kind.h"
#include "lockstep/strategies/proof/internal/attribute_numbers.h"
#include "lockstep/strategies/proof/internal/key_table.h"

namespace lockstep {

namespace {

using internal::AttributeNumbers;
using internal::KeyTable;
using Class = std::uint32_t;
constexpr Class kNoClass = 0xFFFFFFFFU;
constexpr int kMaxRounds = 64;  // per loop; after that all carried values are told apart

// What a class was made from; the first word of its key.
enum Tag : std::uint32_t {
  kNode,
  kOutput,
  kVariable,
  kChoice,
  kCarried,
  kLoop,
  kLoopOutput,
  kKept,
  kTrips,
  kShapeOf,
  kOfAllWorkers
};

}  // namespace

class CongruenceMaker {
 public:
  CongruenceMaker(Congruence& made, const NameSet& drifting, Congruence::Workers workers)
      : made_(made), attributes_([this](const std::string& variable) {
          return static_cast<std::uint32_t>(made_.originals_[place(variable)]);  // copies count as one
        }) {
    const std::vector<VariableDecl>& variables = made.graph().variables();
    table_.reserve(made.graph().size() + variables.size());
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const VariableDecl& decl = variables[i];
      made.originals_.push_back(decl.copy_of.empty() ? i : declared(decl.copy_of));
      const bool equal = decl.shares || (decl.synchronization != Synchronization::kOnRead &&
                                         !drifting.contains(decl.copy_of.empty() ? decl.name : decl.copy_of));
      is_equal_.push_back(equal);
    }
    number_all(made.initial_, made.top_, made.final_);
    if (workers == Congruence::Workers::kSeveral) {
      worker_ = 1;
      number_all(made.stand_in_initial_, made.stand_in_, made.stand_in_final_);
    }
    made.num_classes_ = table_.size();
  }

 private:
  // For one worker.
  void number_all(std::vector<Class>& initial, LevelClasses& top, std::vector<Class>& final) {
    const std::vector<VariableDecl>& variables = made_.graph().variables();
    states_.clear();
    log_.clear();
    for (std::size_t i = 0; i < variables.size(); ++i) {
      states_.push_back(is_equal_[i] ? class_of(kVariable, made_.originals_[i])
                                     : class_of(kVariable, i + worker_ * variables.size()));
    }
    initial = states_;
    std::vector<Class> arguments;
    for (std::size_t i = 0; i < made_.graph().parameters().size(); ++i) arguments.push_back(table_.fresh());
    number(made_.graph(), arguments, top);
    final = states_;
    for (std::size_t i = 0; i < variables.size(); ++i) {
      if (variables[i].shares) final[i] = states_[made_.originals_[i]];
    }
  }

  void number(const Graph& graph, std::span<const Class> arguments, LevelClasses& level) {
    level = {};
    level.first_.resize(graph.id_bound());
    std::uint32_t count = 0;
    for (const Node& node : graph.nodes()) {
      level.first_[node.id().index()] = count;
      count += static_cast<std::uint32_t>(node.outputs().size());
    }
    level.classes_.assign(count, kNoClass);
    for (std::size_t i = 0; i < graph.parameters().size(); ++i) {
      const ValueId value{graph.parameters()[i], 0};
      level.classes_[level.index(value)] = i < arguments.size() ? arguments[i] : table_.fresh();
    }
    for (const NodeId id : graph.topological_order()) {
      const Node& node = graph.node(id);
      const bool parameter = !node.outputs().empty() && level.of({id, 0}) != kNoClass;
      if (parameter) continue;
      switch (node.op().region_kind) {
        case RegionKind::kCond: choice(node, level); break;
        case RegionKind::kWhile: loop(node, level); break;
        default: node.op().traits.merges_updates ? merged(node, level) : plain(node, level); break;
      }
    }
  }

  void set(const Node& node, std::size_t output, Class number, LevelClasses& level) {
    level.classes_[level.first_[node.id().index()] + output] = number;
  }

  template <class... Words>
  Class class_of(Words... words) {
    const std::uint32_t key[] = {static_cast<std::uint32_t>(words)...};
    return table_.number(key);
  }

  // --- variables

  std::size_t declared(const std::string& variable) const {
    const VariableDecl* const found = made_.graph().find_variable(variable);
    if (found == nullptr) throw Error(ErrorCode::kInternal, str("variable '", variable, "' is not declared"));
    return static_cast<std::size_t>(found - made_.graph().variables().data());
  }
  std::size_t place(const std::string& variable) const {
    const std::size_t found = declared(variable);
    return made_.graph().variables()[found].shares ? made_.originals_[found] : found;
  }
  void write(std::size_t variable, Class after, NodeId node, LevelClasses& level) {
    level.updates_.push_back({static_cast<std::uint32_t>(variable), node, states_[variable], after});
    log_.emplace_back(variable, states_[variable]);
    states_[variable] = after;
  }
  // Variables written since, and the classes they hold; restores the state before.
  std::map<std::size_t, Class> rewind(std::size_t since) {
    std::map<std::size_t, Class> changed;
    for (std::size_t i = log_.size(); i-- > since;) {
      changed.emplace(log_[i].first, states_[log_[i].first]);  // only the last state
    }
    for (std::size_t i = log_.size(); i-- > since;) states_[log_[i].first] = log_[i].second;
    log_.resize(since);
    return changed;
  }

  // --- nodes

  std::uint32_t kind_of(const std::string& device) {
    if (device.empty()) return 0;
    auto found = kinds_.find(device);
    if (found == kinds_.end())
      found = kinds_.emplace(device, static_cast<std::uint32_t>(Device::parse(device).kind)).first;
    return found->second;
  }

  // Op, attributes, kind of device.
  void start_key(const Node& node, Tag tag) {
    const auto op = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&node.op()));
    key_.assign({tag, static_cast<std::uint32_t>(op), static_cast<std::uint32_t>(op >> 32U),
                 attributes_.of(node.attributes()), kind_of(node.device())});
  }

  void add_dims(const Shape& shape) {
    for (const std::int64_t dim : shape.dims()) {
      key_.push_back(static_cast<std::uint32_t>(dim));
      key_.push_back(static_cast<std::uint32_t>(static_cast<std::uint64_t>(dim) >> 32U));
    }
  }

  static bool equals_only_itself(const Node& node, Effect effects) {
    // Variables and random numbers of replicas are told apart by their own rules.
    if (differs_by_itself(node.op().traits) || has(effects, Effect::kHost | Effect::kOpaque)) return true;
    if (node.op().region_kind == RegionKind::kReplicated) return true;
    if (!node.regions().empty() && effects != Effect::kPure) return true;
    return std::ranges::any_of(node.attributes(),
                               [](const Attribute& a) { return std::holds_alternative<Lambda>(a.value); });
  }

  void plain(const Node& node, LevelClasses& level) {
    const OpTraits& traits = node.op().traits;
    const Effect effects = effects_of(node);
    if (equals_only_itself(node, effects)) {
      for (std::size_t i = 0; i < node.outputs().size(); ++i) set(node, i, table_.fresh(), level);
      if (!has(effects, Effect::kWritesVariable)) return;
      for (const VariableUse& use : variable_uses(node)) {
        if (use.writes) write(place(use.name), table_.fresh(), node.id(), level);
      }
      return;
    }
    if (traits.reads_variable && node.outputs().size() == 1) {
      if (const auto* variable = node.find<VariableRef>(*traits.reads_variable)) {
        set(node, 0, states_[place(variable->name)], level);
        return;
      }
    }
    if (is_input(node)) {
      set(node, 0, level.of(node.inputs()[0]), level);
      return;
    }
    if (is_join(node)) {
      join(node, level);
      return;
    }
    if (traits.is(ReplicaRole::kCollective) && traits.same_on_all && joined_range(node).is_part()) {
      // Whatever goes in.
      const auto at = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&node));
      outputs_of(node,
                 class_of(kOfAllWorkers, static_cast<std::uint32_t>(at),
                          static_cast<std::uint32_t>(at >> 32U), depth_),
                 level);
      return;
    }
    start_key(node, kNode);
    if (traits.gives_shape && node.graph().spec(node.inputs()[0]).shape.is_known()) {
      key_[0] = kShapeOf;  // its contents do not matter
      add_dims(node.graph().spec(node.inputs()[0]).shape);
    } else {
      for (const ValueId input : node.inputs()) key_.push_back(level.of(input));
    }
    if (node.inputs().empty()) {  // without inputs, the declared outputs may be all that tells nodes apart
      for (const TensorSpec& spec : node.outputs()) {
        key_.push_back(static_cast<std::uint32_t>(spec.dtype));
        for (const std::int64_t dim : spec.shape.dims()) key_.push_back(static_cast<std::uint32_t>(dim));
      }
    }
    if (has(effects, Effect::kRandom)) {
      const std::int32_t replica = node.provenance().replica;
      key_.push_back(static_cast<std::uint32_t>(std::max(replica, 0)));
      if (replica >= 0) key_.push_back(worker_);
      key_.push_back(depth_);  // a draw may depend on the trip
    }
    for (const Attribute& attribute : node.attributes()) {
      const auto* variable = std::get_if<VariableRef>(&attribute.value);
      if (variable == nullptr) continue;
      const bool overwritten = traits.updates_variable && !traits.updates_variable->uses_old_value &&
                               attribute.name == traits.updates_variable->attribute;
      if (!overwritten) key_.push_back(states_[place(variable->name)]);
    }
    for (const Graph& region : node.regions()) {
      // The region is pure, so only its results matter. It is numbered over the node's inputs, or over
      // parameters of its own.
      const std::vector<std::uint32_t> key = key_;
      std::vector<Class> arguments;
      for (std::size_t i = 0; i < region.parameters().size(); ++i) {
        arguments.push_back(region.parameters().size() == node.inputs().size()
                                ? level.of(node.inputs()[i])
                                : class_of(kCarried, kNoClass, depth_, static_cast<std::uint32_t>(i)));
      }
      LevelClasses inner;
      number(region, arguments, inner);
      key_ = key;
      for (const ValueId result : region.results()) key_.push_back(inner.of(result));
    }
    outputs_of(node, table_.number(key_), level);
  }

  void outputs_of(const Node& node, Class whole, LevelClasses& level) {
    const OpTraits& traits = node.op().traits;
    const std::size_t count = node.outputs().size();
    std::size_t distinct = count;
    if (traits.is(ReplicaRole::kCollective) && traits.same_on_all) {
      distinct = count / joined_replicas(node);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto which = static_cast<std::uint32_t>(distinct == 0 ? i : i % distinct);
      set(node, i, distinct == 1 ? whole : class_of(kOutput, whole, which), level);
    }
    std::uint32_t at = 0;
    for (const std::string& name : updated_variables(node)) {
      const Class after = at < count ? level.of({node.id(), at}) : class_of(kOutput, whole, at);
      write(place(name), after, node.id(), level);
      ++at;
    }
  }

  // --- tensors joined from their chunks

  static bool is_join(const Node& node) {
    static const OpDef& join_chunks = OpRegistry::global().get("join_chunks");
    return &node.op() == &join_chunks;
  }

  // A value with the shape of `like`: of the values that this chunk was made from, which all have one shape,
  // the first.
  static ValueId first_alike(const Graph& graph, ValueId chunk, ValueId like) {
    static const OpDef& reduce_chunk = OpRegistry::global().get("reduce_chunk");
    const Node& made = graph.node(chunk.node);
    if (&made.op() != &reduce_chunk) return like;
    const std::span<const ValueId> all = made.inputs();
    for (std::size_t i = chunk.output; i < all.size(); i += made.outputs().size()) {
      if (all[i] == like) return all[chunk.output];
    }
    return like;
  }

  // Each tensor separately: replicas need not read the same ones. Of the last inputs only the shapes count,
  // and the length of the chunks determines one unknown dimension.
  void join(const Node& node, LevelClasses& level) {
    const std::size_t tensors = node.outputs().size();
    const std::span<const ValueId> inputs = node.inputs();
    for (std::size_t t = 0; t < tensors; ++t) {
      start_key(node, kNode);
      for (std::size_t i = t; i + tensors < inputs.size(); i += tensors) key_.push_back(level.of(inputs[i]));
      const ValueId like = inputs[inputs.size() - tensors + t];
      const Shape& shape = node.graph().spec(like).shape;
      add_dims(shape);
      if (std::ranges::count(shape.dims(), kUnknown) > 1)
        key_.push_back(level.of(first_alike(node.graph(), inputs[t], like)));
      set(node, t, table_.number(key_), level);
    }
  }

  // Output 0 is input 0, perhaps in another memory. An alias may have another shape, which would affect what
  // readers compute; such an alias does not count.
  static bool is_input(const Node& node) {
    const OpTraits& traits = node.op().traits;
    if (node.outputs().size() != 1 || node.inputs().empty()) return false;
    if (traits.transfers || (traits.is(ReplicaRole::kAgree) && traits.alias)) return true;
    if (!traits.alias && !traits.alias_if_same) return false;
    const TensorSpec& spec = node.graph().spec(node.inputs()[0]);
    return spec.shape.is_known() && spec == node.outputs()[0];
  }

  // --- regions

  // As if the updates were nodes of their own.
  void merged(const Node& node, LevelClasses& level) {
    std::vector<Class> arguments;
    for (const ValueId input : node.inputs()) arguments.push_back(level.of(input));
    LevelClasses inner;
    number(node.regions()[0], arguments, inner);
    for (std::size_t i = 0; i < node.outputs().size(); ++i)
      set(node, i, inner.of(node.regions()[0].results()[i]), level);
    for (const LevelClasses::Update& update : inner.updates_)
      level.updates_.push_back({update.variable, node.id(), update.before, update.after});
  }

  Class chosen(Class predicate, Class first, Class second) {
    if (first == second) return first;
    return class_of(kChoice, predicate, first, second);
  }

  void choice(const Node& node, LevelClasses& level) {
    const Class predicate = level.of(node.inputs()[0]);
    std::vector<Class> arguments;
    for (const ValueId input : node.inputs().subspan(1)) arguments.push_back(level.of(input));
    std::vector<LevelClasses> inner(2);
    std::map<std::size_t, Class> written[2];
    for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t mark = log_.size();
      number(node.regions()[i], arguments, inner[i]);
      written[i] = rewind(mark);
    }
    for (std::size_t j = 0; j < node.outputs().size(); ++j) {
      set(node, j,
          chosen(predicate, inner[0].of(node.regions()[0].results()[j]),
                 inner[1].of(node.regions()[1].results()[j])),
          level);
    }
    std::map<std::size_t, Class> either = written[0];
    either.insert(written[1].begin(), written[1].end());
    for (const auto& entry : either) {
      const std::size_t variable = entry.first;
      const auto after = [&](const std::map<std::size_t, Class>& branch) {
        const auto found = branch.find(variable);
        return found == branch.end() ? states_[variable] : found->second;
      };
      write(variable, chosen(predicate, after(written[0]), after(written[1])), node.id(), level);
    }
    level.regions_[node.id()] = std::move(inner);
  }

  void loop(const Node& node, LevelClasses& level) {
    const auto carried = static_cast<std::size_t>(*node.find<std::int64_t>("carried"));
    std::vector<std::size_t> variables;
    for (const VariableUse& use : variable_uses(node)) {
      if (use.writes) variables.push_back(place(use.name));
    }
    // Carried values, then written variables. Each has a colour besides its initial class, which tells it
    // apart from others.
    std::vector<Class> initial, arguments;
    for (std::size_t i = 0; i < carried; ++i) initial.push_back(level.of(node.inputs()[i]));
    for (const std::size_t variable : variables) initial.push_back(states_[variable]);
    for (const ValueId input : node.inputs()) arguments.push_back(level.of(input));
    std::vector<std::uint32_t> colours(initial.size());
    std::vector<Class> entry(initial.size()), next(initial.size());
    std::vector<LevelClasses> inner(2);
    Class goes_on = 0;
    ++depth_;
    for (int round = 0;; ++round) {
      if (round == kMaxRounds) {
        for (std::size_t i = 0; i < colours.size(); ++i) colours[i] = static_cast<std::uint32_t>(i);
      }
      const std::size_t mark = log_.size();
      for (std::size_t i = 0; i < initial.size(); ++i) {
        entry[i] = class_of(kCarried, initial[i], depth_, colours[i]);
        if (i < carried) {
          arguments[i] = entry[i];
        } else {
          log_.emplace_back(variables[i - carried], states_[variables[i - carried]]);
          states_[variables[i - carried]] = entry[i];
        }
      }
      number(node.regions()[0], arguments, inner[0]);
      goes_on = inner[0].of(node.regions()[0].results()[0]);
      number(node.regions()[1], arguments, inner[1]);
      for (std::size_t i = 0; i < carried; ++i) next[i] = inner[1].of(node.regions()[1].results()[i]);
      for (std::size_t i = carried; i < next.size(); ++i) next[i] = states_[variables[i - carried]];
      rewind(mark);
      if (round >= kMaxRounds || !split(entry, next, colours)) break;
    }
    --depth_;
    start_key(node, kLoop);
    key_.push_back(goes_on);
    std::unordered_set<Class> listed;
    for (std::size_t i = 0; i < entry.size(); ++i) {
      if (!listed.insert(entry[i]).second) continue;
      key_.push_back(entry[i]);
      key_.push_back(next[i]);
    }
    const Class whole = table_.number(key_);
    for (std::size_t j = 0; j < node.outputs().size(); ++j) {
      const bool last = j == 2 * carried;
      const Tag tag = j < carried ? kLoopOutput : last ? kTrips : kKept;
      const Class of = last ? 0 : entry[j % carried];
      set(node, j, class_of(tag, whole, of), level);
    }
    for (std::size_t i = 0; i < variables.size(); ++i) {
      write(variables[i], class_of(kLoopOutput, whole, entry[carried + i]), node.id(), level);
    }
    level.regions_[node.id()] = std::move(inner);
  }

  // Gives new colours to values that entered equal and came out different. True if there are any.
  static bool split(std::span<const Class> entry, std::span<const Class> next,
                    std::span<std::uint32_t> colours) {
    // By entry class: the result classes, with their colours.
    std::unordered_map<Class, std::vector<std::pair<Class, std::uint32_t>>> groups;
    bool any = false;
    std::vector<std::uint32_t> old(colours.begin(), colours.end());
    std::uint32_t most = 0;
    for (const std::uint32_t colour : old) most = std::max(most, colour);
    for (std::size_t i = 0; i < entry.size(); ++i) {
      auto& results = groups[entry[i]];
      const auto found = std::ranges::find(results, next[i], &std::pair<Class, std::uint32_t>::first);
      if (found != results.end()) {
        colours[i] = found->second;
        continue;
      }
      const std::uint32_t colour = results.empty() ? old[i] : ++most;
      any = any || !results.empty();
      results.emplace_back(next[i], colour);
      colours[i] = colour;
    }
    return any;
  }

  Congruence& made_;
  KeyTable table_;
  AttributeNumbers attributes_;
  std::vector<bool> is_equal_;                      // by variable: do all copies start equal?
  std::uint32_t worker_ = 0;                        // 1: the stand-in
  std::vector<Class> states_;                       // current class of each variable
  std::vector<std::pair<std::size_t, Class>> log_;  // earlier classes of variables
  NameMap<std::uint32_t> kinds_;
  std::vector<std::uint32_t> key_;
  std::uint32_t depth_ = 0;  // number of loops around
};

Congruence::Congruence(const Graph& outermost, const NameSet& drifting, Workers workers)
    : graph_(&outermost) {
  CongruenceMaker(*this, drifting, workers);
}

std::vector<std::string> Congruence::drifting_between_workers() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < stand_in_final_.size(); ++i) {
    const bool begins_equal = originals_[i] == i && initial_[i] == stand_in_initial_[i];
    if (begins_equal && final_[i] != stand_in_final_[i]) names.push_back(graph_->variables()[i].name);
  }
  return names;
}

std::vector<std::string> Congruence::drifting() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < final_.size(); ++i) {
    const std::size_t first = originals_[i];
    if (first == i || initial_[i] != initial_[first] || final_[i] == final_[first]) continue;
    const std::string& name = graph_->variables()[first].name;
    if (names.empty() || std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

Congruence consistent_congruence(const Graph& outermost) {
  NameSet drifting;
  for (;;) {
    Congruence made(outermost, drifting);
    const std::vector<std::string> more = made.drifting();
    if (more.empty()) return made;
    drifting.insert(more.begin(), more.end());
  }
}

// --- for dumps

std::int64_t replica_of(const Graph& level, ValueId value) {
  const Node& node = level.node(value.node);
  if (node.provenance().replica >= 0) return node.provenance().replica;
  if (node.op().traits.is(ReplicaRole::kCollective)) {
    const std::size_t replicas = joined_replicas(node);
    const ReplicaRange range = joined_range(node);
    if (range.world < 2 || node.outputs().size() < replicas) return -1;
    return range.first + static_cast<std::int64_t>(value.output / (node.outputs().size() / replicas));
  }
  if (node.op().region_kind == RegionKind::kCond || node.op().region_kind == RegionKind::kWhile) {
    const Graph& region = node.regions()[node.op().region_kind == RegionKind::kCond ? 0 : 1];
    const std::size_t results = region.results().size();
    if (results == 0 || value.output >= 2 * results) return -1;
    return replica_of(region, region.results()[value.output % results]);
  }
  return -1;
}

std::vector<ReplicaKind> replica_kinds_of(const Graph& level, const LevelClasses& classes) {
  std::vector<std::pair<std::uint32_t, std::int64_t>> members;
  std::unordered_set<std::int64_t> replicas;
  std::vector<ReplicaKind> kinds(classes.size(), ReplicaKind::kSingle);
  const auto each = [&](auto&& visit) {
    for (const Node& node : level.nodes()) {
      for (std::uint32_t i = 0; i < node.outputs().size(); ++i) visit(ValueId{node.id(), i});
    }
  };
  each([&](ValueId value) {
    const std::int64_t replica = replica_of(level, value);
    if (replica < 0) return;
    replicas.insert(replica);
    members.emplace_back(classes.of(value), replica);
  });
  std::ranges::sort(members);
  members.erase(std::unique(members.begin(), members.end()), members.end());
  std::unordered_map<std::uint32_t, std::size_t> counts;
  for (const auto& [number, replica] : members) ++counts[number];
  each([&](ValueId value) {
    if (replica_of(level, value) < 0) return;
    kinds[classes.index(value)] =
        counts[classes.of(value)] == replicas.size() ? ReplicaKind::kMirrored : ReplicaKind::kPerReplica;
  });
  return kinds;
}

}  // namespace lockstep
