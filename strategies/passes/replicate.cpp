#include "lockstep/strategies/passes/replicate.h"

#include <utility>

#include "lockstep/strategies/passes/internal/copies.h"
#include "lockstep/strategies/passes/internal/enter_replicas.h"
#include "lockstep/strategies/passes/internal/replicator.h"

namespace lockstep {

namespace {

constexpr std::string_view kReplicate = "replicate";

class Replicate final : public Pass {
 public:
  explicit Replicate(ReplicateOptions options) : options_(std::move(options)) {}
  std::string_view name() const override { return kReplicate; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    if (internal::max_replicas(graph) == 0) {
      if (options_.replicas < 1) return PassOutcome::kUnchanged;
      graph = internal::enter_replicas(graph, {.replicas = options_.replicas, .shared = options_.shared},
                                       kReplicate);
    }
    internal::declare_copies(graph, internal::replicated_variables(graph), internal::max_replicas(graph), {});
    internal::flatten_replicas(graph);
    return PassOutcome::kChanged;
  }

  ReplicateOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_replicate(ReplicateOptions options) {
  return std::make_unique<Replicate>(std::move(options));
}

}  // namespace lockstep
