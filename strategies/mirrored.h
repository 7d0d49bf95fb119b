// strategies/mirrored.h - one replica per device, variables mirrored, gradients all-reduced.
//
//   MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}});
//
//   cost     one all-reduce per step and bucket of gradients: 2 (P-1)/P of their bytes per device; in one memory one pass over
//            them, and what is proven equal is computed and stored once
//   needs    P >= 1 devices of this process; P == 1 leaves the step as it is
//   keeps    the one-device result on the joined batch, up to the order of the sum; bits depend on P alone, not on threads or
//            buckets
//
// Thread safety: as Strategy; its options are values.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/strategies/passes/cross_device_ops.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep {

// Devices by name, {"cpu:0", "cpu:1"}, or unspecified ({}), which is not the same as an empty list.
class LOCKSTEP_API DeviceList {
 public:
  DeviceList() = default;
  DeviceList(std::initializer_list<std::string_view> names);
  // NOLINTNEXTLINE(google-explicit-constructor)
  DeviceList(std::vector<std::string> names);
  const std::optional<std::vector<std::string>>& names() const { return names_; }

 private:
  std::optional<std::vector<std::string>> names_;
};

struct MirroredOptions {
  // One per replica, in their order. Unspecified: every GPU of the runtime, or the CPU if there is none. An empty
  // list is an error.
  DeviceList devices = {};
  // Instead of devices: this many GPUs, gpu:0 and on; 0: cpu:0. Giving both is an error.
  std::optional<std::int64_t> num_gpus = std::nullopt;
  // How values become one across devices: "auto", "shared_memory", "reduction_to_one_device",
  // "hierarchical_copy", "ring", "nccl".
  std::string cross_device_ops = "auto";
  // Where reduction_to_one_device reduces: a replica's device or another of the runtime; empty: replica 0's.
  // An error with other cross-device ops.
  std::string reduce_device = {};
  // Instead of a name: your own cross-device ops (strategies/passes/cross_device_ops.h); prove-sync runs once
  // more after them.
  CrossDeviceOpsPtr custom_cross_device_ops = nullptr;
  // Gradients are packed into buckets of about this many bytes, in the order in which they become ready; 0:
  // one bucket for all.
  std::int64_t bytes_per_pack = 4 << 20;
  // Instead: this many buckets of about equal size; 0: by bytes. Giving both is an error.
  std::int64_t num_packs = 0;
  // Compute and store values once if they are proven equal on all replicas and lie in one memory. Off: every
  // replica has its own.
  bool share_mirrored = true;
  // Variables whose copies may drift apart: a replica reads and changes its own copy, whatever the
  // aggregation says, and by its own gradients too. An optimizer's slots follow (but name the slots of a step
  // that is given as a graph). Steps declare these variables as synchronized on read, and the pipeline's text
  // names them. A name that is not a variable is an error when a function is made. Prefer
  // Synchronization::kOnRead for variables that belong to each replica.
  std::set<std::string> may_drift = {};
  // Passes on one replica's step before it is distributed:
  // "accumulate-gradients(steps=4),clip-by-global-norm(norm=1)".
  std::string step_passes = {};
  // Join all-reduces into packs; false: each stays a node of its own.
  bool pack = true;
  // Run the general passes too (folding, fusing): turn it off for graphs that people will read.
  bool optimize = true;
  // The options that every strategy takes: .base = {.runtime = runtime}.
  StrategyOptions base = {};
};

class LOCKSTEP_API MirroredStrategy : public Strategy {
 public:
  explicit MirroredStrategy(MirroredOptions options = {}, SourceSite site = SourceSite::current());
  ~MirroredStrategy() override;
  std::string_view name() const override { return "MirroredStrategy"; }
  PassPipeline pipeline() const override;
  const MirroredOptions& options() const { return options_; }
  bool may_drift(std::string_view variable) const override;
  // The cross-device ops that lower-collectives chooses for an all-reduce of this many bytes (-1: not known),
  // and why: "ring: each of 4 devices ...".
  CrossDeviceChoice cross_device_choice(std::int64_t bytes = -1) const;

 protected:
  void check_step(const Graph& step) const override;

 private:
  MirroredOptions options_;
};

}  // namespace lockstep
