#include "lockstep/strategies/internal/replicator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/graph/pass.h"
#include "lockstep/strategies/internal/copies.h"

namespace lockstep {

namespace {

constexpr std::string_view kName = "replicate";

// Where nodes are made: the new graph, or a region of it.
struct Target {
  Graph& graph;
  StringId made_by = graph.intern(kName);
};

bool joins_inside(const Graph& region, const internal::VariableCopies& copies);

// Must it be one node for all replicas? Where it joins them itself, or what runs inside it does, or writes a variable that they
// keep equal. Regions that do not run by themselves (a gradient rule, fused nodes) do not count.
bool joins(const Node& node, const internal::VariableCopies& copies) {
  const OpTraits& traits = node.op().traits;
  if (traits.collective || traits.sum_over_replicas || has(node.op().effects, Effect::kCollective))
    return true;
  const RegionKind kind = node.op().region_kind;
  if (kind != RegionKind::kCond && kind != RegionKind::kWhile) return false;
  return std::ranges::any_of(node.regions(),
                             [&](const Graph& region) { return joins_inside(region, copies); });
}

bool joins_inside(const Graph& region, const internal::VariableCopies& copies) {
  for (const Node& node : region.nodes()) {
    if (joins(node, copies)) return true;
    for (const std::string& name : updated_variables(node)) {
      if (copies.is_mirrored(name)) return true;
    }
  }
  return false;
}

class Replicator {
 public:
  Replicator(const Graph& from, Graph& to) : from_(from), to_(to), copies_(to) {}

  void run() {
    Target target{to_};
    std::vector<ValueId> parameters;
    for (const NodeId id : from_.parameters()) {
      const NodeId made = keep(target, from_.node(id), {}, {});
      to_.add_parameter(made);
      parameters.push_back({made, 0});
    }
    to_.set_results(cross(target, from_, parameters, {}));
  }

 private:
  // --- single nodes

  static std::string_view text(const Node& node, StringId id) { return node.graph().text(id); }

  NodeInit copied(const Node& node) const {
    NodeInit init;
    init.op = &node.op();
    init.outputs = SmallVector<TensorSpec, 1>(node.outputs());
    init.attributes = node.attributes();
    init.device = node.device();
    init.site = node.site();
    return init;
  }

  // The node as it is, in another graph.
  NodeId keep(Target& target, const Node& node, std::span<const ValueId> inputs,
              std::span<const NodeId> controls, std::vector<Graph> regions = {}) {
    NodeInit init = copied(node);
    init.name = target.graph.find(node.name()).valid() ? target.graph.unique_name(node.name()) : node.name();
    init.inputs = SmallVector<ValueId, 2>(inputs);
    init.controls = SmallVector<NodeId, 2>(controls);
    init.regions = std::move(regions);
    Provenance provenance = node.provenance();
    if (provenance.made_by.valid()) provenance.made_by = target.graph.intern(text(node, provenance.made_by));
    if (provenance.why.valid()) provenance.why = target.graph.intern(text(node, provenance.why));
    init.provenance = provenance;
    return add(target, std::move(init), node);
  }

  Provenance made_from(const Target& target, const Node& node, std::int64_t replica) const {
    Provenance made;
    made.identity = Graph::new_identity();
    made.origin = node.provenance().origin;
    made.made_by = target.made_by;
    made.replica = static_cast<std::int32_t>(replica);
    return made;
  }

  // Specs are inferred anew where inputs turn out to be known better, or differently, than they were.
  NodeId add(Target& target, NodeInit init, const Node& origin) {
    bool same = init.op == &origin.op() && init.inputs.size() == origin.inputs().size() &&
                init.regions.empty() && init.op->shape_operands.empty();
    for (std::size_t i = 0; same && i < init.inputs.size(); ++i)
      same = target.graph.spec(init.inputs[i]) == origin.graph().spec(origin.inputs()[i]);
    const NodeId id = target.graph.add(std::move(init));
    if (same || origin.op().region_kind == RegionKind::kReplicated) return id;
    const Node& made = target.graph.node(id);
    if (made.op().traits.gives_attribute || made.inputs().empty()) return id;
    try {
      const SmallVector<TensorSpec, 1> specs =
          infer_outputs(made, input_specs(target.graph, made), variable_specs(to_));
      target.graph.set_outputs(id, specs);
    } catch (const Error& error) {
      std::throw_with_nested(
          PassError(kName, str("cannot replicate: ", error.message()), place_of(origin), error.code()));
    }
    return id;
  }

  // --- outside of replicated regions

  // Makes the nodes of a graph that is no replica's; gives the values of its results. `enter` run before what has effects.
  std::vector<ValueId> cross(Target& target, const Graph& body, std::span<const ValueId> arguments,
                             std::string_view scope) {
    std::vector<std::vector<ValueId>> values(body.id_bound());
    std::vector<NodeId> last(body.id_bound());  // who runs after a node runs after this one
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      values[body.parameters()[i].index()] = {arguments[i]};
      last[body.parameters()[i].index()] = arguments[i].node;
    }
    std::vector<bool> followed(body.id_bound());  // somebody runs after it
    for (const Node& node : body.nodes()) {
      for (const NodeId before : node.controls()) followed[before.index()] = true;
    }
    for (const NodeId id : body.topological_order()) {
      if (last[id.index()].valid()) continue;
      const Node& node = body.node(id);
      std::vector<ValueId> inputs;
      for (const ValueId input : node.inputs()) inputs.push_back(values[input.node.index()][input.output]);
      std::vector<NodeId> controls;
      for (const NodeId before : node.controls()) controls.push_back(last[before.index()]);
      if (node.op().region_kind == RegionKind::kReplicated) {
        std::vector<NodeId> effects;
        values[id.index()] = expand(target, node, inputs, controls, effects);
        if (followed[id.index()]) last[id.index()] = group(target, node, effects, "leave");
        continue;
      }
      if (node.op().traits.collective && !node.regions().empty()) {
        throw PassError(kName, "stands outside of a replicated region", place_of(node));
      }
      std::vector<Graph> regions;
      for (const Graph& region : node.regions()) regions.push_back(cross_region(region));
      const NodeId made = scope.empty() ? keep(target, node, inputs, controls, std::move(regions))
                                        : merged(target, node, inputs, controls, std::move(regions), scope);
      last[id.index()] = made;
      for (std::uint32_t i = 0; i < node.outputs().size(); ++i) values[id.index()].push_back({made, i});
    }
    std::vector<ValueId> results;
    for (const ValueId result : body.results()) results.push_back(values[result.node.index()][result.output]);
    return results;
  }

  NodeId merged(Target& target, const Node& node, std::span<const ValueId> inputs,
                std::span<const NodeId> controls, std::vector<Graph> regions, std::string_view scope) {
    NodeInit init = copied(node);
    init.name = target.graph.unique_name(str(scope, "/", node.name()));
    init.inputs = SmallVector<ValueId, 2>(inputs);
    init.controls = SmallVector<NodeId, 2>(controls);
    init.regions = std::move(regions);
    init.provenance = made_from(target, node, -1);
    return add(target, std::move(init), node);
  }

  // A region that belongs to no replica, with the replicated regions in it made flat.
  Graph cross_region(const Graph& region) {
    Graph made;
    Target target{made};
    std::vector<ValueId> parameters;
    for (const NodeId id : region.parameters()) {
      const NodeId parameter = keep(target, region.node(id), {}, {});
      made.add_parameter(parameter);
      parameters.push_back({parameter, 0});
    }
    made.set_results(cross(target, region, parameters, {}));
    return made;
  }

  // --- replicated regions

  // The values of a replicated node's outputs. `effects` are those of its nodes that have some.
  std::vector<ValueId> expand(Target& target, const Node& node, std::span<const ValueId> inputs,
                              std::span<const NodeId> controls, std::vector<NodeId>& effects) {
    const auto replicas = static_cast<std::size_t>(*node.find<std::int64_t>("replicas"));
    const auto shared = static_cast<std::size_t>(*node.find<std::int64_t>("shared"));
    std::vector<std::vector<ValueId>> arguments(replicas);
    for (std::size_t r = 0; r < replicas; ++r) {
      arguments[r].assign(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(shared));
      for (std::size_t at = shared + r; at < inputs.size(); at += replicas)
        arguments[r].push_back(inputs[at]);
    }
    Clones clones(*this, target, node.regions()[0], replicas);
    if (!controls.empty()) clones.enter = group(target, node, controls, "enter");
    const std::vector<std::vector<ValueId>> results = clones.make(arguments);
    effects = std::move(clones.effects);
    std::vector<ValueId> outputs;
    for (std::size_t i = 0; i < node.regions()[0].results().size(); ++i) {
      for (std::size_t r = 0; r < replicas; ++r) outputs.push_back(results[r][i]);
    }
    return outputs;
  }

  NodeId group(Target& target, const Node& node, std::span<const NodeId> controls, std::string_view what) {
    if (controls.size() == 1) return controls[0];
    static const OpDef& op = OpRegistry::global().get("group");
    NodeInit init;
    init.op = &op;
    init.name = target.graph.unique_name(str(node.name(), "/", what));
    init.controls = SmallVector<NodeId, 2>(controls);
    init.site = node.site();
    init.provenance = made_from(target, node, -1);
    return target.graph.add(std::move(init));
  }

  // The nodes of one body, for all replicas.
  class Clones {
   public:
    Clones(Replicator& owner, Target& target, const Graph& body, std::size_t replicas)
        : owner_(owner), target_(target), body_(body), replicas_(replicas) {
      for (std::size_t r = 0; r < replicas; ++r) prefixes_.push_back(str("replica_", r, "/"));
    }

    NodeId enter;                 // runs before what has effects
    std::vector<NodeId> effects;  // the made nodes that have effects

    // The results of each replica.
    std::vector<std::vector<ValueId>> make(std::span<const std::vector<ValueId>> arguments) {
      bases_.resize(replicas_ * body_.id_bound());
      target_.graph.reserve(target_.graph.id_bound() + replicas_ * body_.size());
      for (std::size_t r = 0; r < replicas_; ++r) {
        for (std::size_t i = 0; i < body_.parameters().size(); ++i)
          base(r, body_.parameters()[i]) = arguments[r][i];
      }
      arrange();
      for (const std::vector<NodeId>& phase : phases_) {
        for (std::size_t r = 0; r < replicas_; ++r) {
          for (const NodeId id : phase) {
            if (!is_join_[id.index()]) clone(body_.node(id), r);
          }
        }
        for (const NodeId id : phase) {
          if (is_join_[id.index()]) join(body_.node(id));
        }
      }
      std::vector<std::vector<ValueId>> results(replicas_);
      for (std::size_t r = 0; r < replicas_; ++r) {
        for (const ValueId result : body_.results()) results[r].push_back(value(r, result));
      }
      return results;
    }

   private:
    // --- order: see the header

    void arrange() {
      const std::vector<NodeId> order = body_.topological_order();
      is_join_.resize(body_.id_bound());
      std::vector<std::uint32_t> phase(body_.id_bound());
      std::vector<bool> fixed(body_.id_bound());
      const auto each_before = [&](const Node& node, auto&& visit) {
        for (const ValueId input : node.inputs()) visit(input.node);
        for (const NodeId before : node.controls()) visit(before);
      };
      std::uint32_t most = 0;
      for (const NodeId id : order) {
        const Node& node = body_.node(id);
        is_join_[id.index()] = joins(node, owner_.copies_);
        fixed[id.index()] = is_join_[id.index()] || effects_of(node) != Effect::kPure;
        std::uint32_t earliest = 0;
        each_before(node, [&](NodeId before) {
          const std::uint32_t after = phase[before.index()] + (is_join_[before.index()] ? 1U : 0U);
          earliest = std::max(earliest, after);
        });
        phase[id.index()] = earliest;
        most = std::max(most, earliest);
      }
      // As late as the readers allow.
      constexpr std::uint32_t kFree = std::numeric_limits<std::uint32_t>::max();
      std::vector<std::uint32_t> latest(body_.id_bound(), kFree);
      for (auto it = order.rbegin(); it != order.rend(); ++it) {
        const std::size_t at = it->index();
        if (!fixed[at] && latest[at] != kFree) phase[at] = latest[at];
        each_before(body_.node(*it), [&](NodeId before) {
          latest[before.index()] = std::min(latest[before.index()], phase[at]);
        });
      }
      phases_.resize(most + 1);
      for (const NodeId id : order) {
        const bool parameter = base(0, id).valid();
        if (!parameter) phases_[phase[id.index()]].push_back(id);
      }
    }

    // --- values

    ValueId& base(std::size_t replica, NodeId id) { return bases_[replica * body_.id_bound() + id.index()]; }
    ValueId value(std::size_t replica, ValueId of) {
      const ValueId at = base(replica, of.node);
      if (at.output == kListed) return lists_[at.node.index() + of.output];
      return {at.node, at.output + of.output};
    }
    NodeId last(std::size_t replica, NodeId id) {
      const ValueId at = base(replica, id);
      return at.output == kListed ? lists_after_[at.node.index()] : at.node;
    }
    // Outputs that come from several nodes.
    void list(std::size_t replica, NodeId id, std::span<const ValueId> values, NodeId after) {
      base(replica, id) = {NodeId(lists_.size()), kListed};
      lists_.insert(lists_.end(), values.begin(), values.end());
      if (values.empty()) lists_.emplace_back();
      lists_after_.resize(lists_.size(), after);
      for (std::size_t i = lists_.size() - std::max<std::size_t>(values.size(), 1); i < lists_.size(); ++i)
        lists_after_[i] = after;
    }

    SmallVector<ValueId, 2> inputs_of(const Node& node, std::size_t replica) {
      SmallVector<ValueId, 2> inputs;
      for (const ValueId input : node.inputs()) inputs.push_back(value(replica, input));
      return inputs;
    }
    void add_controls(const Node& node, std::size_t replica, SmallVector<NodeId, 2>& controls) {
      const auto add_once = [&](NodeId before) {
        if (before.valid() && std::ranges::find(controls, before) == controls.end())
          controls.push_back(before);
      };
      for (const NodeId before : node.controls()) add_once(last(replica, before));
    }
    void note_effects(NodeId made) {
      const Effect effect = effects_of(target_.graph.node(made));
      if (effect == Effect::kPure || effect == Effect::kRandom) return;
      effects.push_back(made);
      if (enter.valid()) target_.graph.add_control(made, enter);
    }

    std::string name_for(const Node& node, std::size_t replica) const {
      return replica == 0 ? node.name() : prefixes_[replica] + node.name();
    }

    // --- one node per replica

    void clone(const Node& node, std::size_t replica) {
      if (node.op().region_kind == RegionKind::kReplicated) {
        throw PassError(
            kName,
            "a replicated region inside a replicated region has no meaning; leave it first (merge_call)",
            place_of(node));
      }
      const auto r = static_cast<std::int64_t>(replica);
      NodeInit init = owner_.copied(node);
      init.name = target_.graph.unique_name(name_for(node, replica));
      init.provenance = owner_.made_from(target_, node, r);
      if (node.op().traits.gives_replica) {
        make_constant(init, r);
      } else {
        init.inputs = inputs_of(node, replica);
        for (Attribute& attribute : init.attributes) {
          if (auto* variable = std::get_if<VariableRef>(&attribute.value))
            variable->name = owner_.copies_.name(variable->name, r);
        }
        for (const Graph& region : node.regions()) init.regions.push_back(own_region(region, r));
      }
      add_controls(node, replica, init.controls);
      const NodeId made = owner_.add(target_, std::move(init), node);
      base(replica, node.id()) = {made, 0};
      note_effects(made);
    }

    static void make_constant(NodeInit& init, std::int64_t replica) {
      static const OpDef& op = OpRegistry::global().get("constant");
      init.op = &op;
      init.attributes = {{"value", Tensor::full(init.outputs[0].dtype, init.outputs[0].shape,
                                                static_cast<double>(replica))}};
    }

    // A copy of a region that one replica runs by itself.
    Graph own_region(const Graph& region, std::int64_t replica) {
      Graph made = region;
      const auto visit = [&](const auto& self, Graph& graph) -> void {
        std::vector<NodeId> ids;
        for (const Node& node : graph.nodes()) ids.push_back(node.id());
        for (const NodeId id : ids) {
          Provenance provenance = graph.node(id).provenance();
          provenance.identity = Graph::new_identity();
          provenance.made_by = graph.intern(kName);
          provenance.replica = static_cast<std::int32_t>(replica);
          graph.set_provenance(id, provenance);
          if (graph.node(id).op().traits.gives_replica) {
            NodeInit init;
            init.outputs = SmallVector<TensorSpec, 1>(graph.node(id).outputs());
            make_constant(init, replica);
            graph.set_op(id, *init.op);
            graph.set_attribute(id, "value", init.attributes[0].value);
          }
          const std::vector<Attribute> attributes = graph.node(id).attributes();
          for (const Attribute& attribute : attributes) {
            const auto* variable = std::get_if<VariableRef>(&attribute.value);
            if (variable == nullptr) continue;
            graph.set_attribute(id, attribute.name,
                                VariableRef{owner_.copies_.name(variable->name, replica)});
          }
          for (std::size_t i = 0; i < graph.node(id).regions().size(); ++i) self(self, graph.region(id, i));
        }
      };
      visit(visit, made);
      return made;
    }

    // --- one node for all replicas

    void join(const Node& node) {
      if (node.op().traits.sum_over_replicas) {
        for (std::size_t r = 0; r < replicas_; ++r) clone(node, r);
        if (replicas_ > 1) add_up(node);
      } else if (node.op().region_kind == RegionKind::kCond || node.op().region_kind == RegionKind::kWhile) {
        join_regions(node);
      } else if (node.find<std::vector<std::int64_t>>("single") != nullptr) {
        merge(node);
      } else if (!node.regions().empty()) {
        throw PassError(kName,
                        "its region joins replicas, and only those of cond, while_loop and merge_call may",
                        place_of(node));
      } else {
        join_collective(node);
      }
    }

    NodeInit joined(const Node& node) {
      NodeInit init = owner_.copied(node);
      init.name = target_.graph.unique_name(node.name());
      init.provenance = owner_.made_from(target_, node, -1);
      for (std::size_t r = 0; r < replicas_; ++r) add_controls(node, r, init.controls);
      return init;
    }

    void join_collective(const Node& node) {
      NodeInit init = joined(node);
      for (std::size_t r = 0; r < replicas_; ++r) {
        for (const ValueId input : node.inputs()) init.inputs.push_back(value(r, input));
      }
      std::erase_if(init.attributes, [](const Attribute& a) { return a.name == "replicas"; });
      init.attributes.push_back({"replicas", static_cast<std::int64_t>(replicas_)});
      if (replicas_ > 1) init.outputs.clear();
      for (std::size_t r = 0; replicas_ > 1 && r < replicas_; ++r) {
        for (const TensorSpec& spec : node.outputs()) init.outputs.push_back(spec);
      }
      const NodeId made = owner_.add(target_, std::move(init), node);
      const auto outputs = static_cast<std::uint32_t>(node.outputs().size());
      for (std::size_t r = 0; r < replicas_; ++r)
        base(r, node.id()) = {made, static_cast<std::uint32_t>(r) * outputs};
      note_effects(made);
    }

    // An all-reduce of what the replicas computed.
    void add_up(const Node& node) {
      static const OpDef& op = OpRegistry::global().get("all_reduce");
      NodeInit init;
      init.op = &op;
      init.name = target_.graph.unique_name(node.name() + "/all_reduce");
      init.site = node.site();
      init.device = node.device();
      init.provenance = owner_.made_from(target_, node, -1);
      for (std::size_t r = 0; r < replicas_; ++r) {
        for (std::uint32_t i = 0; i < node.outputs().size(); ++i) {
          init.inputs.push_back(value(r, {node.id(), i}));
          init.outputs.push_back(node.outputs()[i]);
        }
      }
      init.attributes = {{"reduce", std::string("sum")}, {"replicas", static_cast<std::int64_t>(replicas_)}};
      const NodeId made = target_.graph.add(std::move(init));
      const auto outputs = static_cast<std::uint32_t>(node.outputs().size());
      for (std::size_t r = 0; r < replicas_; ++r)
        base(r, node.id()) = {made, static_cast<std::uint32_t>(r) * outputs};
      note_effects(made);
    }

    void merge(const Node& node) {
      const auto wanted = static_cast<std::size_t>(*node.find<std::int64_t>("replicas"));
      if (wanted != replicas_) {
        throw PassError(kName, str("is made for ", wanted, " replicas, in a region of ", replicas_),
                        place_of(node));
      }
      std::vector<ValueId> arguments;
      for (std::size_t r = 0; r < replicas_; ++r) {
        for (const ValueId input : node.inputs()) arguments.push_back(value(r, input));
      }
      const std::size_t first = target_.graph.id_bound();
      const std::vector<ValueId> results = owner_.cross(target_, node.regions()[0], arguments, node.name());
      const auto& single = *node.find<std::vector<std::int64_t>>("single");
      // What has effects in there runs after what the call runs after, and before what runs after the call.
      SmallVector<NodeId, 2> before;
      for (std::size_t r = 0; r < replicas_; ++r) add_controls(node, r, before);
      std::vector<NodeId> acting;
      for (std::size_t i = first, end = target_.graph.id_bound(); i < end; ++i) {
        const std::size_t known = effects.size();
        note_effects(NodeId(i));
        if (effects.size() == known) continue;
        acting.push_back(NodeId(i));
        for (const NodeId earlier : before) target_.graph.add_control(NodeId(i), earlier);
      }
      if (acting.empty()) acting.assign(before.begin(), before.end());
      const NodeId after = acting.empty() ? NodeId() : owner_.group(target_, node, acting, "done");
      for (std::size_t r = 0; r < replicas_; ++r) {
        std::vector<ValueId> mine;
        std::size_t at = 0;
        for (const std::int64_t one : single) {
          mine.push_back(results[one != 0 ? at : at + r]);
          at += one != 0 ? 1 : replicas_;
        }
        list(r, node.id(), mine, after);
      }
    }

    // cond and while_loop: one node whose regions hold the nodes of all replicas.
    void join_regions(const Node& node) {
      const bool loop = node.op().region_kind == RegionKind::kWhile;
      const std::size_t carried =
          loop ? static_cast<std::size_t>(*node.find<std::int64_t>("carried")) : node.inputs().size() - 1;
      NodeInit init = joined(node);
      // Inputs, and for each replica which of the region's parameters are its own.
      std::vector<std::vector<std::size_t>> places(replicas_);
      std::vector<std::size_t> originals;  // by new parameter: the old one
      const auto take = [&](std::size_t first, std::size_t last, std::size_t skip) {
        for (std::size_t r = 0; r < replicas_; ++r) {
          for (std::size_t i = first; i < last; ++i) {
            init.inputs.push_back(value(r, node.inputs()[i]));
            places[r].push_back(originals.size());
            originals.push_back(i - skip);
          }
        }
      };
      if (loop) {
        take(0, carried, 0);
        take(carried, node.inputs().size(), 0);
      } else {
        init.inputs.push_back(agree(node, node.inputs()[0]));
        take(1, node.inputs().size(), 1);
      }
      for (std::size_t i = 0; i < node.regions().size(); ++i)
        init.regions.push_back(joined_region(node, node.regions()[i], originals, places, loop && i == 0));
      // Outputs: replica by replica; behind them, for a loop that keeps its trips, the kept values and the number of trips.
      const std::size_t outputs = node.outputs().size();
      const std::size_t own = loop ? carried : outputs;
      const std::size_t kept = outputs > own ? own : 0;
      init.outputs.clear();
      std::vector<std::vector<std::uint32_t>> where(replicas_, std::vector<std::uint32_t>(outputs));
      const auto give = [&](std::size_t first, std::size_t last) {
        for (std::size_t r = 0; r < replicas_; ++r) {
          for (std::size_t i = first; i < last; ++i) {
            where[r][i] = static_cast<std::uint32_t>(init.outputs.size());
            init.outputs.push_back(node.outputs()[i]);
          }
        }
      };
      give(0, own);
      if (kept > 0) {
        give(own, own + kept);
        for (std::size_t r = 0; r < replicas_; ++r)
          where[r][outputs - 1] = static_cast<std::uint32_t>(init.outputs.size());
        init.outputs.push_back(node.outputs()[outputs - 1]);
      }
      for (Attribute& attribute : init.attributes) {
        if (attribute.name == "carried") attribute.value = static_cast<std::int64_t>(carried * replicas_);
      }
      const NodeId made = owner_.add(target_, std::move(init), node);
      for (std::size_t r = 0; r < replicas_; ++r) {
        std::vector<ValueId> mine;
        for (const std::uint32_t at : where[r]) mine.push_back({made, at});
        list(r, node.id(), mine, made);
      }
      note_effects(made);
    }

    Graph joined_region(const Node& node, const Graph& region, std::span<const std::size_t> originals,
                        std::span<const std::vector<std::size_t>> places, bool condition) {
      Graph made;
      Target target{made};
      std::vector<ValueId> parameters;
      std::vector<std::size_t> replica_of(originals.size());
      for (std::size_t r = 0; r < places.size(); ++r) {
        for (const std::size_t at : places[r]) replica_of[at] = r;
      }
      for (std::size_t i = 0; i < originals.size(); ++i) {
        const Node& parameter = region.node(region.parameters()[originals[i]]);
        NodeInit init = owner_.copied(parameter);
        init.name = made.unique_name(name_for(parameter, replica_of[i]));
        init.provenance = owner_.made_from(target, parameter, static_cast<std::int64_t>(replica_of[i]));
        parameters.push_back({made.add(std::move(init)), 0});
        made.add_parameter(parameters.back().node);
      }
      std::vector<std::vector<ValueId>> arguments(replicas_);
      for (std::size_t r = 0; r < replicas_; ++r) {
        for (const std::size_t at : places[r]) arguments[r].push_back(parameters[at]);
      }
      Clones inner(owner_, target, region, replicas_);
      const std::vector<std::vector<ValueId>> results = inner.make(arguments);
      std::vector<ValueId> flat;
      if (condition) {
        std::vector<ValueId> all;
        all.reserve(results.size());
        for (const std::vector<ValueId>& mine : results) all.push_back(mine[0]);
        flat.push_back(owner_.agreement(target, node, all));
      } else {
        for (const std::vector<ValueId>& mine : results) flat.insert(flat.end(), mine.begin(), mine.end());
      }
      made.set_results(std::move(flat));
      return made;
    }

    ValueId agree(const Node& node, ValueId input) {
      std::vector<ValueId> all;
      for (std::size_t r = 0; r < replicas_; ++r) all.push_back(value(r, input));
      return owner_.agreement(target_, node, all);
    }

    static constexpr std::uint32_t kListed = std::numeric_limits<std::uint32_t>::max();

    Replicator& owner_;
    Target& target_;
    const Graph& body_;
    std::size_t replicas_;
    std::vector<std::string> prefixes_;  // of names, by replica
    std::vector<ValueId>
        bases_;  // by replica and node: output i is base + i, or entry base.node + i of lists_
    std::vector<ValueId> lists_;
    std::vector<NodeId> lists_after_;
    std::vector<bool> is_join_;
    std::vector<std::vector<NodeId>> phases_;
  };

  // One value for all of them, which prove-sync proves equal.
  ValueId agreement(Target& target, const Node& node, std::span<const ValueId> values) {
    if (std::ranges::all_of(values, [&](ValueId value) { return value == values[0]; })) return values[0];
    static const OpDef& op = OpRegistry::global().get("agree");
    NodeInit init;
    init.op = &op;
    init.name = target.graph.unique_name(node.name() + "/agree");
    init.inputs = SmallVector<ValueId, 2>(values);
    init.outputs.push_back(target.graph.spec(values[0]));
    init.site = node.site();
    init.provenance = made_from(target, node, -1);
    return {target.graph.add(std::move(init)), 0};
  }

  const Graph& from_;
  Graph& to_;
  internal::VariableCopies copies_;
};

}  // namespace

Graph internal::flat_replicas(const Graph& graph) {
  Graph made;
  for (const VariableDecl& decl : graph.variables()) made.declare_variable(decl);
  Replicator(graph, made).run();
  return made;
}

}  // namespace lockstep
