// strategies/passes/insert_all_reduce.cpp - makes the values that replicas write into shared variables the
// same on all of them.
#include "lockstep/strategies/passes/insert_all_reduce.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/graph/transform/sync.h"
#include "lockstep/strategies/passes/internal/registrations.h"

namespace lockstep {

namespace {

constexpr std::string_view kInsertAllReduce = "insert-all-reduce";

// How the values of replicas become one.
enum class Combine : std::uint8_t { kSum, kMean, kFirst, kGather };

// An update whose operand replicas must combine.
struct Plan {
  NodeId update;
  Combine combine = Combine::kSum;
};

class SumLevel {
 public:
  SumLevel(Graph& graph, const Graph& outermost, const SyncAnalysis& sync)
      : graph_(graph), outermost_(outermost), sync_(sync), replicas_(sync.level_of(graph).replicas) {}

  bool run() {
    std::vector<Plan> plans;
    for (const Node& node : graph_.nodes()) {
      if (const std::optional<Combine> combine = needs(node)) plans.push_back({node.id(), *combine});
    }
    if (plans.empty()) return false;  // avoids building a Rewriter
    edit_.emplace(graph_, kInsertAllReduce, &outermost_);
    for (const Plan& plan : plans) apply(plan);
    return true;
  }

 private:
  std::optional<Combine> needs(const Node& node) const {
    const auto& update = node.op().traits.updates_variable;
    if (!update) return std::nullopt;
    const auto* variable = node.find<VariableRef>(update->attribute);
    const VariableDecl* decl = variable == nullptr ? nullptr : outermost_.find_variable(variable->name);
    if (decl == nullptr || sync_.has_own_copies(decl->name)) return std::nullopt;
    ValueId differs = node.inputs()[update->operand];
    bool equal = update->gradient ? sync_.is_summed(graph_, differs)
                                  : sync_.at(graph_, differs) == ReplicaKind::kMirrored;
    if (equal && update->indices) {
      differs = node.inputs()[*update->indices];
      equal = sync_.at(graph_, differs) == ReplicaKind::kMirrored;
    }
    if (equal) return std::nullopt;
    if (update->gradient) return Combine::kSum;
    switch (decl->aggregation) {
      case Aggregation::kSum: return Combine::kSum;
      case Aggregation::kMean: return Combine::kMean;
      case Aggregation::kOnlyFirstReplica: return Combine::kFirst;
      case Aggregation::kNone:
      case Aggregation::kSlices: break;
    }
    throw PassError(
        kInsertAllReduce,
        str("You must specify an aggregation method for '", decl->name, "': ", replicas_,
            " replicas write it, and the values may differ: ", node.name(), " <- ",
            sync_.explain(graph_, differs),
            ". Give the variable the aggregation sum, mean or only_first_replica; or make the value equal "
            "before (all_reduce, broadcast_replica); or let each replica have its own "
            "(synchronization on_read)"),
        place_of(node));
  }

  void apply(const Plan& plan) {
    const OpTraits::Update& update = *graph_.node(plan.update).op().traits.updates_variable;
    const ValueId operand = graph_.node(plan.update).inputs()[update.operand];
    if (!update.indices) {
      edit_->set_input(plan.update, update.operand, combined(operand, plan.combine, plan.update));
      return;
    }
    const ValueId indices = graph_.node(plan.update).inputs()[*update.indices];
    const Combine both = plan.combine == Combine::kFirst ? Combine::kFirst : Combine::kGather;
    edit_->set_input(plan.update, *update.indices, combined(indices, both, plan.update));
    ValueId rows = combined(operand, both, plan.update);
    if (plan.combine == Combine::kMean) rows = divided(rows, plan.update);
    edit_->set_input(plan.update, update.operand, rows);
  }

  // The combined value of all replicas: made once, however many updates take it.
  ValueId combined(ValueId value, Combine combine, NodeId update) {
    const auto key = std::make_pair(value, combine);
    if (const auto found = made_.find(key); found != made_.end()) return found->second;
    const std::string& name = graph_.node(value.node).name();
    const std::string why = str("for '", graph_.node(update).name(), "'");
    Rewriter::NewNode node;
    switch (combine) {
      case Combine::kSum:
      case Combine::kMean:
        node.op = "all_reduce";
        node.attributes = {{"reduce", std::string(combine == Combine::kSum ? "sum" : "mean")}};
        break;
      case Combine::kFirst: node.op = "broadcast_replica"; break;
      case Combine::kGather:
        node.op = "all_gather";
        node.attributes = {{"replicas", std::int64_t{0}}};  // what other replicas add is not known yet
        break;
    }
    const std::string base = str(name, "/", node.op);
    node.name = base;
    node.inputs = {value};
    node.origin = value.node;
    node.why = why;
    const ValueId made{edit_->insert(std::move(node)), 0};
    made_.emplace(key, made);
    return made;
  }

  // The rows divided by the number of replicas: a mean over replicas of sums of rows.
  ValueId divided(ValueId rows, NodeId update) {
    const auto found = divided_.find(rows);
    if (found != divided_.end()) return found->second;
    const DType dtype = graph_.spec(rows).dtype;
    if (!is_floating(dtype)) {
      throw PassError(kInsertAllReduce,
                      str("the mean of rows of ", graph_.spec(rows),
                          " is asked for: integers have none; use aggregation sum, or cast"),
                      place_of(graph_.node(update)));
    }
    const std::string& name = graph_.node(rows.node).name();
    const std::string count_name = str(name, "/replicas");
    const std::string mean_name = str(name, "/mean");
    const NodeId count = edit_->insert(
        {.op = "constant",
         .name = count_name,
         .attributes = {{"value", Tensor::full(dtype, Shape{}, static_cast<double>(replicas_))}},
         .origin = rows.node});
    const ValueId mean{
        edit_->insert({.op = "div", .name = mean_name, .inputs = {rows, {count, 0}}, .origin = rows.node}),
        0};
    divided_.emplace(rows, mean);
    return mean;
  }

  Graph& graph_;
  const Graph& outermost_;
  const SyncAnalysis& sync_;
  std::int64_t replicas_;
  std::optional<Rewriter> edit_;
  std::map<std::pair<ValueId, Combine>, ValueId> made_;
  std::map<ValueId, ValueId> divided_;
};

class InsertAllReduce final : public Pass {
 public:
  std::string_view name() const override { return kInsertAllReduce; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    const SyncAnalysis sync(graph);
    bool changed = false;
    for_each_level(graph, [&](Graph& level) {
      if (!sync.covers(level)) return;
      const SyncAnalysis::Level& seen = sync.level_of(level);
      if (seen.replicas > 1 && !seen.final) changed = SumLevel(level, graph, sync).run() || changed;
    });
    return outcome_of(changed);
  }
};

}  // namespace

std::unique_ptr<Pass> make_insert_all_reduce() { return std::make_unique<InsertAllReduce>(); }

void internal::register_insert_all_reduce(PassRegistry& registry) {
  add_pass(registry, "insert-all-reduce",
           "what replicas write into shared variables becomes the same on all of them",
           make_insert_all_reduce);
}

}  // namespace lockstep
