// graph/passes/clip_by_global_norm.cpp - scales all gradients of a step down together if their norm is too
// large.
#include "lockstep/graph/passes/clip_by_global_norm.h"

#include <cmath>
#include <map>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/train/clipping.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/rewriter.h"
#include "lockstep/graph/transform/sync.h"

namespace lockstep {

namespace {

constexpr std::string_view kClipByGlobalNorm = "clip-by-global-norm";

class Clipper {
 public:
  Clipper(Graph& outermost, double norm) : outermost_(outermost), norm_(norm), sync_(outermost) {}

  bool run() {
    for_each_level(outermost_, [&](Graph& level) { clip_level(level); });
    return changed_;
  }

 private:
  void clip_level(Graph& level) {
    const bool replicated = sync_.covers(level) && sync_.level_of(level).replicas > 1;
    std::vector<NodeId> common, own;  // updates of variables that replicas keep equal, and of others
    for (const Node& node : level.nodes()) {
      const auto& update = node.op().traits.updates_variable;
      if (!update || !update->gradient) continue;
      const auto* variable = node.find<VariableRef>(update->attribute);
      const bool apart = replicated && variable != nullptr && sync_.has_own_copies(variable->name);
      (apart ? own : common).push_back(node.id());
    }
    if (common.empty() && own.empty()) return;
    changed_ = true;
    const std::vector<NodeId> shares = replicated ? unsummed(level, common) : std::vector<NodeId>();
    Rewriter edit(level, kClipByGlobalNorm, &outermost_);
    sum_shares(edit, shares);
    for (const std::vector<NodeId>& updates : {common, own}) {
      if (!updates.empty()) clip(edit, updates);
    }
  }

  // The updates whose gradients are only one replica's share.
  std::vector<NodeId> unsummed(const Graph& level, std::span<const NodeId> updates) const {
    std::vector<NodeId> shares;
    for (const NodeId id : updates) {
      const Node& node = level.node(id);
      if (!sync_.is_summed(level, node.inputs()[node.op().traits.updates_variable->operand]))
        shares.push_back(id);
    }
    return shares;
  }

  static void sum_shares(Rewriter& edit, std::span<const NodeId> updates) {
    std::map<ValueId, ValueId> summed, gathered;
    const auto whole = [&](ValueId value, std::string_view op, std::map<ValueId, ValueId>& made) {
      const auto found = made.find(value);
      if (found != made.end()) return found->second;
      const std::string name = str(edit.graph().node(value.node).name(), "/", op);
      Rewriter::NewNode node{.op = op, .name = name, .inputs = {value}, .origin = value.node};
      if (&made == &summed) {
        node.attributes = {{"reduce", std::string("sum")}};
      } else {
        node.attributes = {{"replicas", std::int64_t{0}}};  // what other replicas add is not known yet
      }
      return made.emplace(value, ValueId{edit.insert(std::move(node)), 0}).first->second;
    };
    for (const NodeId id : updates) {
      const OpTraits::Update& update = *edit.graph().node(id).op().traits.updates_variable;
      const ValueId operand = edit.graph().node(id).inputs()[update.operand];
      if (update.indices) {
        const ValueId indices = edit.graph().node(id).inputs()[*update.indices];
        edit.set_input(id, *update.indices, whole(indices, "all_gather", gathered));
        edit.set_input(id, update.operand, whole(operand, "all_gather", gathered));
      } else {
        edit.set_input(id, update.operand, whole(operand, "all_reduce", summed));
      }
    }
  }

  // The nodes that graph/train/clipping.h makes, over the updates' operands.
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
  SyncAnalysis sync_;  // of the graph before the pass
  bool changed_ = false;
};

const OptionTable<ClipByGlobalNormOptions>& clip_by_global_norm_options() {
  static const auto table =
      OptionTable<ClipByGlobalNormOptions>("clip-by-global-norm",
                                           "gradients are scaled down together where their norm is too large")
          .option("norm", &ClipByGlobalNormOptions::norm, "the largest that is left as it is");
  return table;
}

class ClipByGlobalNorm final : public Pass {
 public:
  explicit ClipByGlobalNorm(const ClipByGlobalNormOptions& options) : options_(options) {}
  std::string_view name() const override { return kClipByGlobalNorm; }
  std::string to_string() const override { return clip_by_global_norm_options().print(options_); }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    return outcome_of(Clipper(graph, options_.norm).run());
  }

  ClipByGlobalNormOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_clip_by_global_norm(ClipByGlobalNormOptions options) {
  if (!std::isfinite(options.norm) || options.norm <= 0) {
    throw BadOptionValue(str(kClipByGlobalNorm, ": norm must be finite and above 0, got ", options.norm));
  }
  return std::make_unique<ClipByGlobalNorm>(options);
}

void internal::register_clip_by_global_norm(PassRegistry& registry) {
  add_pass(registry, clip_by_global_norm_options(), make_clip_by_global_norm);
}

}  // namespace lockstep
