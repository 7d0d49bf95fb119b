// graph/run/internal/exchange.h - collectives between devices that something connects, such as NCCL.
//
// The kernel of a joined collective runs in one memory: values are copied there, and results back. One with the attribute `by`
// is different: its values stay in the memories of their replicas, and the participants of a DeviceGroup combine them. To the
// plan that is a deferred call of the host: the segments of devices end before it, and begin again behind it.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/core/communicators/device_group.h"
#include "lockstep/core/runtime.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/kernel.h"

namespace lockstep::internal {

// What combines the values of the node; null: it is a node like others, or nothing connects the devices of its replicas.
std::shared_ptr<DeviceGroup> find_exchange(const Graph& level, const Node& node, const Runtime& runtime);

// The node's kernel, which defers its calls.
KernelFn make_exchange(const Node& node, std::shared_ptr<DeviceGroup> group);

}  // namespace lockstep::internal
