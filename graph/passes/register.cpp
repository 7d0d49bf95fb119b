#include "lockstep/graph/passes/accumulate_gradients.h"
#include "lockstep/graph/passes/clip_by_global_norm.h"
#include "lockstep/graph/passes/common_subexpression_elimination.h"
#include "lockstep/graph/passes/constant_folding.h"
#include "lockstep/graph/passes/dead_node_elimination.h"
#include "lockstep/graph/passes/fuse_elementwise.h"
#include "lockstep/graph/passes/identity_removal.h"
#include "lockstep/graph/passes/recompute_checkpoints.h"
#include "lockstep/graph/transform/pass_registry.h"

namespace lockstep {

void register_general_passes(PassRegistry& registry) {
  registry.add({.name = "accumulate-gradients",
                .summary = "variables change once in k steps, by the mean of the gradients of all k",
                .options = {{.name = "steps", .type = OptionType::kInt, .summary = "k"}}},
               [](const PassOptions& options) {
                 return make_accumulate_gradients({.steps = options.get_int("steps")});
               });
  registry.add({.name = "clip-by-global-norm",
                .summary = "gradients are scaled down together where their norm is too large",
                .options = {{.name = "norm",
                             .type = OptionType::kFloat,
                             .fallback = ClipByGlobalNormOptions().norm,
                             .summary = "the largest that is left as it is"}}},
               [](const PassOptions& options) {
                 return make_clip_by_global_norm({.norm = options.get_float("norm")});
               });
  registry.add({.name = "common-subexpression-elimination", .summary = "computes equal things once"},
               [](const PassOptions&) { return make_common_subexpression_elimination(); });
  registry.add({.name = "constant-folding",
                .summary = "computes now what never changes",
                .options = {{.name = "max_bytes",
                             .type = OptionType::kInt,
                             .fallback = ConstantFoldingOptions().max_bytes,
                             .summary = "larger results are computed at run time"}}},
               [](const PassOptions& options) {
                 const std::int64_t max_bytes = options.get_int("max_bytes");
                 if (max_bytes < 0)
                   throw BadOptionValue(str("max_bytes must be at least 0, got ", max_bytes));
                 return make_constant_folding({.max_bytes = max_bytes});
               });
  registry.add({.name = "dead-node-elimination", .summary = "erases what nobody needs"},
               [](const PassOptions&) { return make_dead_node_elimination(); });
  registry.add({.name = "fuse-elementwise",
                .summary = "element-wise neighbours become one node",
                .options = {{.name = "max_nodes",
                             .type = OptionType::kInt,
                             .fallback = FuseElementwiseOptions().max_nodes,
                             .summary = "nodes in one group at most"}}},
               [](const PassOptions& options) {
                 const std::int64_t max_nodes = options.get_int("max_nodes");
                 if (max_nodes < 2)
                   throw BadOptionValue(str("max_nodes must be at least 2, got ", max_nodes));
                 return make_fuse_elementwise({.max_nodes = max_nodes});
               });
  registry.add({.name = "recompute-checkpoints",
                .summary = "gradients compute what leads to checkpoints again instead of keeping it"},
               [](const PassOptions&) { return make_recompute_checkpoints(); });
  registry.add({.name = "identity-removal", .summary = "removes nodes that only pass their input on"},
               [](const PassOptions&) { return make_identity_removal(); });
}

}  // namespace lockstep
