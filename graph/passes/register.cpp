// graph/passes/register.cpp - the list of general passes.
#include "lockstep/graph/passes/internal/registrations.h"
#include "lockstep/graph/transform/pass_registry.h"

namespace lockstep {

void register_general_passes(PassRegistry& registry) {
  internal::register_accumulate_gradients(registry);
  internal::register_check_finite(registry);
  internal::register_clip_by_global_norm(registry);
  internal::register_common_subexpression_elimination(registry);
  internal::register_constant_folding(registry);
  internal::register_dead_node_elimination(registry);
  internal::register_fuse_attention(registry);
  internal::register_fuse_elementwise(registry);
  internal::register_fuse_products(registry);
  internal::register_identity_removal(registry);
  internal::register_merge_updates(registry);
  internal::register_mixed_precision(registry);
  internal::register_recompute_checkpoints(registry);
  internal::register_split_updates(registry);
}

}  // namespace lockstep
