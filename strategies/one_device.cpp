#include "lockstep/strategies/one_device.h"

#include "lockstep/graph/transform/pass_registry.h"

namespace lockstep {

namespace {

StrategyOptions on(std::string device, StrategyOptions options) {
  options.devices = {std::move(device)};
  return options;
}

}  // namespace

OneDeviceStrategy::OneDeviceStrategy(std::string device, StrategyOptions options)
    : Strategy(on(std::move(device), std::move(options))) {}
OneDeviceStrategy::~OneDeviceStrategy() = default;

PassPipeline OneDeviceStrategy::pipeline() const {
  return PassRegistry::global().parse_pipeline(
      str("recompute-checkpoints,identity-removal,constant-folding,common-subexpression-elimination,",
          "dead-node-elimination,fuse-elementwise,replicate,place(devices=[", worker_devices()[0], "])"));
}

}  // namespace lockstep
