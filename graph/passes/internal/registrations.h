// graph/passes/internal/registrations.h - each general pass adds itself to a registry.
#pragma once

namespace lockstep {
class PassRegistry;
}

namespace lockstep::internal {

void register_accumulate_gradients(PassRegistry& registry);
void register_check_finite(PassRegistry& registry);
void register_clip_by_global_norm(PassRegistry& registry);
void register_common_subexpression_elimination(PassRegistry& registry);
void register_constant_folding(PassRegistry& registry);
void register_dead_node_elimination(PassRegistry& registry);
void register_fuse_attention(PassRegistry& registry);
void register_fuse_elementwise(PassRegistry& registry);
void register_fuse_products(PassRegistry& registry);
void register_identity_removal(PassRegistry& registry);
void register_merge_updates(PassRegistry& registry);
void register_mixed_precision(PassRegistry& registry);
void register_recompute_checkpoints(PassRegistry& registry);
void register_split_updates(PassRegistry& registry);

}  // namespace lockstep::internal
