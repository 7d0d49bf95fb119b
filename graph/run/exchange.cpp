// graph/run/exchange.cpp - collectives between devices that something connects, such as NCCL.
#include "lockstep/graph/run/internal/exchange.h"

#include <string>
#include <utility>
#include <vector>

#include "lockstep/graph/ir/placement.h"
#include "lockstep/graph/ir/replica_nodes.h"
#include "lockstep/graph/ops/collectives.h"

namespace lockstep::internal {

std::shared_ptr<DeviceGroup> find_exchange(const Graph& level, const Node& node, const Runtime& runtime) {
  if (!node.op().traits.is(ReplicaRole::kCollective) || node.find<std::string>("by") == nullptr)
    return nullptr;
  const std::size_t replicas = joined_replicas(node);
  if (replicas < 2) return nullptr;
  const std::size_t tensors = node.inputs().size() / replicas;
  std::vector<Device> devices;
  for (std::size_t i = 0; i < node.inputs().size(); ++i) {
    const std::string& name = device_of(level, node.inputs()[i]);
    const Device device = name.empty() ? Device{} : Device::parse(name);
    if (i % tensors == 0) {
      devices.push_back(device);
    } else if (devices.back() != device) {
      return nullptr;  // the values of a replica lie apart
    }
  }
  return runtime.device_group(devices);
}

KernelFn make_exchange(const Node& node, std::shared_ptr<DeviceGroup> group) {
  const std::size_t replicas = joined_replicas(node);
  const ReduceOp op = parse_reduce_op(*node.find<std::string>("reduce"));
  return [op, replicas, group = std::move(group)](KernelContext& c) {
    const std::size_t tensors = c.num_inputs() / replicas;
    std::vector<CommunicatorCall> calls;
    for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
      CommunicatorCall call;
      call.kind = CommunicatorCall::Kind::kAllReduce;
      call.op = op;
      call.dtype = c.input_spec(tensor).dtype;
      call.count = c.input_spec(tensor).shape.num_elements();
      if (call.count == 0) continue;
      if (c.run().deadline != nullptr) call.deadline = *c.run().deadline;
      for (std::size_t i = tensor; i < c.num_inputs(); i += tensors) {
        call.in = c.input(i);
        call.out = c.output(i);
        calls.push_back(call);
      }
    }
    if (!calls.empty()) group->start(calls, c.defer());
  };
}

}  // namespace lockstep::internal
