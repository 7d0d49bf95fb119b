// strategies/passes/register.cpp - the list of this folder's passes.
#include "lockstep/strategies/passes/register.h"

#include <mutex>

#include "lockstep/strategies/passes/internal/registrations.h"

namespace lockstep {

void register_strategy_passes(PassRegistry& registry) {
  static std::mutex mutex;  // two threads may make the first strategies
  const std::lock_guard<std::mutex> lock(mutex);
  if (registry.contains("replicate")) return;
  // For replicated regions.
  internal::register_enter_replicas(registry);
  internal::register_allow_drift(registry);
  internal::register_mirror_variables(registry);
  internal::register_insert_all_reduce(registry);
  internal::register_bucket_all_reduce(registry);
  internal::register_replicate(registry);
  // For flat graphs.
  internal::register_place(registry);
  internal::register_prove_sync(registry);
  internal::register_share_mirrored(registry);
  internal::register_order_collectives(registry);
  internal::register_lower_collectives(registry);
  internal::register_insert_copies(registry);
}

}  // namespace lockstep
