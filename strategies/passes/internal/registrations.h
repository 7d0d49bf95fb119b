// strategies/passes/internal/registrations.h - each pass of this folder adds itself to a registry.
#pragma once

namespace lockstep {
class PassRegistry;
}

namespace lockstep::internal {

void register_allow_drift(PassRegistry& registry);
void register_bucket_all_reduce(PassRegistry& registry);
void register_enter_replicas(PassRegistry& registry);
void register_insert_all_reduce(PassRegistry& registry);
void register_insert_copies(PassRegistry& registry);
void register_lower_collectives(PassRegistry& registry);
void register_mirror_variables(PassRegistry& registry);
void register_order_collectives(PassRegistry& registry);
void register_place(PassRegistry& registry);
void register_prove_sync(PassRegistry& registry);
void register_replicate(PassRegistry& registry);
void register_share_mirrored(PassRegistry& registry);

}  // namespace lockstep::internal
