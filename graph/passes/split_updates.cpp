// graph/passes/split_updates.cpp - merged updates become nodes of their own again.
#include "lockstep/graph/passes/split_updates.h"

#include <string>
#include <vector>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

constexpr std::string_view kSplitUpdates = "split-updates";
constexpr Effect kVariables = Effect::kReadsVariable | Effect::kWritesVariable;

class SplitUpdates final : public Pass {
 public:
  std::string_view name() const override { return kSplitUpdates; }

 private:
  PassOutcome run_on(Graph& graph, PassContext& /*context*/) override {
    bool changed = false;
    for_each_level(graph, [&](Graph& level) { changed = split_all(level, graph) || changed; });
    return outcome_of(changed);
  }

  bool split_all(Graph& level, const Graph& outermost) const {
    std::vector<NodeId> merged;
    for (const NodeId id : level.region_owners()) {
      if (level.node(id).op().traits.merges_updates) merged.push_back(id);
    }
    if (merged.empty()) return false;
    Rewriter edit(level, name(), &outermost);
    std::vector<Rewriter::Replacement> gone;
    gone.reserve(merged.size());
    for (const NodeId id : merged) gone.push_back(split(edit, id));
    edit.replace_and_erase(gone);
    return true;
  }

  static Rewriter::Replacement split(Rewriter& edit, NodeId id) {
    // Copies: inserting moves nodes.
    const std::vector<ValueId> inputs(edit.graph().node(id).inputs().begin(),
                                      edit.graph().node(id).inputs().end());
    const std::vector<NodeId> controls(edit.graph().node(id).controls().begin(),
                                       edit.graph().node(id).controls().end());
    const Graph region = edit.graph().node(id).regions()[0];
    const std::string device = edit.graph().node(id).device();
    const std::int32_t replica = edit.graph().node(id).provenance().replica;
    Rewriter::Replacement replacement{id};
    std::vector<NodeId> updates;
    for (const ValueId value : edit.inline_region(region, inputs, {}, replica, "one by one")) {
      replacement.to.push_back(value);
      if (updates.empty() || updates.back() != value.node) updates.push_back(value.node);
    }
    NameMap<NodeId> update_of;  // by variable
    for (const NodeId update : updates) {
      if (edit.graph().node(update).device() != device) edit.set_device(update, device);
      for (const std::string& name : updated_variables(edit.graph().node(update))) update_of[name] = update;
    }
    for (const NodeId before : controls) {
      const Node& node = edit.graph().node(before);
      const std::vector<VariableUse> uses = variable_uses(node);
      const Effect effects = effects_of(node);
      const bool only_variables = !uses.empty() && (effects | kVariables) == kVariables;
      if (!only_variables) {
        for (const NodeId update : updates) edit.add_control(update, before);
        continue;
      }
      for (const VariableUse& use : uses) {
        if (const auto found = update_of.find(use.name); found != update_of.end())
          edit.add_control(found->second, before);
      }
    }
    return replacement;
  }
};

}  // namespace

std::unique_ptr<Pass> make_split_updates() { return std::make_unique<SplitUpdates>(); }

void internal::register_split_updates(PassRegistry& registry) {
  add_pass(registry, std::string(kSplitUpdates), "merged updates become nodes of their own again",
           make_split_updates);
}

}  // namespace lockstep
