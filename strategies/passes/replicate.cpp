// strategies/passes/replicate.cpp - every replicated region becomes its nodes, once per replica.
#include "lockstep/strategies/passes/replicate.h"

#include <utility>

#include "lockstep/graph/transform/option_table.h"
#include "lockstep/strategies/passes/internal/copies.h"
#include "lockstep/strategies/passes/internal/registrations.h"
#include "lockstep/strategies/passes/internal/replicator.h"

namespace lockstep {

namespace {

constexpr std::string_view kReplicate = "replicate";

class Replicate final : public Pass {
 public:
  std::string_view name() const override { return kReplicate; }

 private:
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    if (internal::max_replicas(graph) == 0) return PassOutcome::kUnchanged;
    internal::declare_copies(graph, internal::replicated_variables(graph), internal::max_replicas(graph), {});
    internal::flatten_replicas(graph, context.first_replica);
    return PassOutcome::kChanged;
  }
};

}  // namespace

std::unique_ptr<Pass> make_replicate() { return std::make_unique<Replicate>(); }

void internal::register_replicate(PassRegistry& registry) {
  add_pass(registry, "replicate", "replicated regions become their nodes, once per replica", make_replicate);
}

}  // namespace lockstep
