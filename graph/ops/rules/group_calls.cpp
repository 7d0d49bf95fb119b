// graph/ops/rules/group_calls.cpp - calls of groups that nodes make, on whatever device.
#include "lockstep/graph/ops/rules/internal/group_calls.h"

#include "lockstep/core/error.h"
#include "lockstep/graph/ir/internal/group_rounds.h"
#include "lockstep/graph/ops/collectives.h"

namespace lockstep::internal {

namespace {

CommunicatorCall call_of(const NodeView& node, CommunicatorCall::Kind kind) {
  CommunicatorCall call;
  call.kind = kind;
  call.dtype = node.input(0).dtype;
  call.count = node.input(0).shape.num_elements();
  return call;
}

}  // namespace

Group& group_of(const NodeView& node, DeviceKind kind) {
  const auto& name = node.get<std::string>("group");
  Group& group = node.group(name);
  if (group.memory_kind() != kind)
    NodeView::fail(str("the group '", name, "' exchanges memory of ",
                       group.memory_kind() == DeviceKind::kGpu ? "cards" : "the host",
                       ", and the node is on ", *node.device(),
                       ": place it elsewhere, or give the runtime another group"));
  return group;
}

CommunicatorCall all_reduce_call(const NodeView& node) {
  CommunicatorCall call = call_of(node, CommunicatorCall::Kind::kAllReduce);
  call.op = parse_reduce_op(node.get<std::string>("reduce"));
  return call;
}

CommunicatorCall all_gather_call(const NodeView& node) {
  const Group& group = node.group(node.get<std::string>("group"));
  if (const auto members = node.get<std::int64_t>("members"); members != group.size())
    NodeView::fail(str("it is for ", counted(members, "member"), ", and the group '",
                       node.get<std::string>("group"), "' has ", group.size()));
  return call_of(node, CommunicatorCall::Kind::kAllGather);
}

CommunicatorCall broadcast_call(const NodeView& node, const Group& group) {
  const auto root = node.get_or<std::int64_t>("root", 0);
  if (root >= group.size()) {
    NodeView::fail(str("root ", root, " is no member: the group '", node.get<std::string>("group"), "' has ",
                       group.size()));
  }
  CommunicatorCall call = call_of(node, CommunicatorCall::Kind::kBroadcast);
  call.peer = static_cast<int>(root);
  return call;
}

void start_group_call(Group& group, CommunicatorCall call, const void* in, KernelContext& c) {
  call.in = in;
  call.out = c.output(0);
  const RunInfo& run = c.run();
  if (run.deadline != nullptr) call.deadline = *run.deadline;
  const Group::Round round = run.rounds == nullptr ? 0 : run.rounds->of(group);
  group.start(call, c.defer(), round);
}

}  // namespace lockstep::internal
