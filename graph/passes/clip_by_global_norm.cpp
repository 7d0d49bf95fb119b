// graph/passes/clip_by_global_norm.cpp - scales all gradients of a step down together if their norm is too
// large.
#include "lockstep/graph/passes/clip_by_global_norm.h"

#include <cmath>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/passes/internal/summed_gradients.h"
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
    const internal::GradientUpdates updates = internal::gradient_updates(sync_, level);
    if (updates.common.empty() && updates.own.empty()) return;
    changed_ = true;
    std::vector<NodeId> shares;
    if (updates.replicated) shares = internal::unsummed(sync_, level, updates.common);
    Rewriter edit(level, kClipByGlobalNorm, &outermost_);
    internal::sum_shares(edit, shares);
    for (const std::vector<NodeId>* of : {&updates.common, &updates.own}) {
      if (!of->empty()) clip(edit, *of);
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
