// strategies/passes/order_collectives.cpp - collectives run in one fixed order.
#include "lockstep/strategies/passes/order_collectives.h"

#include <algorithm>
#include <vector>

#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/strategies/passes/internal/depths.h"
#include "lockstep/strategies/passes/internal/registrations.h"
#include "lockstep/strategies/proof/collective_schedule.h"

namespace lockstep {

namespace {

class OrderCollectives final : public Pass {
 public:
  std::string_view name() const override { return "order-collectives"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    bool changed = false;
    for_each_level(graph, [&](Graph& level) { changed = order(level) || changed; });
    if (context.records != nullptr)
      context.records->keep(std::make_shared<const CollectiveSchedule>(collective_schedule(graph)));
    return outcome_of(changed);
  }

  static bool order(Graph& level) {
    std::vector<NodeId> collectives;
    for (const NodeId id : level.topological_order()) {
      if (has(effects_of(level.node(id)), Effect::kCollective)) collectives.push_back(id);
    }
    if (collectives.size() < 2) return false;
    // Collectives that can start earlier come first, whatever order they were made in.
    const std::vector<std::uint32_t> depths = internal::depths_of(level);
    std::ranges::stable_sort(collectives, {}, [&](NodeId id) { return depths[id.index()]; });
    bool changed = false;
    NodeId last;
    for (const NodeId id : collectives) {
      const Node& node = level.node(id);
      const bool follows = !last.valid() ||
                           std::ranges::find(node.controls(), last) != node.controls().end() ||
                           std::ranges::find(node.inputs(), last, &ValueId::node) != node.inputs().end();
      if (!follows) {
        level.add_control(id, last);
        changed = true;
      }
      last = id;
    }
    return changed;
  }
};

}  // namespace

std::unique_ptr<Pass> make_order_collectives() { return std::make_unique<OrderCollectives>(); }

void internal::register_order_collectives(PassRegistry& registry) {
  add_pass(registry, "order-collectives", "collectives run in one order that is known beforehand",
           make_order_collectives);
}

}  // namespace lockstep
