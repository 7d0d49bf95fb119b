// strategies/passes/lower_collectives.cpp - all-reduces of one process become the nodes that compute them.
#include "lockstep/strategies/passes/lower_collectives.h"

#include <algorithm>

#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/strategies/passes/internal/device_checks.h"
#include "lockstep/strategies/passes/internal/over_workers.h"
#include "lockstep/strategies/passes/internal/registrations.h"

namespace lockstep {

namespace {

const OptionTable<LowerCollectivesOptions>& lower_collectives_options() {
  static const auto table =
      OptionTable<LowerCollectivesOptions>("lower-collectives",
                                           "all-reduces become the nodes that compute them")
          .option("ops", &LowerCollectivesOptions::ops,
                  "auto, shared_memory, reduction_to_one_device, hierarchical_copy, ring or nccl")
          .option("device", &LowerCollectivesOptions::device,
                  "where reduction_to_one_device reduces; empty: replica 0's")
          .option("joins_first", &LowerCollectivesOptions::joins_first,
                  "over workers: each combines its own replicas' values first")
          .option("exchange", &LowerCollectivesOptions::exchange,
                  "over workers: the device whose memory they exchange; empty: the value's");
  return table;
}

class LowerCollectives final : public Pass {
 public:
  explicit LowerCollectives(LowerCollectivesOptions options) : options_(std::move(options)) {
    const bool is_named = options_.ops != "auto" || !options_.device.empty();
    if (options_.custom != nullptr && is_named)
      throw InvalidArgument(
          "lower-collectives: custom ops stand in place of named ones: leave ops and device out");
    ops_ = is_named ? cross_device_ops(options_.ops, options_.device) : options_.custom;
  }
  std::string_view name() const override { return "lower-collectives"; }
  std::string to_string() const override {
    LowerCollectivesOptions printed = options_;
    if (options_.custom != nullptr) printed.ops = options_.custom->name();  // a name that no registry knows
    return lower_collectives_options().print(printed);
  }

 private:
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    topology_ = context.topology;
    for (const std::string& device : {options_.device, options_.exchange}) {
      if (!device.empty()) internal::check_devices(name(), {&device, 1}, topology_);
    }
    bool changed = false;
    for_each_level(graph, [&](Graph& level) { changed = lower(level, graph) || changed; });
    return outcome_of(changed);
  }

  bool lower(Graph& level, const Graph& outermost) const {
    // The op that this pass knows how to compute. Other collectives, user-defined ones too, keep their
    // kernels, unless other workers take part.
    static const OpDef& all_reduce = OpRegistry::global().get("all_reduce");
    std::vector<NodeId> found;
    for (const Node& node : level.nodes()) {
      const bool lowered = node.find<std::string>("by") != nullptr;
      const bool over_workers = node.op().traits.is(ReplicaRole::kCollective) && joined_range(node).is_part();
      if ((&node.op() == &all_reduce && !lowered) || over_workers) found.push_back(node.id());
    }
    if (found.empty()) return false;
    const std::vector<Order> order = drop_order(level, found);
    // Only few of a million nodes are all-reduces: data about them is indexed by their place in `found`.
    constexpr std::size_t kNone = ~std::size_t{0};
    std::vector<std::size_t> place(level.id_bound(), kNone);
    std::vector<std::vector<bool>> is_read;  // by place and output
    for (const NodeId id : found) {
      place[id.index()] = is_read.size();
      is_read.emplace_back(level.node(id).outputs().size());
    }
    const auto read = [&](ValueId value) {
      const std::size_t at = place[value.node.index()];
      if (at != kNone) is_read[at][value.output] = true;
    };
    for (const Node& node : level.nodes()) {
      for (const ValueId input : node.inputs()) read(input);
    }
    for (const ValueId result : level.results()) read(result);
    Rewriter edit(level, name(), &outermost);
    std::vector<std::vector<ValueId>> given;  // by place
    std::vector<NodeId> heirs;                // by place
    for (std::size_t i = 0; i < found.size(); ++i)
      given.push_back(values_for(edit, found[i], std::move(is_read[i]), heirs.emplace_back()));
    // The value given may be an output of another node that is replaced.
    const auto follow = [&](ValueId value) {
      while (value.node.index() < place.size() && place[value.node.index()] != kNone)
        value = given[place[value.node.index()]][value.output];
      return value;
    };
    std::vector<Rewriter::Replacement> replaced;
    for (std::size_t i = 0; i < found.size(); ++i) {
      Rewriter::Replacement& one = replaced.emplace_back(Rewriter::Replacement{found[i]});
      for (const ValueId value : given[i]) one.to.push_back(follow(value));
    }
    edit.replace_and_erase(replaced);
    for (const Order& one : order) {
      const NodeId before = heirs[place[one.before.index()]], after = heirs[place[one.after.index()]];
      if (before.valid() && after.valid()) level.add_control(after, before);
    }
    return true;
  }

  struct Order {
    NodeId before, after;
  };
  // Drops the order between collectives, which those that wait for nobody do not need.
  static std::vector<Order> drop_order(Graph& level, std::span<const NodeId> found) {
    std::vector<Order> dropped;
    std::vector<bool> goes(level.id_bound());
    for (const NodeId id : found) goes[id.index()] = true;
    for (const NodeId id : found) {
      std::vector<NodeId> controls;
      for (const NodeId before : level.node(id).controls()) {
        if (goes[before.index()]) {
          dropped.push_back({before, id});
        } else {
          controls.push_back(before);
        }
      }
      if (controls.size() != level.node(id).controls().size()) level.set_controls(id, controls);
    }
    return dropped;
  }

  // The replacement for each output; and the node that has its place among the collectives, if there is one.
  std::vector<ValueId> values_for(Rewriter& edit, NodeId id, std::vector<bool> is_read, NodeId& heir) const {
    if (joined_range(edit.graph().node(id)).is_part())
      return internal::lower_over_workers(edit, id, is_read, heir, {options_.joins_first, options_.exchange});
    LowerContext context(edit, id, std::move(is_read), topology_);
    std::vector<ValueId> values;
    if (context.replicas() == 1) {
      for (std::size_t t = 0; t < context.tensors(); ++t) values.push_back(context.input(0, t));
      return values;
    }
    ops_for(context)->lower(context);
    heir = context.heir();
    for (std::size_t r = 0; r < context.replicas(); ++r) {
      for (std::size_t t = 0; t < context.tensors(); ++t) {
        ValueId value = context.given()[r * context.tensors() + t];
        if (!value.valid()) {
          if (context.is_read(r, t)) {
            throw PassError(name(),
                            str("the cross-device ops '", ops_for(context)->name(), "' give replica ", r,
                                " no value for tensor ", t, ", which it reads"),
                            place_of(edit.graph().node(id)));
          }
          value = context.input(r, t);  // nothing reads it
        }
        values.push_back(value);
      }
    }
    return values;
  }

  CrossDeviceOpsPtr ops_for(const LowerContext& context) const {
    if (ops_ != nullptr) return ops_;
    std::vector<std::string> devices;
    for (std::size_t r = 0; r < context.replicas(); ++r) devices.push_back(context.device(r));
    std::int64_t bytes = 0;
    for (std::size_t t = 0; t < context.tensors() && bytes >= 0; ++t) {
      const TensorSpec& spec = context.edit().graph().spec(context.input(0, t));
      bytes = spec.shape.is_known() ? bytes + static_cast<std::int64_t>(num_bytes(spec)) : -1;
    }
    return cross_device_ops(choose_cross_device_ops(devices, bytes, topology_).name);
  }

  LowerCollectivesOptions options_;
  CrossDeviceOpsPtr ops_;  // null: chosen per collective
  const Topology* topology_ = nullptr;
};

}  // namespace

std::unique_ptr<Pass> make_lower_collectives(LowerCollectivesOptions options) {
  return std::make_unique<LowerCollectives>(std::move(options));
}

void internal::register_lower_collectives(PassRegistry& registry) {
  add_pass(registry, lower_collectives_options(), make_lower_collectives);
}

}  // namespace lockstep
