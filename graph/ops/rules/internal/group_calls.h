// graph/ops/rules/internal/group_calls.h - calls of groups that nodes make, on whatever device.
#pragma once

#include <memory>
#include <string>

#include "lockstep/core/communicators/group.h"
#include "lockstep/graph/ir/kernel.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

// The call of a node, for kernels that defer it.
class GroupCall {
 public:
  Group& group() const { return *group_; }
  const CommunicatorCall& call() const { return call_; }
  void start(const void* in, KernelContext& c) const;

 private:
  friend GroupCall all_reduce_call(const NodeView& node, DeviceKind kind);
  friend GroupCall all_gather_call(const NodeView& node, DeviceKind kind);
  friend GroupCall broadcast_call(const NodeView& node, DeviceKind kind);
  GroupCall(const NodeView& node, DeviceKind device, CommunicatorCall::Kind kind);

  Group* group_;
  CommunicatorCall call_;
  std::shared_ptr<const std::string> what_;  // "group_all_reduce 'grads' at train.cpp:41"
};

// Fail if the members of the node's group exchange memory of another kind than that of the node's device.
GroupCall all_reduce_call(const NodeView& node, DeviceKind kind);
GroupCall all_gather_call(const NodeView& node, DeviceKind kind);
GroupCall broadcast_call(const NodeView& node, DeviceKind kind);

}  // namespace lockstep::internal
