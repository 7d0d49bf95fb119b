#include "lockstep/strategies/one_device.h"

#include "lockstep/graph/pass_registry.h"

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
  return PassRegistry::global().parse_pipeline("replicate");
}

}  // namespace lockstep
