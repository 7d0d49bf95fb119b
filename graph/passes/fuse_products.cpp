// graph/passes/fuse_products.cpp - a product of matrices takes along what follows it.
#include "lockstep/graph/passes/fuse_products.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/topology.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/ops/fused/internal/fused_matmul.h"
#include "lockstep/graph/ops/fused/internal/tile_program.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
#include "lockstep/graph/passes/internal/joining.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

const OptionTable<FuseProductsOptions>& fuse_products_options() {
  static const auto table =
      OptionTable<FuseProductsOptions>("fuse-products", "products take along what follows them")
          .option("device", &FuseProductsOptions::device,
                  "where nodes without a device will run; empty: the first device")
          .option("cpu", &FuseProductsOptions::cpu, "on CPUs too");
  return table;
}

// What is left of one level's graph to be joined, and how.
class ProductsOfLevel {
 public:
  // `on_cpu` by node: it runs on a CPU; not set: it is not to be joined.
  ProductsOfLevel(Rewriter& edit, const Graph& outermost, std::vector<std::optional<bool>> on_cpu)
      : edit_(edit),
        graph_(edit.graph()),
        is_replica_code_(is_replica_code(outermost, edit.graph())),
        on_cpu_(std::move(on_cpu)),
        is_taken_(edit.graph().id_bound(), false) {}

  void join() {
    const std::vector<NodeId> order = graph_.topological_order();
    stages_ = stages_of(order);
    join_sums(order);
    for (const NodeId id : order) {
      if (is_product(id)) take_what_follows(id);
    }
    edit_.replace_and_erase(gone_);
    for (const auto& [id, wanted] : names_) edit_.rename(id, wanted);
    std::ranges::sort(shapes_);
    shapes_.erase(std::unique(shapes_.begin(), shapes_.end()), shapes_.end());
    for (const NodeId id : shapes_) {
      if (!edit_.is_used(id)) edit_.erase(id);
    }
  }

 private:
  bool is(NodeId id, const OpDef& op) const { return &graph_.node(id).op() == &op; }
  bool is_free(NodeId id) const {
    return id.index() < on_cpu_.size() && on_cpu_[id.index()].has_value() && !is_taken_[id.index()] &&
           edit_.control_users(id).empty();
  }
  bool is_product(NodeId id) const {
    return is(id, matmul_) && is_free(id) && is_floating(graph_.node(id).outputs()[0].dtype);
  }

  // In the code of a replica gradients stay apart from other values: they have yet to be summed.
  bool belong_together(NodeId a, NodeId b) const {
    return internal::join_key(graph_.node(a), is_replica_code_) ==
           internal::join_key(graph_.node(b), is_replica_code_);
  }

  void replace(const std::vector<NodeId>& nodes, NodeId last, std::vector<ValueId> inputs,
               std::vector<Attribute> attributes, std::string_view why) {
    const Node& product = graph_.node(nodes.front());
    for (const Attribute& attribute : product.attributes()) attributes.push_back(attribute);
    Rewriter::NewNode fused{.op = internal::kFusedMatmul, .name = graph_.node(last).name()};
    fused.inputs = std::move(inputs);
    fused.attributes = std::move(attributes);
    fused.controls.assign(product.controls().begin(), product.controls().end());
    fused.origin = last;
    fused.why = why;
    const NodeId made = edit_.insert(std::move(fused));
    names_.emplace_back(made, graph_.node(last).name());
    for (const NodeId id : nodes) is_taken_[id.index()] = true;
    made_ = made;
  }

  // --- bias, relu, sums with other values

  // The only reader of a value that nothing else needs; invalid: there is none.
  NodeId only_reader(NodeId id) const {
    const std::vector<Use> uses = edit_.uses({id, 0});
    return uses.size() == 1 ? uses[0].user : NodeId();
  }

  static bool has_spec(const TensorSpec& spec, const TensorSpec& wanted) {
    return spec == wanted && spec.shape.is_known();
  }

  void take_what_follows(NodeId product) {
    const TensorSpec spec = graph_.node(product).outputs()[0];
    std::vector<NodeId> nodes = {product};
    std::vector<ValueId> inputs(graph_.node(product).inputs().begin(), graph_.node(product).inputs().end());
    std::vector<Attribute> attributes;
    for (bool has_bias = false;;) {
      const NodeId reader = is_free(nodes.back()) ? only_reader(nodes.back()) : NodeId();
      if (!reader.valid() || !is_free_reader(reader, product) || graph_.node(reader).outputs()[0] != spec)
        break;
      const std::span<const ValueId> read = graph_.node(reader).inputs();
      std::string_view then;
      if (is(reader, relu_)) {
        then = "relu";
      } else if (is(reader, relu_grad_)) {
        // On a card this is no epilogue, and better off among other element-wise nodes.
        if (has_bias || !*on_cpu_[product.index()] || read[0].node != nodes.back() ||
            !has_spec(graph_.spec(read[1]), spec))
          break;
        then = "relu_grad";
        inputs.push_back(read[1]);
      } else if (is(reader, add_)) {
        const ValueId other = read[read[0].node == nodes.back() ? 1 : 0];
        if (!has_bias && internal::is_bias(graph_.spec(other).shape, spec.shape)) {
          has_bias = true;
          attributes.push_back({"bias", true});
        } else if (has_spec(graph_.spec(other), spec)) {
          then = "add";
        } else {
          break;
        }
        inputs.push_back(other);
      } else {
        break;
      }
      nodes.push_back(reader);
      if (then.empty()) continue;
      attributes.push_back({"then", std::string(then)});
      break;
    }
    if (nodes.size() == 1 || !pays(nodes.back())) return;
    replace(nodes, nodes.back(), std::move(inputs), std::move(attributes), "a product and what follows it");
    for (const NodeId id : nodes) gone_.push_back({id});
    gone_.back().to = {{made_, 0}};
  }

  // Element-wise nodes that read one another in one stage can become one: fuse-elementwise joins them.
  bool are_neighbours(NodeId a, NodeId b) const {
    const Node &from = graph_.node(a), &to = graph_.node(b);
    return internal::computes_tiles(from) && internal::computes_tiles(to) &&
           from.outputs()[0].shape == to.outputs()[0].shape;
  }
  std::vector<std::uint32_t> stages_of(std::span<const NodeId> order) const {
    std::vector<std::uint32_t> stages(graph_.id_bound(), 0);
    for (const NodeId id : order) {
      for (const ValueId input : graph_.node(id).inputs()) {
        const std::uint32_t more = are_neighbours(input.node, id) ? 0 : 1;
        stages[id.index()] = std::max(stages[id.index()], stages[input.node.index()] + more);
      }
    }
    return stages;
  }

  // Alone, the product is written, and read by an element-wise node that writes the last value if anything but its neighbours
  // reads that. Joined, the last value is written, and read by each of the neighbours. Nothing is gained by as many passes over
  // memory.
  bool pays(NodeId last) const {
    std::size_t neighbours = 0;
    bool has_others = false;
    for (const Use& use : edit_.uses({last, 0})) {
      const bool is_neighbour = use.user.valid() && use.user.index() < stages_.size() &&
                                are_neighbours(last, use.user) &&
                                stages_[last.index()] == stages_[use.user.index()];
      if (is_neighbour) {
        ++neighbours;
      } else {
        has_others = true;
      }
    }
    return neighbours == 0 || (neighbours == 1 && has_others);
  }

  // The last of several nodes may be waited for.
  bool is_free_reader(NodeId reader, NodeId product) const {
    return reader.index() < on_cpu_.size() && on_cpu_[reader.index()].has_value() &&
           !is_taken_[reader.index()] && belong_together(reader, product);
  }

  // --- sums over the rows of a gradient

  // By id, how many nodes lie above it at most; those that rename a value or give its shape do not count. As long as every
  // other node has a higher level than what it reads, no node depends on itself. A node joined from two of one level
  // keeps it so.
  std::vector<std::uint32_t> levels_of(std::span<const NodeId> order) const {
    std::vector<std::uint32_t> levels(graph_.id_bound(), 0);
    for (const NodeId id : order) {
      const Node& node = graph_.node(id);
      const std::uint32_t more = node.op().traits.alias || node.op().traits.gives_shape ? 0 : 1;
      std::uint32_t& level = levels[id.index()];
      for (const ValueId input : node.inputs()) level = std::max(level, levels[input.node.index()] + more);
      for (const NodeId before : node.controls()) level = std::max(level, levels[before.index()] + more);
    }
    return levels;
  }

  // The value that this one is, before it was reshaped without a change to its rows of n elements.
  ValueId rows_of(ValueId value, std::int64_t n) const {
    while (graph_.node(value.node).op().traits.alias) {
      const ValueId input = graph_.node(value.node).inputs()[0];
      const Shape& shape = graph_.spec(input).shape;
      if (shape.rank() == 0 || shape.dim(-1) != n) break;
      value = input;
    }
    return value;
  }

  // Does the node sum all rows of its input into one of n elements?
  bool sums_rows(const Node& node) const {
    if (&node.op() != &sum_ && &node.op() != &sum_to_) return false;
    const Shape &from = graph_.spec(node.inputs()[0]).shape, &to = node.outputs()[0].shape;
    if (to.rank() != 1 || !to.is_known() || from.rank() < 2 || from.dim(-1) != to[0]) return false;
    if (&node.op() == &sum_to_) return true;
    std::vector<std::int64_t> rows;
    for (std::size_t axis = 0; axis + 1 < from.rank(); ++axis)
      rows.push_back(static_cast<std::int64_t>(axis));
    return internal::reduced_axes(*node.find<std::vector<std::int64_t>>("axes"), from.rank()) == rows;
  }

  void join_sums(std::span<const NodeId> order) {
    std::map<ValueId, std::vector<NodeId>> sums;  // by what they sum
    for (const NodeId id : order) {
      const Node& node = graph_.node(id);
      if (!is_candidate(id) || !is_floating(node.outputs()[0].dtype) || !sums_rows(node)) continue;
      sums[rows_of(node.inputs()[0], node.outputs()[0].shape[0])].push_back(id);
    }
    if (sums.empty()) return;
    const std::vector<std::uint32_t> levels = levels_of(order);
    for (const NodeId id : order) {
      if (!is(id, matmul_) || !is_candidate(id)) continue;
      const Node& product = graph_.node(id);
      if (graph_.spec(product.inputs()[0]).shape.rank() != 2 ||
          graph_.spec(product.inputs()[1]).shape.rank() != 2)
        continue;
      const auto transposes = [&](const char* name) {
        const bool* const found = product.find<bool>(name);
        return found != nullptr && *found;
      };
      for (const std::size_t which : {std::size_t{1}, std::size_t{0}}) {
        if (transposes(which == 0 ? "transpose_a" : "transpose_b") != (which == 0)) continue;
        const ValueId summed = product.inputs()[which];
        const std::int64_t n = graph_.spec(summed).shape.dim(-1);
        const auto found = sums.find(rows_of(summed, n));
        if (n == kUnknown || found == sums.end()) continue;
        const auto sum = std::ranges::find_if(found->second, [&](NodeId each) {
          return !is_taken_[each.index()] && levels[each.index()] == levels[id.index()] &&
                 belong_together(each, id);
        });
        if (sum == found->second.end()) continue;
        replace({id, *sum}, id, {product.inputs()[0], product.inputs()[1]},
                {{"sums", std::string(which == 0 ? "a" : "b")}}, "a product and the sum of what it reads");
        gone_.push_back({id, {{made_, 0}}});
        gone_.push_back({*sum, {{made_, 1}}});
        for (const ValueId shape : graph_.node(*sum).inputs().subspan(1)) shapes_.push_back(shape.node);
        break;
      }
    }
  }
  bool is_candidate(NodeId id) const { return on_cpu_[id.index()].has_value() && !is_taken_[id.index()]; }

  Rewriter& edit_;
  const Graph& graph_;
  bool is_replica_code_;
  std::vector<std::optional<bool>> on_cpu_;
  std::vector<bool> is_taken_;
  std::vector<std::uint32_t> stages_;  // by node that was there at first
  std::vector<NodeId> shapes_;         // of sums that are gone
  NodeId made_;                        // the last one
  std::vector<Rewriter::Replacement> gone_;
  std::vector<std::pair<NodeId, std::string>> names_;
  const OpDef& matmul_ = OpRegistry::global().get("matmul");
  const OpDef& add_ = OpRegistry::global().get("add");
  const OpDef& relu_ = OpRegistry::global().get("relu");
  const OpDef& relu_grad_ = OpRegistry::global().get("relu_grad");
  const OpDef& sum_ = OpRegistry::global().get("sum");
  const OpDef& sum_to_ = OpRegistry::global().get("sum_to");
};

class FuseProducts final : public Pass {
 public:
  explicit FuseProducts(FuseProductsOptions options) : options_(std::move(options)) {}
  std::string_view name() const override { return "fuse-products"; }
  std::string to_string() const override { return fuse_products_options().print(options_); }

 private:
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    topology_ = context.topology;
    bool changed = false;
    for_each_level(graph, [&](Graph& level) { changed = fuse(level, graph) || changed; });
    return outcome_of(changed);
  }

  bool fuse(Graph& level, const Graph& outermost) const {
    std::vector<std::optional<bool>> on_cpu(level.id_bound());
    bool has_product = false;
    for (const Node& node : level.nodes()) {
      on_cpu[node.id().index()] = where(node);
      has_product = has_product || (&node.op() == &matmul_ && on_cpu[node.id().index()].has_value());
    }
    if (!has_product) return false;
    Rewriter edit(level, name(), &outermost);
    ProductsOfLevel(edit, outermost, std::move(on_cpu)).join();
    return edit.changed();
  }

  // Does the node run on a CPU? None: it is not to be joined there.
  std::optional<bool> where(const Node& node) const {
    const std::optional<Device> device = internal::device_of(node, options_.device, topology_);
    if (!device || device->kind == DeviceKind::kCpu) return on_cpu();
    const DeviceFacts* const facts = topology_ == nullptr ? nullptr : topology_->find(*device);
    const OpRegistry& registry = OpRegistry::global();
    if (facts == nullptr || registry.kernel(fused_, facts->kernels) == nullptr) return std::nullopt;
    return false;
  }
  std::optional<bool> on_cpu() const { return options_.cpu ? std::optional(true) : std::nullopt; }

  FuseProductsOptions options_;
  const Topology* topology_ = nullptr;
  const OpDef& matmul_ = OpRegistry::global().get("matmul");
  const OpDef& fused_ = OpRegistry::global().get(internal::kFusedMatmul);
};

}  // namespace

std::unique_ptr<Pass> make_fuse_products(FuseProductsOptions options) {
  if (!options.device.empty()) Device::parse(options.device);  // throws for a name that is none
  return std::make_unique<FuseProducts>(std::move(options));
}

void internal::register_fuse_products(PassRegistry& registry) {
  add_pass(registry, fuse_products_options(), make_fuse_products);
}

}  // namespace lockstep
