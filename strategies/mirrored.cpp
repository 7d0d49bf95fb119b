#include "lockstep/strategies/mirrored.h"

#include "lockstep/graph/pass_registry.h"

namespace lockstep {

namespace {

StrategyOptions base_options(const MirroredOptions& options) {
  StrategyOptions base;
  // There are no GPU devices yet: a runtime without any gives the CPU.
  if (options.devices.names()) base.devices = *options.devices.names();
  base.runtime = options.runtime;
  base.compile = options.compile;
  base.checks = options.checks;
  return base;
}

std::string list_of(const std::vector<std::string>& devices) {
  std::string list;
  for (const std::string& device : devices) list += str(list.empty() ? "" : ",", device);
  return str("[", list, "]");
}

}  // namespace

MirroredStrategy::MirroredStrategy(MirroredOptions options)
    : Strategy(base_options(options)), options_(std::move(options)) {
  pipeline();  // so that a wrong option is refused here
}

MirroredStrategy::~MirroredStrategy() = default;

PassPipeline MirroredStrategy::pipeline() const {
  const std::string devices = list_of(worker_devices());
  const std::vector<std::string> homes(worker_devices().size(), parameter_devices()[0]);
  const bool central = parameter_devices().size() < worker_devices().size();
  // On one replica's step, while there is one copy of it: what is inserted here is cloned along with the rest.
  // What the user wants of the step comes first: it may declare variables.
  std::string passes = options_.step_passes.empty() ? "" : options_.step_passes + ",";
  passes += str("mirror-variables(devices=", central ? list_of(homes) : devices, "),insert-all-reduce");
  passes += options_.num_packs != 0 ? str(",bucket-all-reduce(num_packs=", options_.num_packs, ")")
                                    : str(",bucket-all-reduce(bytes_per_pack=", options_.bytes_per_pack, ")");
  if (options_.optimize) {
    passes +=
        ",recompute-checkpoints,identity-removal,constant-folding,common-subexpression-elimination,"
        "dead-node-elimination,fuse-elementwise";
  }
  passes += str(",replicate,place(devices=", devices, ")");
  // The proof comes before anything relies on it, and after everything that could break it.
  passes += ",prove-sync";
  if (options_.share_mirrored) passes += ",share-mirrored";
  // Ordered while they are still collectives; then each becomes what its devices need, and copies where memories differ.
  passes += str(",order-collectives,lower-collectives(ops=", options_.cross_device_ops, "),insert-copies");
  return PassRegistry::global().parse_pipeline(passes);
}

}  // namespace lockstep
