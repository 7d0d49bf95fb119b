// graph/passes/fuse_attention.cpp - decides where attention is one node, and makes it.
#include "lockstep/graph/passes/fuse_attention.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/ops/fused/internal/attention.h"
#include "lockstep/graph/passes/internal/attention_layout.h"
#include "lockstep/graph/passes/internal/attention_pattern.h"
#include "lockstep/graph/passes/internal/joining.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

using internal::AttentionPattern;

// What kernels of cards take: tiles of 8 elements, rows that fit registers.
constexpr std::int64_t kTile = 8, kWidest = 128;

const OptionTable<FuseAttentionOptions>& fuse_attention_options() {
  static const auto table =
      OptionTable<FuseAttentionOptions>("fuse-attention",
                                        "attention becomes one node, and its gradient another")
          .option("device", &FuseAttentionOptions::device,
                  "where nodes without a device will run; empty: the first device")
          .option("cpu", &FuseAttentionOptions::cpu, "on CPUs too")
          .option("f32", &FuseAttentionOptions::f32, "f32 too, on devices other than CPUs");
  return table;
}

class AttentionOfLevel {
 public:
  AttentionOfLevel(Rewriter& edit, const Graph& outermost)
      : edit_(edit), graph_(edit.graph()), is_replica_code_(is_replica_code(outermost, edit.graph())) {}

  // `on_cpu` says of a product whether it runs on a CPU; none: not where attention may be one node.
  template <class OnCpu>
  void join(OnCpu&& on_cpu) {
    const std::vector<NodeId> order = graph_.topological_order();
    places_.resize(graph_.id_bound());
    for (std::size_t i = 0; i < order.size(); ++i) places_[order[i].index()] = i;
    for (const NodeId id : order) {
      if (!graph_.contains(id)) continue;  // it is a part of what was found before
      const std::optional<bool> is_on_cpu = on_cpu(graph_.node(id));
      if (!is_on_cpu) continue;
      const std::optional<AttentionPattern> found = internal::find_attention(edit_, id);
      if (found && (*is_on_cpu || has_widths_of_cards(*found)) && is_free(*found)) replace(*found);
    }
    for (const NodeId id : made_) internal::fold_layout(edit_, id);
    std::ranges::sort(scales_);
    scales_.erase(std::unique(scales_.begin(), scales_.end()), scales_.end());
    for (const NodeId id : scales_) {
      if (!edit_.is_used(id)) edit_.erase(id);
    }
  }

 private:
  bool has_widths_of_cards(const AttentionPattern& found) const {
    const std::int64_t width = graph_.spec(found.q).shape.dim(-1);
    return width == graph_.spec(found.v).shape.dim(-1) && width > 0 && width % kTile == 0 && width <= kWidest;
  }

  bool belong_together(const std::vector<NodeId>& nodes) const {
    return std::ranges::all_of(nodes, [&](NodeId id) {
      return internal::join_key(graph_.node(id), is_replica_code_) ==
             internal::join_key(graph_.node(nodes.back()), is_replica_code_);
    });
  }

  bool is_free(const AttentionPattern& found) const {
    const NodeId out = found.forward.back();
    const auto is_waited_for = [&](NodeId id) { return id != out && !edit_.control_users(id).empty(); };
    if (!belong_together(found.forward) || std::ranges::any_of(found.forward, is_waited_for)) return false;
    if (found.backward.empty()) return true;
    const Node &forward = graph_.node(out), &backward = graph_.node(found.backward.front());
    // What flows into v will follow from v and from out, which it did not before. In this order it does not lead to them, and with
    // these edges in the graph every result of a node that is made follows from all that this node reads: there is no cycle.
    const auto is_after = [&](NodeId id) { return places_[id.index()] > places_[out.index()]; };
    return forward.device() == backward.device() &&
           forward.provenance().replica == backward.provenance().replica && belong_together(found.backward) &&
           std::ranges::none_of(found.backward, is_waited_for) &&
           std::ranges::all_of(found.backward, is_after);
  }

  NodeId insert(std::string_view op, NodeId last, std::vector<ValueId> inputs,
                std::vector<Attribute> attributes, std::string_view why) {
    const Node& origin = graph_.node(last);
    Rewriter::NewNode made{.op = op, .name = origin.name()};
    made.inputs = std::move(inputs);
    made.attributes = std::move(attributes);
    made.controls.assign(origin.controls().begin(), origin.controls().end());
    made.origin = last;
    made.why = why;
    const NodeId id = edit_.insert(std::move(made));
    places_.resize(graph_.id_bound());
    places_[id.index()] = places_[last.index()];
    return id;
  }

  void replace(const AttentionPattern& found) {
    std::vector<ValueId> inputs = {found.q, found.k, found.v};
    std::vector<Attribute> attributes = {{"scale", found.scale}};
    if (found.mask) {
      inputs.push_back(*found.mask);
      attributes.push_back({"mask", true});
    }
    if (found.rate) {
      attributes.push_back({"rate", *found.rate});
      attributes.push_back({"key", found.key});
    }
    const NodeId out = found.forward.back();
    const NodeId forward =
        insert(internal::kAttention, out, inputs, attributes, "scaled dot-product attention");
    std::vector<std::pair<NodeId, std::string>> names = {{forward, std::string(graph_.node(out).name())}};
    std::vector<Rewriter::Replacement> gone;
    const auto go = [&](const std::vector<NodeId>& nodes) {
      for (const NodeId id : nodes) {
        gone.push_back({id});
        for (const ValueId input : graph_.node(id).inputs()) {
          if (&graph_.node(input.node).op() == &constant_) scales_.push_back(input.node);
        }
      }
    };
    go(found.forward);
    gone.back().to = {{forward, 0}};
    if (!found.backward.empty()) {
      inputs.insert(inputs.end(), {ValueId{forward, 0}, ValueId{forward, 1}, found.flow});
      const NodeId last =
          *std::ranges::max_element(found.backward, {}, [&](NodeId id) { return places_[id.index()]; });
      const NodeId backward = insert(internal::kAttentionGrad, last, std::move(inputs), std::move(attributes),
                                     "what flows back through attention");
      names.emplace_back(backward, graph_.node(last).name());
      go(found.backward);
      for (Rewriter::Replacement& each : gone) {
        const NodeId ends[] = {found.dq, found.dk, found.dv};
        for (std::uint32_t i = 0; i < 3; ++i) {
          if (each.node == ends[i]) each.to = {{backward, i}};
        }
      }
    }
    edit_.replace_and_erase(gone);
    for (const auto& [id, name] : names) edit_.rename(id, name);
    made_.push_back(forward);
  }

  Rewriter& edit_;
  const Graph& graph_;
  bool is_replica_code_;
  std::vector<std::size_t> places_;  // by id: in an order in which inputs come first
  std::vector<NodeId> made_;
  std::vector<NodeId> scales_;  // constants that may be unread now
  const OpDef& constant_ = OpRegistry::global().get("constant");
};

class FuseAttention final : public Pass {
 public:
  explicit FuseAttention(FuseAttentionOptions options) : options_(std::move(options)) {}
  std::string_view name() const override { return "fuse-attention"; }
  std::string to_string() const override { return fuse_attention_options().print(options_); }

 private:
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    topology_ = context.topology;
    bool changed = false;
    for_each_level(graph, [&](Graph& level) { changed = fuse(level, graph) || changed; });
    return outcome_of(changed);
  }

  bool fuse(Graph& level, const Graph& outermost) const {
    const auto is_softmax = [&](const Node& node) { return &node.op() == &softmax_; };
    if (std::ranges::none_of(level.nodes(), is_softmax)) return false;
    Rewriter edit(level, name(), &outermost);
    AttentionOfLevel(edit, outermost).join([&](const Node& node) { return on_cpu(node); });
    return edit.changed();
  }

  std::optional<bool> on_cpu(const Node& product) const {
    const DType dtype = product.outputs()[0].dtype;
    if (&product.op() != &matmul_ || !is_floating(dtype)) return std::nullopt;
    const std::optional<Device> device = internal::device_of(product, options_.device, topology_);
    if (!device || device->kind == DeviceKind::kCpu) return options_.cpu ? std::optional(true) : std::nullopt;
    const DeviceFacts* const facts = topology_ == nullptr ? nullptr : topology_->find(*device);
    const OpRegistry& registry = OpRegistry::global();
    if (facts == nullptr || registry.kernel(forward_, facts->kernels) == nullptr ||
        registry.kernel(backward_, facts->kernels) == nullptr)
      return std::nullopt;
    const bool is_taken = size_of(dtype) == 2 || (dtype == DType::kF32 && options_.f32);
    return is_taken ? std::optional(false) : std::nullopt;
  }

  FuseAttentionOptions options_;
  const Topology* topology_ = nullptr;
  const OpDef& matmul_ = OpRegistry::global().get("matmul");
  const OpDef& softmax_ = OpRegistry::global().get("softmax");
  const OpDef& forward_ = OpRegistry::global().get(internal::kAttention);
  const OpDef& backward_ = OpRegistry::global().get(internal::kAttentionGrad);
};

}  // namespace

std::unique_ptr<Pass> make_fuse_attention(FuseAttentionOptions options) {
  if (!options.device.empty()) Device::parse(options.device);  // throws for a name that is none
  return std::make_unique<FuseAttention>(std::move(options));
}

void internal::register_fuse_attention(PassRegistry& registry) {
  add_pass(registry, fuse_attention_options(), make_fuse_attention);
}

}  // namespace lockstep
