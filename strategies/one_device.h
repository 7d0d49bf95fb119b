// strategies/one_device.h - everything on one device: a strategy to write code against, and a baseline for
// others.
//
//   cost     nothing
//   needs    one device
//   keeps    the step as it is: collectives of a group of one are their inputs
//
// Thread safety: as Strategy.
#pragma once

#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep {

class LOCKSTEP_API OneDeviceStrategy : public Strategy {
 public:
  explicit OneDeviceStrategy(const std::string& device = "cpu:0", StrategyOptions base = {},
                             SourceSite site = SourceSite::current());
  ~OneDeviceStrategy() override;
  std::string_view name() const override { return "OneDeviceStrategy"; }
  PassPipeline pipeline() const override;
};

}  // namespace lockstep
