// graph/run/variable_stages.cpp - when the variables of a step are written.
#include "lockstep/graph/run/internal/variable_stages.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace lockstep::internal {

namespace {

class StageFinder {
 public:
  explicit StageFinder(const ResolvedGraph& resolved) : resolved_(resolved), graph_(resolved.graph()) {}

  VariableStages run() {
    count_accesses();
    decide();
    return std::move(found_);
  }

 private:
  struct Accesses {
    std::size_t writes = 0;
    std::size_t after_write = 0;
  };

  void count_accesses() {
    for (const NodeId id : resolved_.order()) {
      if (!resolved_.is_live(id)) continue;
      const Node& node = graph_.node(id);
      const Effect effects = effects_of(node);
      found_.draws_random = found_.draws_random || has(effects, Effect::kRandom);
      if (!has(effects, Effect::kReadsVariable | Effect::kWritesVariable)) continue;
      for (const VariableUse& use : variable_uses(node)) {
        Accesses& accesses = accesses_[use.name];
        if (accesses.writes > 0) ++accesses.after_write;
        if (use.writes) ++accesses.writes;
        VariableStage& stage = found_.variables[use.name];
        stage.written = stage.written || use.writes;
        found_.commits = found_.commits || use.writes;
      }
    }
    found_.commits = found_.commits || found_.draws_random;
  }

  // Written once, and not used after that.
  bool may_wait(const std::string& name) const {
    const Accesses& accesses = accesses_.at(name);
    return accesses.writes == 1 && accesses.after_write == 0;
  }

  // Which single updates can really wait for the commit? (Not those inside a region.)
  void decide() {
    std::vector<bool> read(graph_.id_bound(), false);
    for (const NodeId id : resolved_.order()) {
      if (!resolved_.is_live(id)) continue;
      for (const ValueId input : graph_.node(id).inputs()) read[input.node.index()] = true;
      for (const NodeId control : graph_.node(id).controls()) read[control.index()] = true;
    }
    for (const NodeId id : resolved_.order()) {
      const Node& node = graph_.node(id);
      if (!resolved_.is_live(id)) continue;
      const SmallVector<std::string, 1> names = updated_variables(node);
      if (names.empty()) continue;
      // The update needs a shadow if others read the new value or must run after it, or if an operand is
      // memory that the commit stage changes.
      bool fits = node.op().traits.infallible && node.op().traits.in_place && !read[id.index()];
      fits = fits && std::ranges::all_of(names, [&](const std::string& name) { return may_wait(name); });
      // An element-wise update may have the updated variable itself as an operand.
      const auto& update = node.op().traits.updates_variable;
      const bool plain = names.size() == 1 && update && !update->indices;
      for (const ValueId input : node.inputs()) {
        fits = fits && !is_written_variable(input, plain ? std::string_view(names[0]) : std::string_view());
      }
      if (!fits) continue;
      for (const std::string& name : names) found_.variables.at(name).in_commit = id;
    }
  }

  // Is the value the memory of another variable that this step writes, possibly through aliases?
  bool is_written_variable(ValueId value, std::string_view except) const {
    const Node* node = &graph_.node(value.node);
    while (resolved_.is_alias(*node)) node = &graph_.node(node->inputs()[0].node);
    const auto& attribute = node->op().traits.reads_variable;
    if (!attribute) return false;
    const std::string& name = node->find<VariableRef>(*attribute)->name;
    return name != except && found_.variables.at(name).written;
  }

  const ResolvedGraph& resolved_;
  const Graph& graph_;
  VariableStages found_;
  std::map<std::string, Accesses> accesses_;
};

}  // namespace

VariableStages find_variable_stages(const ResolvedGraph& resolved) { return StageFinder(resolved).run(); }

}  // namespace lockstep::internal
