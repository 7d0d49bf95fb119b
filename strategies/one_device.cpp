// strategies/one_device.cpp - the recipe of OneDeviceStrategy.
#include "lockstep/strategies/one_device.h"

#include "lockstep/graph/passes/merge_updates.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/strategies/passes/place.h"
#include "lockstep/strategies/passes/replicate.h"

namespace lockstep {

OneDeviceStrategy::OneDeviceStrategy(const std::string& device, StrategyOptions base, SourceSite site)
    : Strategy({device}, std::move(base), site) {}
OneDeviceStrategy::~OneDeviceStrategy() = default;

PassPipeline OneDeviceStrategy::pipeline() const {
  PassPipeline passes = standard_passes({.attention = {.device = worker_devices()[0]},
                                         .products = {.device = worker_devices()[0]},
                                         .merge_updates = false});
  passes.add(make_replicate());  // a region of one replica becomes its nodes
  passes.add(make_place({.devices = worker_devices()}));
  passes.add(make_merge_updates());  // outside of regions, and where every variable has its device
  return passes;
}

}  // namespace lockstep
