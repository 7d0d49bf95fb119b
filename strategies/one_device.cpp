#include "lockstep/strategies/one_device.h"

#include "lockstep/graph/transform/pass_registry.h"

namespace lockstep {

OneDeviceStrategy::OneDeviceStrategy(const std::string& device, StrategyOptions base)
    : Strategy({device}, std::move(base)) {}
OneDeviceStrategy::~OneDeviceStrategy() = default;

PassPipeline OneDeviceStrategy::pipeline() const {
  return PassRegistry::global().parse_pipeline(
      str("recompute-checkpoints,identity-removal,constant-folding,common-subexpression-elimination,",
          "dead-node-elimination,fuse-elementwise,replicate,place(devices=[", worker_devices()[0], "])"));
}

}  // namespace lockstep
