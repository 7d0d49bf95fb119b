// strategies/passes/prove_sync.cpp - proves that replicas stay in lockstep, or says where they drift apart.
#include "lockstep/strategies/passes/prove_sync.h"

#include <algorithm>
#include <memory>

#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/replica_kind.h"
#include "lockstep/strategies/passes/internal/copies.h"
#include "lockstep/strategies/passes/internal/registrations.h"
#include "lockstep/strategies/proof/congruence.h"
#include "lockstep/strategies/proof/internal/drift.h"

namespace lockstep {

namespace {

const OptionTable<ProveSyncOptions>& prove_sync_options() {
  static const auto table =
      OptionTable<ProveSyncOptions>(
          "prove-sync", "proves that copies of variables stay equal, or says where replicas drift apart")
          .option("workers", &ProveSyncOptions::workers, "other workers have replicas, too");
  return table;
}

// From a value that workers do not have alike back to where that begins.
class Origin {
 public:
  Origin(const Graph& graph, const LevelClasses& mine, const LevelClasses& theirs)
      : graph_(graph), mine_(mine), theirs_(theirs) {}
  bool differs(ValueId value) const { return mine_.of(value) != theirs_.of(value); }

  std::string text(const Node& from) {
    constexpr std::size_t kShown = 12;
    std::string text;
    const Node* node = &from;
    for (std::size_t shown = 0; node != nullptr; ++shown) {
      if (shown < kShown) {
        const SourceSite site = node->site();
        text += str("\n  '", node->name(), "' (", node->op().name);
        if (site.known()) text += str(", ", site.file, ":", site.line);
        text += ")";
      }
      const auto input = std::ranges::find_if(node->inputs(), [&](ValueId value) { return differs(value); });
      const Node* const before = input == node->inputs().end() ? nullptr : &graph_.node(input->node);
      if (before == nullptr) {
        const std::string why = describe_difference(*node, graph_);
        text += str("\n  ", !why.empty()             ? why
                            : node->inputs().empty() ? "an input of one worker"
                                                     : "a branch or loop of one worker");
      }
      node = before;
    }
    return text;
  }

 private:
  const Graph& graph_;
  const LevelClasses& mine_;
  const LevelClasses& theirs_;
};

class ProveSync final : public Pass {
 public:
  explicit ProveSync(const ProveSyncOptions& options) : options_(options) {}
  std::string_view name() const override { return "prove-sync"; }
  std::string to_string() const override { return prove_sync_options().print(options_); }

 private:
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    if (internal::max_replicas(graph) > 0)
      throw PassError(name(), "there are replicated regions; run replicate first, which makes them flat");
    const auto made = std::make_shared<const Congruence>(
        graph, NameSet(), options_.workers ? Congruence::Workers::kSeveral : Congruence::Workers::kOne);
    const Congruence& proof = *made;
    std::vector<std::pair<const Node*, std::size_t>> path;
    check_agreement(proof, graph, proof.top(), path);
    check_variables(proof);
    if (options_.workers) {
      check_entries(graph, proof.top(), proof.stand_in());
      check_workers(proof);
    }
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

  // What all workers do together stands in branches and loops that all of them enter.
  void check_entries(const Graph& level, const LevelClasses& mine, const LevelClasses& theirs) const {
    for (const Node& node : level.nodes()) {
      if (!mine.has_regions(node.id())) continue;
      const bool is_loop = node.op().region_kind == RegionKind::kWhile;
      const bool differs = is_loop ? mine.region(node.id(), 0).of(node.regions()[0].results()[0]) !=
                                         theirs.region(node.id(), 0).of(node.regions()[0].results()[0])
                                   : mine.of(node.inputs()[0]) != theirs.of(node.inputs()[0]);
      if (differs && has(effects_of(node), Effect::kCollective)) {
        Origin origin(level, mine, theirs);
        throw PassError(
            name(),
            str("a collective stands in '", node.name(),
                "', which workers may enter differently: its predicate is not proven equal on all of them",
                is_loop ? std::string() : origin.text(level.node(node.inputs()[0].node)),
                "\nThere workers begin to differ: all_reduce the predicate, or compute it from values that "
                "are "
                "equal on all of them"),
            place_of(node));
      }
      for (std::size_t i = 0; i < node.regions().size(); ++i)
        check_entries(node.regions()[i], mine.region(node.id(), i), theirs.region(node.id(), i));
    }
  }

  void check_workers(const Congruence& proof) const {
    const std::vector<std::string> drifting = proof.drifting_between_workers();
    if (drifting.empty()) return;
    const Graph& graph = proof.graph();
    const Node* last = nullptr;
    for (const LevelClasses::Update& update : proof.top().updates()) {
      if (graph.variables()[proof.original(update.variable)].name == drifting[0])
        last = &graph.node(update.node);
    }
    std::string message = str("variable '", drifting[0],
                              "' would not stay equal on all workers: it ends the step with a value that is "
                              "not proven equal");
    if (last != nullptr) message += Origin(graph, proof.top(), proof.stand_in()).text(*last);
    message +=
        "\nThere workers begin to differ. all_reduce the value, or give the variable an aggregation; a "
        "branch or "
        "loop around it needs a predicate that is equal on all workers";
    if (drifting.size() > 1)
      message += str("\nThe same holds for ", drifting.size() - 1, " more, '", drifting[1], "' among them");
    throw PassError(name(), message, last == nullptr ? ErrorPlace{} : place_of(*last));
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

  ProveSyncOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_prove_sync(ProveSyncOptions options) {
  return std::make_unique<ProveSync>(options);
}

void internal::register_prove_sync(PassRegistry& registry) {
  add_pass(registry, prove_sync_options(), make_prove_sync);
}

}  // namespace lockstep
