// strategies/passes/prove_sync.cpp - proves that replicas stay in lockstep, or says where they drift apart.
#include "lockstep/strategies/passes/prove_sync.h"

#include <algorithm>
#include <memory>

#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/strategies/passes/internal/copies.h"
#include "lockstep/strategies/passes/internal/registrations.h"
#include "lockstep/strategies/proof/congruence.h"
#include "lockstep/strategies/proof/internal/drift.h"

namespace lockstep {

namespace {

class ProveSync final : public Pass {
 public:
  std::string_view name() const override { return "prove-sync"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    if (internal::max_replicas(graph) > 0)
      throw PassError(name(), "there are replicated regions; run replicate first, which makes them flat");
    const auto made = std::make_shared<const Congruence>(graph);
    const Congruence& proof = *made;
    std::vector<std::pair<const Node*, std::size_t>> path;
    check_agreement(proof, graph, proof.top(), path);
    check_variables(proof);
    // Later passes need not prove it again.
    if (context.analyses != nullptr) context.analyses->keep(made);
    return PassOutcome::kUnchanged;
  }

  // Checks the nodes that state that their inputs are equal.
  void check_agreement(const Congruence& proof, const Graph& level, const LevelClasses& classes,
                       std::vector<std::pair<const Node*, std::size_t>>& path) const {
    for (const Node& node : level.nodes()) {
      if (node.op().traits.is(ReplicaRole::kAgree)) {
        for (const ValueId input : node.inputs()) {
          if (classes.of(input) == classes.of(node.inputs()[0])) continue;
          internal::Drift drift(proof);
          for (const auto& [owner, region] : path) drift.enter(*owner, region);
          drift.follow(node.inputs()[0], input);
          const auto* because = node.find<std::string>("because");
          throw PassError(
              name(),
              str("the inputs of '", node.name(),
                  "' must be equal on all replicas, and are not proven to be:", drift.text(),
                  "\nThere replicas begin to differ. A branch or loop that all replicas enter together",
                  because == nullptr ? "" : str(" (this one because of ", *because, " in it)"),
                  " needs a predicate that is equal on all of them: all_reduce it, compute it from values "
                  "that "
                  "are, or give it to all as one input (InputSpec::shared)"),
              place_of(node));
        }
      }
      if (!classes.has_regions(node.id())) continue;
      for (std::size_t i = 0; i < node.regions().size(); ++i) {
        path.emplace_back(&node, i);
        check_agreement(proof, node.regions()[i], classes.region(node.id(), i), path);
        path.pop_back();
      }
    }
  }

  void check_variables(const Congruence& proof) const {
    const std::vector<std::string> drifting = proof.drifting();
    if (drifting.empty()) return;
    const std::vector<VariableDecl>& variables = proof.graph().variables();
    std::size_t copy = 0;
    while (variables[copy].copy_of != drifting[0] || proof.final(copy) == proof.final(proof.original(copy)))
      ++copy;
    internal::Drift drift(proof);
    drift.follow_variables(proof.original(copy), copy);
    std::string message = str(
        "variable '", drifting[0], "' would not stay equal on all replicas: '", variables[copy].name,
        "' ends the step with a value that is not proven equal", drift.text(),
        "\nThere replicas begin to differ. all_reduce the value, or give the variable an aggregation; "
        "a branch or loop around it needs a predicate that is equal on all replicas, and cross-device ops of "
        "one's own give all replicas the same. If copies may drift apart, say so: "
        "MirroredOptions::may_drift, or allow-drift(variables=",
        print_option(std::vector<std::string>{drifting[0]}), ")");
    if (drifting.size() > 1)
      message += str("\nThe same holds for ", drifting.size() - 1, " more, '", drifting[1], "' among them");
    throw PassError(name(), message, drift.start() == nullptr ? ErrorPlace{} : place_of(*drift.start()));
  }
};

}  // namespace

std::unique_ptr<Pass> make_prove_sync() { return std::make_unique<ProveSync>(); }

void internal::register_prove_sync(PassRegistry& registry) {
  add_pass(registry, "prove-sync",
           "proves that copies of variables stay equal, or says where replicas drift apart", make_prove_sync);
}

}  // namespace lockstep
