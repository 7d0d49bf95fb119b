// graph/passes/fuse_elementwise.cpp - element-wise neighbours become one node that goes over memory once.
#include "lockstep/graph/passes/fuse_elementwise.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/topology.h"
#include "lockstep/graph/ir/internal/gradient_nodes.h"
#include "lockstep/graph/ir/internal/region_shapes.h"
#include "lockstep/graph/ir/internal/shape_values.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/ops/fused/internal/tile_program.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kNone = 0xFFFFFFFFU;

// The shape of every value, with a number in place of each unknown dimension.
class ProbedShapes {
 public:
  ProbedShapes(const Graph& graph, const Graph& outermost, std::span<const NodeId> order)
      : graph_(graph), variables_(variable_specs(outermost)), specs_(graph.id_bound()) {
    for (const NodeId id : graph.parameters()) {
      TensorSpec spec = graph.spec({id, 0});
      fill_in(spec.shape, parameter_extent);
      specs_[id.index()] = {spec};
    }
    for (const NodeId id : order) {
      if (specs_[id.index()].empty()) specs_[id.index()] = infer(graph.node(id));
    }
  }

  const Shape& of(NodeId id) const { return specs_[id.index()][0].shape; }

 private:
  // Unlikely as a real extent, and with many divisors, so that ops that cut it into equal pieces accept it.
  static std::int64_t parameter_extent(std::size_t axis) {
    constexpr std::int64_t kPrimes[] = {7, 11, 13, 17, 19, 23};
    return 360 * kPrimes[std::min<std::size_t>(axis, 5)];
  }

  template <class ExtentOf>
  static void fill_in(Shape& shape, ExtentOf extent_of) {
    try {
      for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
        if (shape[axis] == kUnknown) shape = shape.with_dim(axis, extent_of(axis));
      }
    } catch (const InvalidArgument&) {  // too many elements: the remaining shapes stay unknown
    }
  }

  SmallVector<TensorSpec, 1> infer(const Node& node) {
    const auto known = [](const TensorSpec& spec) { return spec.shape.is_known(); };
    if (std::ranges::all_of(node.outputs(), known)) return SmallVector<TensorSpec, 1>(node.outputs());
    std::vector<TensorSpec> inputs;
    for (const ValueId input : node.inputs()) inputs.push_back(specs_[input.node.index()][input.output]);
    SmallVector<TensorSpec, 1> outputs;
    try {
      const NodeView::ShapeValues shape_values = host_values_.for_node(node);
      outputs = node.op().region_kind == RegionKind::kNone
                    ? infer_outputs(node, inputs, variables_, &shape_values)
                    : internal::infer_region_outputs(node, inputs, variables_);
    } catch (const Error&) {  // the numbers do not fit together here: the output shapes stay unknown
      outputs = SmallVector<TensorSpec, 1>(node.outputs());
    }
    for (TensorSpec& output : outputs) fill_in(output.shape, [this](std::size_t) { return ++last_fresh_; });
    return outputs;
  }

  const Graph& graph_;
  NodeView::VariableSpecs variables_;
  std::vector<SmallVector<TensorSpec, 1>> specs_;
  internal::HostValues host_values_{graph_, [this](ValueId value) -> const TensorSpec& {
                                      return specs_[value.node.index()][value.output];
                                    }};
  std::int64_t last_fresh_ = 10'000;  // unlikely to equal any other extent
};

// Which nodes become one. Nodes of one kind (shape, device, replica, controls) may be joined if one reads the
// other. Every node gets a stage: at least that of each node it reads, and a higher one if the two may not be
// joined. A group is a connected set of nodes of one kind and stage. Every edge between groups leads to a
// higher stage, so no group depends on itself through others.
class Groups {
 public:
  Groups(const Graph& graph, std::span<const NodeId> order, std::vector<std::uint32_t> kinds,
         std::size_t max_nodes)
      : graph_(graph), order_(order), kinds_(std::move(kinds)), stages_(graph.id_bound(), 0) {
    assign_stages();
    wait_for_readers();
    join(max_nodes);
  }

  // In an order in which they can run, and so are the nodes of each group. Each group has at least two nodes.
  std::span<const std::vector<NodeId>> groups() const { return groups_; }
  std::uint32_t group_of(NodeId id) const { return group_of_[id.index()]; }  // kNone: in no group

 private:
  bool may_join(NodeId a, NodeId b) const {
    return kinds_[a.index()] != kNone && kinds_[a.index()] == kinds_[b.index()];
  }

  void assign_stages() {
    for (const NodeId id : order_) {
      std::uint32_t stage = 0;
      for (const ValueId input : graph_.node(id).inputs()) {
        stage = std::max(stage, stages_[input.node.index()] + (may_join(input.node, id) ? 0 : 1));
      }
      for (const NodeId before : graph_.node(id).controls()) {
        stage = std::max(stage, stages_[before.index()] + 1);
      }
      stages_[id.index()] = stage;
    }
  }

  // A node whose first reader of its kind is in a later stage moves to that stage, unless another node needs
  // it earlier: relu(x) in relu(x) + matmul(y, w) has no reason to run on its own, ahead of the product.
  void wait_for_readers() {
    std::vector<std::uint32_t> latest(graph_.id_bound(), kNone);    // the latest that the readers allow
    std::vector<std::uint32_t> joinable(graph_.id_bound(), kNone);  // the first stage of a reader of its kind
    for (std::size_t i = order_.size(); i-- > 0;) {
      const NodeId id = order_[i];
      std::uint32_t& stage = stages_[id.index()];
      if (kinds_[id.index()] != kNone && joinable[id.index()] == latest[id.index()] &&
          latest[id.index()] != kNone && keeps_no_more(id)) {
        stage = std::max(stage, latest[id.index()]);
      }
      for (const ValueId input : graph_.node(id).inputs()) {
        const bool joins = may_join(input.node, id);
        std::uint32_t& before = latest[input.node.index()];
        before = std::min(before, joins ? stage : stage - 1);
        if (joins) joinable[input.node.index()] = std::min(joinable[input.node.index()], stage);
      }
      for (const NodeId before : graph_.node(id).controls()) {
        latest[before.index()] = std::min(latest[before.index()], stage - 1);
      }
    }
  }

  // A node that waits keeps its inputs alive instead of its output. A sum of many gradients would keep all of
  // them alive.
  bool keeps_no_more(NodeId id) const {
    const Node& node = graph_.node(id);
    std::size_t large = 0;
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      const std::span<const ValueId> before = node.inputs().first(i);
      const bool again = std::ranges::find(before, node.inputs()[i]) != before.end();
      if (!again && graph_.spec(node.inputs()[i]).shape == node.outputs()[0].shape) ++large;
    }
    return large <= 1;
  }

  // Components of the nodes under the edges that `same` accepts: a number for each node.
  template <class Same>
  std::vector<std::uint32_t> components(Same same) const {
    std::vector<std::uint32_t> root(graph_.id_bound());
    std::iota(root.begin(), root.end(), 0U);
    const auto find = [&](std::size_t at) {
      while (root[at] != at) {
        root[at] = root[root[at]];
        at = root[at];
      }
      return static_cast<std::uint32_t>(at);
    };
    for (const NodeId id : order_) {
      for (const ValueId input : graph_.node(id).inputs()) {
        if (may_join(input.node, id) && same(input.node, id))
          root[find(input.node.index())] = find(id.index());
      }
    }
    for (std::size_t i = 0; i < root.size(); ++i) root[i] = find(i);
    return root;
  }

  void join(std::size_t max_nodes) {
    const std::vector<std::uint32_t> whole =
        components([&](NodeId a, NodeId b) { return stages_[a.index()] == stages_[b.index()]; });
    const std::vector<std::uint32_t> slices = slices_of(whole, max_nodes);
    const std::vector<std::uint32_t> parts = components([&](NodeId a, NodeId b) {
      return whole[a.index()] == whole[b.index()] && slices[a.index()] == slices[b.index()];
    });
    std::vector<std::uint32_t> sizes(graph_.id_bound(), 0);
    for (const NodeId id : order_) ++sizes[parts[id.index()]];
    std::vector<std::uint32_t> numbers(graph_.id_bound(), kNone);
    group_of_.assign(graph_.id_bound(), kNone);
    for (const NodeId id : order_) {
      const std::uint32_t part = parts[id.index()];
      if (sizes[part] < 2) continue;
      if (numbers[part] == kNone) {
        numbers[part] = static_cast<std::uint32_t>(groups_.size());
        groups_.emplace_back();
      }
      group_of_[id.index()] = numbers[part];
      groups_[numbers[part]].push_back(id);
    }
  }

  // Components that are too large are cut along an order in which they can run, so that no slice needs the
  // output of a later one. Depth first: neighbours in that order are mostly neighbours in the graph.
  std::vector<std::uint32_t> slices_of(const std::vector<std::uint32_t>& whole, std::size_t max_nodes) const {
    std::vector<std::uint32_t> sizes(graph_.id_bound(), 0);
    for (const NodeId id : order_) ++sizes[whole[id.index()]];
    std::vector<std::uint32_t> slices(graph_.id_bound(), 0);
    std::vector<std::uint32_t> done(graph_.id_bound(), 0);  // by component
    std::vector<bool> seen(graph_.id_bound(), false);
    std::vector<std::pair<NodeId, std::size_t>> path;  // nodes, and which input comes next
    for (std::size_t i = order_.size(); i-- > 0;) {
      const std::uint32_t component = whole[order_[i].index()];
      if (sizes[component] <= max_nodes || seen[order_[i].index()]) continue;
      seen[order_[i].index()] = true;
      path.emplace_back(order_[i], 0);
      while (!path.empty()) {
        const NodeId id = path.back().first;
        const std::span<const ValueId> inputs = graph_.node(id).inputs();
        if (path.back().second == inputs.size()) {
          slices[id.index()] = static_cast<std::uint32_t>(done[component]++ / max_nodes);
          path.pop_back();
          continue;
        }
        const NodeId input = inputs[path.back().second++].node;
        if (whole[input.index()] != component || seen[input.index()]) continue;
        seen[input.index()] = true;
        path.emplace_back(input, 0);
      }
    }
    return slices;
  }

  const Graph& graph_;
  std::span<const NodeId> order_;
  std::vector<std::uint32_t> kinds_;   // by node; kNone: cannot be joined
  std::vector<std::uint32_t> stages_;  // by node
  std::vector<std::uint32_t> group_of_;
  std::vector<std::vector<NodeId>> groups_;
};

const OptionTable<FuseElementwiseOptions>& fuse_elementwise_options() {
  static const auto table =
      OptionTable<FuseElementwiseOptions>("fuse-elementwise", "element-wise neighbours become one node")
          .option("max_nodes", &FuseElementwiseOptions::max_nodes, "nodes in one group at most");
  return table;
}

class FuseElementwise final : public Pass {
 public:
  explicit FuseElementwise(FuseElementwiseOptions options) : options_(options) {}
  std::string_view name() const override { return "fuse-elementwise"; }
  std::string to_string() const override { return fuse_elementwise_options().print(options_); }

 private:
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    topology_ = context.topology;
    unplaced_on_cpu_ = topology_ == nullptr || topology_->devices().empty() ||
                       topology_->devices().front().device.kind == DeviceKind::kCpu;
    may_move_ =
        topology_ != nullptr && std::ranges::any_of(topology_->devices(), [](const DeviceFacts& facts) {
          return facts.device.kind != DeviceKind::kCpu;
        });
    return outcome_of(visit(graph, graph));
  }

  // Like for_each_level, but skips the regions that this pass makes.
  bool visit(Graph& graph, const Graph& outermost) const {
    bool changed = false;
    for (const NodeId id : graph.region_owners()) {
      if (&graph.node(id).op() == &fused_) continue;
      for (std::size_t i = 0; i < graph.node(id).regions().size(); ++i)
        changed = visit(graph.region(id, i), outermost) || changed;
    }
    return fuse(graph, outermost) || changed;
  }

  bool fuse(Graph& graph, const Graph& outermost) const {
    std::size_t candidates = 0;
    for (const Node& node : graph.nodes()) candidates += can_be_fused(node) ? 1 : 0;
    if (candidates < 2) return false;
    const std::vector<NodeId> order = graph.topological_order();
    const Groups groups(graph, order, kinds(graph, outermost, order),
                        static_cast<std::size_t>(options_.max_nodes));
    if (groups.groups().empty()) return false;
    Rewriter edit(graph, name(), &outermost);
    std::vector<Rewriter::Replacement> gone;
    std::vector<std::pair<NodeId, std::string>> names;
    std::vector<NodeId> constants;
    for (std::uint32_t i = 0; i < groups.groups().size(); ++i)
      replace(edit, groups, i, gone, names, constants);
    edit.replace_and_erase(gone);
    for (const auto& [id, wanted] : names) edit.rename(id, wanted);
    // Erases constants that only groups read.
    std::ranges::sort(constants);
    constants.erase(std::unique(constants.begin(), constants.end()), constants.end());
    for (const NodeId id : constants) {
      if (!edit.is_used(id)) edit.erase(id);
    }
    return edit.changed();
  }

  bool can_be_fused(const Node& node) const {
    if (!internal::computes_tiles(node)) return false;
    const bool has_source = !node.op().source.empty();
    if (node.device().empty()) return unplaced_on_cpu_ && (has_source || !may_move_);
    const Device device = Device::parse(node.device());
    if (device.kind == DeviceKind::kCpu) return true;
    // Kernels of other devices are made from what the ops say about themselves, where the device runs fused nodes at all.
    const DeviceFacts* const facts = topology_ == nullptr ? nullptr : topology_->find(device);
    return facts != nullptr && has_source && OpRegistry::global().kernel(fused_, facts->kernels) != nullptr &&
           OpRegistry::global().kernel(node.op(), facts->kernels) != nullptr;
  }

  // By id: the nodes that shape operands are computed from. They are not fused: shapes are worked out before
  // the step runs, from nodes without regions, and these nodes then cost nothing at run time.
  static std::vector<bool> make_shapes(const Graph& graph, std::span<const NodeId> order) {
    std::vector<bool> marked(graph.id_bound());
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      const Node& node = graph.node(*it);
      for (const std::size_t operand : node.op().shape_operands) {
        if (operand < node.inputs().size()) marked[node.inputs()[operand].node.index()] = true;
      }
      if (!marked[it->index()] || node.op().traits.gives_shape) continue;
      for (const ValueId input : node.inputs()) marked[input.node.index()] = true;
    }
    return marked;
  }

  // A number for each node that can be fused; nodes with equal numbers may be joined.
  std::vector<std::uint32_t> kinds(const Graph& graph, const Graph& outermost,
                                   std::span<const NodeId> order) const {
    const ProbedShapes shapes(graph, outermost, order);
    const std::vector<bool> of_shapes = make_shapes(graph, order);
    // In the code of a replica gradients stay apart from other values: they have yet to be summed.
    const bool replica_code = is_replica_code(outermost, graph);
    using Key = std::tuple<std::vector<std::int64_t>, std::string, std::int32_t, bool, std::vector<NodeId>>;
    std::map<Key, std::uint32_t> numbers;
    std::vector<std::uint32_t> kinds(graph.id_bound(), kNone);
    for (const NodeId id : order) {
      const Node& node = graph.node(id);
      if (!can_be_fused(node) || of_shapes[id.index()]) continue;
      const std::span<const std::int64_t> dims = shapes.of(id).dims();
      std::vector<NodeId> controls(node.controls().begin(), node.controls().end());
      std::ranges::sort(controls);
      Key key{{dims.begin(), dims.end()},
              node.device(),
              node.provenance().replica,
              replica_code && internal::is_gradient_share(node),
              controls};
      kinds[id.index()] =
          numbers.try_emplace(std::move(key), static_cast<std::uint32_t>(numbers.size())).first->second;
    }
    return kinds;
  }

  static bool is_scalar_constant(const Node& node) {
    const Tensor* constant = internal::constant_of(node);
    return constant != nullptr && node.controls().empty() && constant->spec().shape.num_elements() == 1;
  }

  // One group: its region, the node that holds it, and the replacements for the group's nodes.
  void replace(Rewriter& edit, const Groups& groups, std::uint32_t number,
               std::vector<Rewriter::Replacement>& gone, std::vector<std::pair<NodeId, std::string>>& names,
               std::vector<NodeId>& constants) const {
    const Graph& graph = edit.graph();
    const std::vector<NodeId>& nodes = groups.groups()[number];
    Graph region;
    std::map<ValueId, ValueId> inside;  // the region's value for a value of the graph
    std::vector<ValueId> inputs;
    const auto add_to_region = [&](const Node& node, SmallVector<ValueId, 2> arguments) {
      NodeInit init;
      init.op = &node.op();
      init.name = region.unique_name(node.name());
      init.inputs = std::move(arguments);
      init.outputs = SmallVector<TensorSpec, 1>(node.outputs());
      init.attributes_of = &node;
      init.site = node.site();
      init.provenance = node.provenance();
      return region.add(std::move(init));
    };
    const auto enter = [&](ValueId value) {
      const auto [found, fresh] = inside.try_emplace(value);
      if (!fresh) return found->second;
      const Node& from = graph.node(value.node);
      if (is_scalar_constant(from)) {
        found->second = {add_to_region(from, {}), 0};
        constants.push_back(value.node);
        return found->second;
      }
      NodeInit init;
      init.op = &placeholder_;
      init.name = region.unique_name(from.name());
      init.outputs = {graph.spec(value)};
      found->second = {region.add(std::move(init)), 0};
      region.add_parameter(found->second.node);
      inputs.push_back(value);
      return found->second;
    };
    for (const NodeId id : nodes) {  // parameters first, in the order in which they print
      for (const ValueId input : graph.node(id).inputs()) {
        if (groups.group_of(input.node) != number) enter(input);
      }
    }
    std::vector<bool> is_result;
    for (const NodeId id : nodes) {
      SmallVector<ValueId, 2> arguments;
      for (const ValueId input : graph.node(id).inputs()) arguments.push_back(enter(input));
      const ValueId made{add_to_region(graph.node(id), std::move(arguments)), 0};
      inside[{id, 0}] = made;
      is_result.push_back(std::ranges::any_of(edit.uses({id, 0}), [&](const Use& use) {
        return !use.user.valid() || groups.group_of(use.user) != number;
      }));
      if (is_result.back()) region.add_result(made);
    }
    if (region.results().empty()) return;  // nothing reads any of it

    const Node& last = graph.node(nodes.back());
    const std::span<const NodeId> controls = last.controls();
    Rewriter::NewNode fused{.op = fused_.name, .name = last.name(), .inputs = std::move(inputs)};
    fused.controls.assign(controls.begin(), controls.end());
    fused.regions.push_back(std::move(region));
    fused.origin = nodes.back();
    fused.why = "element-wise neighbours";
    const NodeId made = edit.insert(std::move(fused));
    names.emplace_back(made, last.name());
    std::uint32_t output = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      Rewriter::Replacement& replacement = gone.emplace_back(Rewriter::Replacement{nodes[i]});
      if (is_result[i]) replacement.to.push_back({made, output++});
    }
  }

  FuseElementwiseOptions options_;
  const Topology* topology_ = nullptr;
  bool unplaced_on_cpu_ = true;
  bool may_move_ = false;  // may nodes without a device be put on one that is no CPU?
  const OpDef& fused_ = OpRegistry::global().get("fused");
  const OpDef& placeholder_ = OpRegistry::global().get("placeholder");
};

}  // namespace

std::unique_ptr<Pass> make_fuse_elementwise(FuseElementwiseOptions options) {
  if (options.max_nodes < 2)
    throw BadOptionValue(str("max_nodes must be at least 2, got ", options.max_nodes));
  return std::make_unique<FuseElementwise>(options);
}

void internal::register_fuse_elementwise(PassRegistry& registry) {
  add_pass(registry, fuse_elementwise_options(), make_fuse_elementwise);
}

}  // namespace lockstep
