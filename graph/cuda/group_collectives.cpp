// graph/cuda/group_collectives.cpp - values that the members of a group compute together, in the memory of cards (core/nccl).
//
// The calls are deferred: the host waits until what they read is there, and goes on when the group says that they are done.
#include <utility>

#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/ops/rules/internal/group_calls.h"

namespace lockstep::internal::cuda {

void add_group_kernels(OpRegistry& registry) {
  KernelDef all_reduce([](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [call = all_reduce_call(node, DeviceKind::kGpu)](KernelContext& c) { call.start(c.input(0), c); };
  });
  all_reduce.deferred = true;
  registry.add_kernel("group_all_reduce", "cuda", std::move(all_reduce));

  KernelDef all_gather([](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [call = all_gather_call(node, DeviceKind::kGpu)](KernelContext& c) { call.start(c.input(0), c); };
  });
  all_gather.deferred = true;
  registry.add_kernel("group_all_gather", "cuda", std::move(all_gather));

  KernelDef broadcast([](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    return [call = broadcast_call(node, DeviceKind::kGpu)](KernelContext& c) {
      call.start(call.group().rank() == call.call().peer ? c.input(0) : c.output(0), c);
    };
  });
  broadcast.deferred = true;
  registry.add_kernel("group_broadcast", "cuda", std::move(broadcast));
}

}  // namespace lockstep::internal::cuda
