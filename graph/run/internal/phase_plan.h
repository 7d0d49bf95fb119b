// graph/run/internal/phase_plan.h - the calls of a plan and their order, while the plan is made.
//
// A piece of Work becomes one phase or two: the calls of its shards, and a call that finishes them or awaits
// the end of a deferred one. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/run/internal/clusters.h"
#include "lockstep/graph/run/internal/segments.h"
#include "lockstep/graph/run/internal/storage_plan.h"

namespace lockstep::internal {

struct Work {
  const Node* node = nullptr;
  std::uint32_t kernel = 0;
  std::vector<StorageUse> inputs, outputs;
  std::vector<StorageUse> rooms;     // behind the outputs: room for the call alone
  std::vector<std::uint32_t> after;  // phases
  Split split;
  double bytes_moved = 0, multiply_adds = 0;  // of the whole, by the op's own figures; 0: not known
  double seconds = 0;                         // of the whole, an estimate
  bool hinted = false;                        // given by the op, not estimated
  bool copies = false;                        // a value, on behalf of the node
  bool commit = false;
  bool deferred = false;     // its call may go on after it has returned
  std::int32_t stream = -1;  // its calls are put there; -1: the host runs it
};

class PhasePlan {
 public:
  // The phases and kernels go into the plan. `replica` as in PlanRequest.
  PhasePlan(const Runtime& runtime, Plan& plan, StoragePlan& storages, int replica)
      : runtime_(runtime), plan_(plan), storages_(storages), replica_(replica) {}

  // The phase that is added next.
  std::uint32_t next() const { return static_cast<std::uint32_t>(phases_.size()); }
  bool any_commits(std::span<const std::uint32_t> phases) const;

  std::uint32_t add_kernel(KernelFn kernel);
  // Adds the phases of one piece of work; returns the last one, after which the work is done.
  std::uint32_t add(Work work);
  // Copies a value from one storage to another, on behalf of a node. Behind a commit it is one itself.
  std::uint32_t add_copy(const Node& node, std::uint32_t from, std::uint32_t to, const TensorSpec* spec,
                         std::vector<std::uint32_t> after, bool commit = false);

  // The stream of the first device that computes in the memory, or of a device; -1: it has none.
  std::int32_t stream_in(MemoryId memory, StreamRole role);
  std::int32_t stream_of(const Device& device, StreamRole role);

  // Once all phases are there: which of them run together, on how many lanes.
  void make_clusters(const CompileOptions& options);
  // And then: what is over on devices when a phase starts.
  const DeviceOrder& device_order() const { return device_order_; }

  static double seconds_of(const Cost& cost);

 private:
  std::int32_t copy_stream(MemoryId from, MemoryId to);
  void sort_plain_calls();

  const Runtime& runtime_;
  Plan& plan_;
  StoragePlan& storages_;
  int replica_;
  std::vector<Phase> phases_;  // by phase: what clustering sees
  DeviceOrder device_order_;
};

}  // namespace lockstep::internal
