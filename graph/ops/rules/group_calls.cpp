// graph/ops/rules/group_calls.cpp - calls of groups that nodes make, on whatever device.
#include "lockstep/graph/ops/rules/internal/group_calls.h"

#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/graph/ir/internal/group_rounds.h"
#include "lockstep/graph/ops/collectives.h"

namespace lockstep::internal {

namespace {

Group& group_of(const NodeView& node, DeviceKind kind) {
  const auto& name = node.get<std::string>("group");
  Group& group = node.group(name);
  if (!group.takes(kind))
    NodeView::fail(str("the group '", name, "' exchanges memory of ",
                       group.takes(DeviceKind::kGpu) ? "cards" : "the host", ", and the node is on ",
                       *node.device(), ": place it elsewhere, or give the runtime another group"));
  return group;
}

}  // namespace

GroupCall::GroupCall(const NodeView& node, DeviceKind device, CommunicatorCall::Kind kind)
    : group_(&group_of(node, device)) {
  call_.kind = kind;
  call_.memory = device;
  call_.dtype = node.input(0).dtype;
  call_.count = node.input(0).shape.num_elements();
  const char* const op = kind == CommunicatorCall::Kind::kAllReduce   ? "group_all_reduce"
                         : kind == CommunicatorCall::Kind::kAllGather ? "group_all_gather"
                                                                      : "group_broadcast";
  std::string text = str(op, " '", node.name(), "'");
  if (node.site().known()) text += str(" at ", node.site().file, ":", node.site().line);
  what_ = std::make_shared<const std::string>(std::move(text));
}

void GroupCall::start(const void* in, KernelContext& c) const {
  const RunInfo& run = c.run();
  CommunicatorCall call = call_;
  call.in = in;
  call.out = c.output(0);
  if (run.deadline != nullptr) call.deadline = *run.deadline;
  const Group::Round round = run.rounds == nullptr ? 0 : run.rounds->of(*group_);
  group_->start(call, c.defer(), round, what_);
}

GroupCall all_reduce_call(const NodeView& node, DeviceKind kind) {
  GroupCall made(node, kind, CommunicatorCall::Kind::kAllReduce);
  made.call_.op = parse_reduce_op(node.get<std::string>("reduce"));
  if (const auto* const parts = node.find<std::int64_t>("parts")) {
    if (kind == DeviceKind::kGpu)
      NodeView::fail("on cards, members contribute one value each: leave out `parts`");
    made.call_.parts = *parts;
    made.call_.count /= *parts;
  }
  return made;
}

GroupCall all_gather_call(const NodeView& node, DeviceKind kind) {
  GroupCall made(node, kind, CommunicatorCall::Kind::kAllGather);
  if (const auto members = node.get<std::int64_t>("members"); members != made.group().size())
    NodeView::fail(str("it is for ", counted(members, "member"), ", and the group '",
                       node.get<std::string>("group"), "' has ", made.group().size()));
  return made;
}

GroupCall broadcast_call(const NodeView& node, DeviceKind kind) {
  GroupCall made(node, kind, CommunicatorCall::Kind::kBroadcast);
  const auto root = node.get_or<std::int64_t>("root", 0);
  if (root >= made.group().size()) {
    NodeView::fail(str("root ", root, " is no member: the group '", node.get<std::string>("group"), "' has ",
                       made.group().size()));
  }
  made.call_.peer = static_cast<int>(root);
  return made;
}

}  // namespace lockstep::internal
