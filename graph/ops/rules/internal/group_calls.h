// graph/ops/rules/internal/group_calls.h - calls of groups that nodes make, on whatever device.
#pragma once

#include "lockstep/core/communicators/group.h"
#include "lockstep/graph/ir/kernel.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

// The node's group; fails if its members exchange memory of another kind than that of the node's device.
Group& group_of(const NodeView& node, DeviceKind kind);

// What every call of a node has in common: kind, dtype, count, and what its attributes say.
CommunicatorCall all_reduce_call(const NodeView& node);
CommunicatorCall all_gather_call(const NodeView& node);
CommunicatorCall broadcast_call(const NodeView& node, const Group& group);

// Starts the call for a kernel that defers it.
void start_group_call(Group& group, CommunicatorCall call, const void* in, KernelContext& c);

}  // namespace lockstep::internal
