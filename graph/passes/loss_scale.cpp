// graph/passes/loss_scale.cpp - gradients computed from a loss times a scale, for mixed-precision.
//
// Per level (a graph, or the code of a replica, or a branch) in which gradients() began:
//
//   1 (the seed) --> mul(scale) --> ... gradients ... --> mul(1 / scale) --> readers outside of them
//
//   finite?(all gradients of updates) --> cond { the updates } { nothing }
//                                     --> scale, good steps
//
// Gradients are linear in the seed, so that all of them carry the scale once; powers of two leave their bits as they were.
// Regions of nodes that gradients() made carry it too: what leaves them flows on.
#include "lockstep/graph/passes/internal/loss_scale.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ir/internal/gradient_nodes.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/internal/conditional_updates.h"
#include "lockstep/graph/passes/internal/summed_gradients.h"
#include "lockstep/graph/transform/pass.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/graph/transform/sync.h"

namespace lockstep::internal {
namespace {

constexpr double kLargestScale = 1 << 24;
constexpr std::string_view kForTheScale = "the scale of the loss";

// Does the pass scale one of the level's seeds already?
bool is_scaled(const Graph& level, std::string_view pass) {
  return std::ranges::any_of(level.nodes(), [&](const Node& node) {
    const Provenance& from = node.provenance();
    return from.made_by.valid() && level.text(from.made_by) == pass && from.why.valid() &&
           level.text(from.why) == kForTheScale && std::ranges::any_of(node.inputs(), [&](ValueId input) {
             return is_gradient_seed(level.node(input.node));
           });
  });
}

bool applies_gradients(const Node& node) {
  const auto& update = node.op().traits.updates_variable;
  return update && update->gradient;
}

// An update in this region, or in one inside it, by a gradient that is not computed there. Null: there is none.
const Node* update_by_given(const Graph& region) {
  const bool seeded = std::ranges::any_of(region.nodes(), is_gradient_seed);
  for (const Node& node : region.nodes()) {
    if (!seeded && applies_gradients(node)) return &node;
    if (is_gradient_share(node)) continue;
    for (const Graph& inner : node.regions()) {
      if (const Node* const found = update_by_given(inner)) return found;
    }
  }
  return nullptr;
}

class LevelScale {
 public:
  LevelScale(Graph& outermost, const SyncAnalysis& sync, Graph& level, const LossScale& how)
      : outermost_(outermost), sync_(sync), graph_(level), how_(how) {}

  // Returns false if nothing is to be done here.
  bool run() {
    find_flows();
    if (seeds_.empty()) return false;
    const std::vector<ConditionalNode> nodes = conditional_nodes(graph_, outermost_);
    const GradientUpdates updates = gradient_updates(sync_, graph_);
    std::vector<NodeId> shares;
    if (updates.replicated) shares = unsummed(sync_, graph_, updates.common);
    is_changing_ = how_.growth_steps > 0 && !nodes.empty();
    const std::vector<bool> waits = wait_for(nodes);
    if (is_changing_) declare(nodes);
    edit_.emplace(graph_, how_.pass, &outermost_);
    origin_ = seeds_.front();
    read_scale();
    scale_seeds();
    leave_flows();
    if (!is_changing_) return true;
    sum_shares(*edit_, shares);
    // What waits for no update decides for all of them, the others for themselves besides.
    is_own_.assign(graph_.id_bound(), false);
    for (const NodeId id : updates.own) is_own_[id.index()] = true;
    check(nodes, [&](NodeId id) { return !waits[id.index()]; });
    for (std::span<const ConditionalNode> rest = nodes; !rest.empty();) {
      const std::span<const ConditionalNode> now = take_depth(rest);
      check(now, [&](NodeId id) { return waits[id.index()]; });
      move_into_branch(*edit_, outermost_, how_.pass, now, *finite_, "loss_scale/apply", nullptr);
    }
    change_scale();
    return true;
  }

 private:
  [[noreturn]] void fail(const std::string& message, const Node& node) const {
    throw PassError(how_.pass, message, place_of(node));
  }

  // --- what carries the scale

  void find_flows() {
    flows_.assign(graph_.id_bound(), NodeId());
    for (const NodeId id : graph_.topological_order()) {
      const Node& node = graph_.node(id);
      if (is_gradient_seed(node)) {
        seeds_.push_back(id);
        flows_[id.index()] = id;
        continue;
      }
      if (!is_gradient_share(node)) continue;
      NodeId& flow = flows_[id.index()];
      for (const ValueId input : node.inputs()) {
        const NodeId from = flows_[input.node.index()];
        if (!from.valid() || !is_floating(graph_.spec(input).dtype)) continue;
        if (flow.valid() && flow != from) {
          fail(
              "derives gradients from other gradients: their scales would multiply. Compute second "
              "derivatives in bf16 (dtype=bf16), or without a scale (loss_scale=1)",
              node);
        }
        flow = from;
      }
    }
    if (seeds_.empty()) expect_no_gradients();
  }

  void expect_no_gradients() const {
    for (const Node& node : graph_.nodes()) {
      if (!applies_gradients(node)) continue;
      const Node& gradient = graph_.node(node.inputs()[node.op().traits.updates_variable->operand].node);
      if (!is_gradient_share(gradient)) continue;
      fail(
          "the graph does not say where its gradients begin: it was read from the text form, or another pass "
          "came before. Run mixed-precision right behind gradients(), or without a scale (loss_scale=1)",
          gradient);
    }
  }

  // By node: is the gradient of this update computed after one of `nodes` has run?
  std::vector<bool> wait_for(std::span<const ConditionalNode> nodes) const {
    std::vector<bool> moves(graph_.id_bound()), after(graph_.id_bound()), waits(graph_.id_bound());
    for (const ConditionalNode& each : nodes) moves[each.node.index()] = true;
    for (const NodeId id : graph_.topological_order()) {
      const Node& node = graph_.node(id);
      const auto is_late = [&](NodeId before) { return moves[before.index()] || after[before.index()]; };
      after[id.index()] =
          std::ranges::any_of(node.inputs(), [&](ValueId input) { return is_late(input.node); }) ||
          std::ranges::any_of(node.controls(), is_late);
      if (applies_gradients(node))
        waits[id.index()] = is_late(node.inputs()[node.op().traits.updates_variable->operand].node);
    }
    return waits;
  }

  void scale_seeds() {
    for (const NodeId seed : seeds_) {
      const ValueId value{seed, 0};
      const std::vector<Use> uses = edit_->uses(value);
      const ValueId scaled = times(value, scale_, str(graph_.node(seed).name(), "/scaled"), seed);
      for (const Use& use : uses) {
        if (use.user.valid() && is_gradient_share(graph_.node(use.user)))
          edit_->set_input(use.user, use.index, scaled);
      }
    }
  }

  // What is read outside of gradients() is read without the scale.
  void leave_flows() {
    std::vector<ValueId> values;
    const std::size_t bound = flows_.size();  // nodes made since are none of gradients()
    for (const Node& node : graph_.nodes()) {
      if (node.id().index() >= bound || !is_gradient_share(node) || !flows_[node.id().index()].valid())
        continue;
      for (std::uint32_t output = 0; output < node.outputs().size(); ++output) {
        if (is_floating(node.outputs()[output].dtype)) values.push_back({node.id(), output});
      }
    }
    std::optional<std::vector<ValueId>> results;
    for (const ValueId value : values) {
      std::vector<Use> outside = edit_->uses(value);
      std::erase_if(outside, [&](const Use& use) {
        return use.user.valid() && use.user.index() < bound && is_gradient_share(graph_.node(use.user));
      });
      if (outside.empty()) continue;
      const ValueId plain =
          times(value, inverse_, str(graph_.node(value.node).name(), "/unscaled"), value.node);
      for (const Use& use : outside) {
        if (use.user.valid()) {
          edit_->set_input(use.user, use.index, plain);
        } else {
          if (!results) results = graph_.results();
          (*results)[use.index] = plain;
        }
      }
    }
    if (results) edit_->set_results(std::move(*results));
  }

  // 16 bits are multiplied in f32.
  ValueId times(ValueId value, ValueId factor, const std::string& name, NodeId origin) {
    const DType dtype = graph_.spec(value).dtype;
    const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const ValueId product = insert("mul", name, {as(value, wide, origin), as(factor, wide, origin)}, origin);
    return as(product, dtype, origin);
  }

  ValueId as(ValueId value, DType dtype, NodeId origin) {
    if (graph_.spec(value).dtype == dtype) return value;
    const std::string name = str(graph_.node(value.node).name(), "/", dtype);
    const NodeId made = edit_->insert({.op = "cast",
                                       .name = name,
                                       .inputs = {value},
                                       .attributes = {{"dtype", dtype}},
                                       .origin = origin,
                                       .why = kForTheScale});
    return {made, 0};
  }

  ValueId insert(std::string_view op, const std::string& name, std::vector<ValueId> inputs, NodeId origin) {
    const NodeId made = edit_->insert(
        {.op = op, .name = name, .inputs = std::move(inputs), .origin = origin, .why = kForTheScale});
    return {made, 0};
  }

  // --- the scale

  void declare(std::span<const ConditionalNode> nodes) {
    std::vector<std::string> variables = trained_variables(nodes, graph_, outermost_);
    const std::string device = outermost_.find_variable(variables.front())->device;
    const std::string tag = tag_of("loss_scale", std::move(variables));
    VariableDecl decl;
    decl.name = "loss_scale_" + tag;
    decl.spec = {DType::kF32, {}};
    decl.initial = Tensor::full(DType::kF32, Shape{}, how_.scale);
    decl.aggregation = Aggregation::kOnlyFirstReplica;
    decl.trainable = false;
    decl.device = device;
    scale_variable_ = declare_free(outermost_, decl);
    decl.name = "loss_scale_" + tag + "/good_steps";
    decl.spec = {DType::kI64, {}};
    decl.initial = {};
    good_variable_ = declare_free(outermost_, decl);
  }

  ValueId read(const std::string& variable) {
    return {edit_->insert({.op = "read",
                           .name = variable,
                           .attributes = {{"variable", VariableRef{variable}}},
                           .origin = origin_}),
            0};
  }

  ValueId constant(Tensor value, std::string_view name) {
    return {
        edit_->insert(
            {.op = "constant", .name = name, .attributes = {{"value", std::move(value)}}, .origin = origin_}),
        0};
  }

  void read_scale() {
    if (!is_changing_) {
      scale_ = constant(Tensor::full(DType::kF32, Shape{}, how_.scale), "loss_scale");
      inverse_ = constant(Tensor::full(DType::kF32, Shape{}, 1 / how_.scale), "loss_scale/inverse");
      return;
    }
    scale_ = read(scale_variable_);
    inverse_ = insert("reciprocal", "loss_scale/inverse", {scale_}, origin_);
  }

  // From here on updates also ask whether the gradients of these ones, those that `is_asked` names, are finite on all replicas.
  template <class IsAsked>
  void check(std::span<const ConditionalNode> nodes, const IsAsked& is_asked) {
    std::vector<ValueId> gradients, own;
    for (const ConditionalNode& each : nodes) {
      const Node& node = graph_.node(each.node);
      const OpTraits::Update& update = *node.op().traits.updates_variable;
      if (!update.gradient || !is_asked(each.node)) continue;
      (is_own_[each.node.index()] ? own : gradients).push_back(node.inputs()[update.operand]);
    }
    const std::size_t common = gradients.size();  // so many of them are the same on all replicas
    gradients.insert(gradients.end(), own.begin(), own.end());
    if (gradients.empty()) {
      if (!finite_) finite_ = constant(Tensor::full(DType::kBool, Shape{}, 1), "loss_scale/finite");
      return;
    }
    const auto are_finite = [](std::span<const Value> of) {
      Value all;
      for (const Value& gradient : of) {
        // A sum is finite if its terms are, unless they are so large that training has gone wrong.
        const DType dtype = gradient.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
        const Value one = isfinite(sum(cast(gradient, dtype)));
        all = all.valid() ? logical_and(all, one) : one;
      }
      return all;
    };
    const auto make = [&](GraphBuilder&, std::span<const Value> in) {
      std::vector<Value> made;
      if (common > 0) made.push_back(are_finite(in.first(common)));
      if (common < in.size()) {
        const Value mine = cast(are_finite(in.subspan(common)), DType::kF32);
        made.push_back(greater(all_reduce(ReduceOp::kMin, mine), 0.5));
      }
      return made;
    };
    const std::vector<ValueId> made =
        edit_->build(gradients, make, {.origin = origin_, .scope = "loss_scale"});
    for (const ValueId one : made) {
      finite_ = finite_ ? insert("logical_and", "loss_scale/finite", {*finite_, one}, origin_) : one;
    }
  }

  void change_scale() {
    const ValueId good = read(good_variable_);
    const ValueId inputs[] = {scale_, good, *finite_};
    const auto next = [&](GraphBuilder&, std::span<const Value> in) {
      const Value more = in[1] + std::int64_t{1};
      const Value grows = greater_equal(more, how_.growth_steps);
      const Value larger = minimum(in[0] * 2.0, kLargestScale), smaller = maximum(in[0] * 0.5, 1.0);
      const Value none = zeros_like(in[1]);
      return std::vector<Value>{where(in[2], where(grows, larger, in[0]), smaller),
                                where(in[2], where(grows, none, more), none)};
    };
    const std::vector<ValueId> made = edit_->build(inputs, next, {.origin = origin_, .scope = "loss_scale"});
    assign(scale_variable_, made[0], scale_.node);
    assign(good_variable_, made[1], good.node);
  }

  void assign(const std::string& variable, ValueId value, NodeId after) {
    const std::string name = variable + "/next";
    edit_->insert({.op = "assign",
                   .name = name,
                   .inputs = {value},
                   .attributes = {{"variable", VariableRef{variable}}},
                   .controls = {after},
                   .origin = origin_});
  }

  Graph& outermost_;
  const SyncAnalysis& sync_;
  Graph& graph_;
  const LossScale& how_;
  std::optional<Rewriter> edit_;
  std::vector<NodeId> flows_;  // by node: the seed that its values are multiples of; none: no gradient
  std::vector<NodeId> seeds_;
  NodeId origin_;
  bool is_changing_ = false;
  std::string scale_variable_, good_variable_;
  ValueId scale_, inverse_;
  std::vector<bool> is_own_;       // by update: of a variable of which each replica has its own
  std::optional<ValueId> finite_;  // whether all gradients are that were asked about so far
};

// Levels in the order of for_each_level(), without those that gradients() made.
void visit_plain_levels(Graph& graph, const std::function<void(Graph& level)>& visit) {
  std::vector<NodeId> outer;
  for (const Node& node : graph.nodes()) {
    if (!node.regions().empty() && !is_gradient_share(node)) outer.push_back(node.id());
  }
  for (const NodeId id : outer) {
    for (std::size_t i = 0; i < graph.node(id).regions().size(); ++i)
      visit_plain_levels(graph.region(id, i), visit);
  }
  visit(graph);
}

}  // namespace

bool scale_gradients(Graph& graph, const LossScale& how) {
  bool scaled = false;
  visit_plain_levels(graph, [&](Graph& level) {
    scaled = scaled || is_scaled(level, how.pass);
    if (how.growth_steps == 0 || std::ranges::none_of(level.nodes(), is_gradient_seed)) return;
    for (const Node& node : level.nodes()) {
      if (is_gradient_share(node)) continue;
      for (const Graph& region : node.regions()) {
        if (const Node* const update = scaled ? nullptr : update_by_given(region)) {
          throw PassError(how.pass,
                          "a region updates a variable by a gradient from outside of it, and cannot hold it "
                          "back where that is not finite; keep the scale (growth_steps=0), or use bf16",
                          place_of(*update));
        }
      }
    }
  });
  if (scaled) return false;
  const SyncAnalysis sync(graph);
  bool changed = false;
  visit_plain_levels(graph,
                     [&](Graph& level) { changed = LevelScale(graph, sync, level, how).run() || changed; });
  return changed;
}

}  // namespace lockstep::internal
