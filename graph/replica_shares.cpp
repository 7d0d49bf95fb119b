#include "lockstep/graph/internal/replica_shares.h"

#include <algorithm>

namespace lockstep::internal {

bool is_own_variable(const Graph& outermost, const std::string& name) {
  const VariableDecl* decl = outermost.find_variable(name);
  return decl != nullptr && decl->synchronization == Synchronization::kOnRead;
}

namespace {

Share join(Share a, Share b) { return std::max(a, b); }

class Visitor {
 public:
  using Shares = std::vector<Share>;

  Visitor(const Graph& outermost, const std::function<void(const SharedLevel& level)>& visit)
      : outermost_(outermost), visit_(visit) {}

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
    Shares results;
    for (const ValueId result : level.results()) results.push_back(shares[result.node.index()]);
    visit_({level, replicas, shares});
    return results;
  }

 private:
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
      if (variable != nullptr && is_own_variable(outermost_, variable->name)) return Share::kPart;
    }
    return in;
  }

  const Graph& outermost_;
  const std::function<void(const SharedLevel& level)>& visit_;
};

}  // namespace

void visit_shares(Graph& outermost, const std::function<void(const SharedLevel& level)>& visit) {
  Visitor(outermost, visit).visit(outermost, 1, {});
}

}  // namespace lockstep::internal
