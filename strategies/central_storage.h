// strategies/central_storage.h - variables in one place, replicas that compute on their slices.
//
//   CentralStorageStrategy strategy({.devices = {"cpu:0", "cpu:1"}}, "cpu:0");
//
// Variables, and the nodes that update them, are placed on the parameter device, which need not be a
// replica's device.
//
//   cost     every replica reads the variables from one device; gradients are summed there and applied once
//   needs    replicas and the parameter device in one memory for now: this process's CPUs
//   keeps    the result of MirroredStrategy, to the bit: it is the same graph, with what replicas share stored once by definition
//
// Thread safety: as Strategy.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/strategies/mirrored.h"

namespace lockstep {

class LOCKSTEP_API CentralStorageStrategy : public MirroredStrategy {
 public:
  explicit CentralStorageStrategy(MirroredOptions options = {}, const std::string& parameter_device = "cpu:0",
                                  SourceSite site = SourceSite::current());
  ~CentralStorageStrategy() override;
  std::string_view name() const override { return "CentralStorageStrategy"; }
  const std::vector<std::string>& parameter_devices() const override { return parameter_devices_; }

 private:
  std::vector<std::string> parameter_devices_;
};

}  // namespace lockstep
