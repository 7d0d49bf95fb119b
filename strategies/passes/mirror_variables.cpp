#include "lockstep/strategies/passes/mirror_variables.h"

#include "lockstep/core/device.h"
#include "lockstep/core/name_hash.h"
#include "lockstep/strategies/passes/internal/copies.h"

namespace lockstep {

namespace {

class MirrorVariables final : public Pass {
 public:
  explicit MirrorVariables(MirrorVariablesOptions options) : options_(std::move(options)) {
    for (std::string& device : options_.devices) device = Device::parse(device).to_string();
  }
  std::string_view name() const override { return "mirror-variables"; }

 private:
  PassOutcome run_on(Graph& graph, PassContext&) override {
    std::int64_t replicas = internal::max_replicas(graph);
    NameSet names = internal::replicated_variables(graph);
    if (replicas == 0 && options_.replicas > 0) {
      replicas = options_.replicas;
      for (const VariableDecl& decl : graph.variables()) names.insert(decl.name);
    }
    if (!options_.devices.empty() && static_cast<std::int64_t>(options_.devices.size()) < replicas) {
      throw PassError(name(), str("there are ", replicas, " replicas and ", options_.devices.size(),
                                  " devices; name one for each"));
    }
    return outcome_of(internal::declare_copies(graph, names, replicas, options_.devices));
  }

  MirrorVariablesOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_mirror_variables(MirrorVariablesOptions options) {
  return std::make_unique<MirrorVariables>(std::move(options));
}

}  // namespace lockstep
