#include "lockstep/graph/passes/clip_by_global_norm.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "lockstep/graph/builder.h"
#include "lockstep/graph/clipping.h"
#include "lockstep/graph/pass_options.h"
#include "lockstep/graph/rewriter.h"

namespace lockstep {

namespace {

constexpr std::string_view kName = "clip-by-global-norm";

// What a value of a replicated region is to a sum over replicas.
enum class Share : std::uint8_t {
  kConstant,  // the same everywhere, and no part of anything: a number, a variable
  kWhole,     // computed from sums over replicas
  kPart,      // of one replica
};

bool is_own(const Graph& outermost, const std::string& variable) {
  const VariableDecl* decl = outermost.find_variable(variable);
  return decl != nullptr && decl->synchronization == Synchronization::kOnRead;
}

Share join(Share a, Share b) { return std::max(a, b); }

class Clipper {
 public:
  Clipper(Graph& outermost, double norm) : outermost_(outermost), norm_(norm) {}

  bool run() {
    visit(outermost_, 1, {});
    return changed_;
  }

 private:
  using Shares = std::vector<Share>;  // by node: the most that any of its outputs is

  // Gives what the results are. `parameters` are what the level's parameters are.
  Shares visit(Graph& level, std::int64_t replicas, const Shares& parameters) {
    Shares shares(level.id_bound(), Share::kConstant);
    std::vector<bool> known(level.id_bound());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      shares[level.parameters()[i].index()] = parameters[i];
      known[level.parameters()[i].index()] = true;
    }
    for (const NodeId id : level.topological_order()) {
      const Node& node = level.node(id);
      if (known[id.index()]) continue;
      if (!node.regions().empty()) {
        shares[id.index()] = visit_regions(level, id, replicas, shares);
      } else if (replicas > 1) {
        shares[id.index()] = share_of(node, inputs_of(node, shares));
      }
    }
    clip_level(level, replicas, shares);
    Shares results;
    for (const ValueId result : level.results()) results.push_back(shares[result.node.index()]);
    return results;
  }

  static Share inputs_of(const Node& node, const Shares& shares) {
    Share all = Share::kConstant;
    for (const ValueId input : node.inputs()) all = join(all, shares[input.node.index()]);
    return all;
  }

  // What a node with regions gives.
  Share visit_regions(Graph& level, NodeId id, std::int64_t replicas, const Shares& shares) {
    const Node& node = level.node(id);
    const std::size_t regions = node.regions().size();
    const auto visit_all = [&](std::int64_t inside, const Shares& parameters) {
      Share all = Share::kConstant;
      for (std::size_t i = 0; i < regions; ++i) {
        for (const Share result : visit(level.region(id, i), inside, parameters)) all = join(all, result);
      }
      return all;
    };
    const std::size_t taken = node.regions()[0].parameters().size();
    const Share from_outside = inputs_of(node, shares);
    Shares parameters(taken, Share::kPart);
    switch (node.op().region_kind) {
      case RegionKind::kReplicated: {
        const auto shared = static_cast<std::size_t>(*node.find<std::int64_t>("shared"));
        for (std::size_t p = 0; p < shared; ++p) parameters[p] = Share::kConstant;
        return visit_all(*node.find<std::int64_t>("replicas"), parameters);
      }
      case RegionKind::kCond:
        for (std::size_t p = 0; p < taken; ++p) parameters[p] = shares[node.inputs()[p + 1].node.index()];
        return join(shares[node.inputs()[0].node.index()], visit_all(replicas, parameters));
      case RegionKind::kWhile: {
        // What a loop carries may become anything.
        const auto carried = static_cast<std::size_t>(*node.find<std::int64_t>("carried"));
        for (std::size_t p = carried; p < taken; ++p) parameters[p] = shares[node.inputs()[p].node.index()];
        return join(Share::kPart, visit_all(replicas, parameters));
      }
      case RegionKind::kNone: break;
    }
    // A merge function leaves the replicas; what it gives all of them is of all of them.
    if (const auto* single = node.find<std::vector<std::int64_t>>("single");
        single != nullptr && has(node.op().effects, Effect::kCollective)) {
      visit_all(1, Shares(taken, Share::kConstant));
      return std::ranges::find(*single, 0) == single->end() ? Share::kWhole : Share::kPart;
    }
    for (std::size_t p = 0; p < taken; ++p) parameters[p] = from_outside;
    return join(from_outside, visit_all(replicas, parameters));
  }

  Share share_of(const Node& node, Share in) const {
    const OpTraits& traits = node.op().traits;
    if (traits.collective && traits.same_on_all) return Share::kWhole;
    if (traits.sum_over_replicas) return Share::kConstant;
    if (traits.per_replica_source || traits.gives_replica || traits.replica_share) return Share::kPart;
    if (has(effects_of(node), Effect::kRandom | Effect::kHost | Effect::kOpaque)) return Share::kPart;
    if (traits.reads_variable) {
      const auto* variable = node.find<VariableRef>(*traits.reads_variable);
      if (variable != nullptr && is_own(outermost_, variable->name)) return Share::kPart;
    }
    return in;
  }

  void clip_level(Graph& level, std::int64_t replicas, const Shares& shares) {
    std::vector<NodeId> common, own;  // updates of variables that replicas keep equal, and of others
    for (const Node& node : level.nodes()) {
      const auto& update = node.op().traits.updates_variable;
      if (!update || !update->gradient) continue;
      const auto* variable = node.find<VariableRef>(update->attribute);
      const bool apart = replicas > 1 && variable != nullptr && is_own(outermost_, variable->name);
      (apart ? own : common).push_back(node.id());
    }
    if (common.empty() && own.empty()) return;
    changed_ = true;
    Rewriter edit(level, kName, &outermost_);
    if (replicas > 1) sum_shares(edit, common, shares);
    for (const std::vector<NodeId>& updates : {common, own}) {
      if (!updates.empty()) clip(edit, updates);
    }
  }

  static void sum_shares(Rewriter& edit, std::span<const NodeId> updates, const Shares& shares) {
    std::map<ValueId, ValueId> summed, gathered;
    const auto whole = [&](ValueId value, std::string_view op, std::map<ValueId, ValueId>& made) {
      const auto found = made.find(value);
      if (found != made.end()) return found->second;
      const std::string name = str(edit.graph().node(value.node).name(), "/", op);
      Rewriter::NewNode node{.op = op, .name = name, .inputs = {value}, .origin = value.node};
      if (&made == &summed) node.attributes = {{"reduce", std::string("sum")}};
      return made.emplace(value, ValueId{edit.insert(std::move(node)), 0}).first->second;
    };
    for (const NodeId id : updates) {
      const OpTraits::Update& update = *edit.graph().node(id).op().traits.updates_variable;
      const ValueId operand = edit.graph().node(id).inputs()[update.operand];
      if (shares[operand.node.index()] == Share::kWhole) continue;
      if (update.indices) {
        const ValueId indices = edit.graph().node(id).inputs()[*update.indices];
        edit.set_input(id, *update.indices, whole(indices, "all_gather", gathered));
        edit.set_input(id, update.operand, whole(operand, "all_gather", gathered));
      } else {
        edit.set_input(id, update.operand, whole(operand, "all_reduce", summed));
      }
    }
  }

  // The nodes that graph/clipping.h makes, over the updates' operands.
  void clip(Rewriter& edit, std::span<const NodeId> updates) const {
    const Graph& level = edit.graph();
    const SourceSite site = level.node(updates[0]).site();
    GraphBuilder builder;
    std::vector<Gradient> gradients;
    std::vector<ValueId> operands;
    for (const NodeId id : updates) {
      const Node& node = level.node(id);
      operands.push_back(node.inputs()[node.op().traits.updates_variable->operand]);
      const TensorSpec& spec = level.spec(operands.back());
      gradients.emplace_back(
          builder.placeholder(str("gradient_", operands.size()), spec.dtype, spec.shape, site));
    }
    for (const Gradient& clipped : clip_by_global_norm(std::span<const Gradient>(gradients), norm_, site))
      builder.result(clipped.dense(), site);
    const std::vector<ValueId> scaled = edit.inline_region(builder.finish(), operands, "clip_by_global_norm");
    for (std::size_t i = 0; i < updates.size(); ++i) {
      edit.set_input(updates[i], level.node(updates[i]).op().traits.updates_variable->operand, scaled[i]);
    }
  }

  Graph& outermost_;
  double norm_;
  bool changed_ = false;
};

class ClipByGlobalNorm final : public Pass {
 public:
  explicit ClipByGlobalNorm(const ClipByGlobalNormOptions& options) : options_(options) {}
  std::string_view name() const override { return kName; }
  std::string to_string() const override { return print_pass(kName, {{"norm", options_.norm}}); }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    return outcome_of(Clipper(graph, options_.norm).run());
  }

  ClipByGlobalNormOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_clip_by_global_norm(ClipByGlobalNormOptions options) {
  if (!std::isfinite(options.norm) || options.norm <= 0) {
    throw BadOptionValue(str(kName, ": norm must be finite and above 0, got ", options.norm));
  }
  return std::make_unique<ClipByGlobalNorm>(options);
}

}  // namespace lockstep
