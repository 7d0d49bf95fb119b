// strategies/passes/mirror_variables.cpp - a copy of each variable for every replica.
#include "lockstep/strategies/passes/mirror_variables.h"

#include "lockstep/core/base/name_set.h"
#include "lockstep/core/device.h"
#include "lockstep/graph/transform/option_table.h"
#include "lockstep/strategies/passes/internal/copies.h"
#include "lockstep/strategies/passes/internal/device_checks.h"
#include "lockstep/strategies/passes/internal/registrations.h"

namespace lockstep {

namespace {

const OptionTable<MirrorVariablesOptions>& mirror_variables_options() {
  static const auto table =
      OptionTable<MirrorVariablesOptions>("mirror-variables", "a copy of each variable for every replica")
          .option("devices", &MirrorVariablesOptions::devices, "where the copies live, by replica");
  return table;
}

class MirrorVariables final : public Pass {
 public:
  explicit MirrorVariables(MirrorVariablesOptions options) : options_(std::move(options)) {
    for (std::string& device : options_.devices) device = Device::parse(device).to_string();
  }
  std::string_view name() const override { return "mirror-variables"; }
  std::string to_string() const override { return mirror_variables_options().print(options_); }

 private:
  PassOutcome run_on(Graph& graph, PassContext& context) override {
    internal::check_devices(name(), options_.devices, context.topology);
    const std::int64_t replicas = internal::max_replicas(graph);
    const NameSet names = internal::replicated_variables(graph);
    if (!options_.devices.empty() && static_cast<std::int64_t>(options_.devices.size()) < replicas) {
      throw PassError(name(), str("there are ", replicas, " replicas and ",
                                  counted(options_.devices.size(), "device"), "; name one for each"));
    }
    return outcome_of(internal::declare_copies(graph, names, replicas, options_.devices));
  }

  MirrorVariablesOptions options_;
};

}  // namespace

std::unique_ptr<Pass> make_mirror_variables(MirrorVariablesOptions options) {
  return std::make_unique<MirrorVariables>(std::move(options));
}

void internal::register_mirror_variables(PassRegistry& registry) {
  add_pass(registry, mirror_variables_options(), make_mirror_variables);
}

}  // namespace lockstep
