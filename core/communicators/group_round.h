// core/communicators/group_round.h - a round of a group outside of programs: calls that wait, and one end for all.
//
//   run_round(group, [&](GroupRound& round) {
//     round.all_gather(DType::kI64, &mine, all.data(), 1);
//     if (all[0] < 0) throw InvalidArgument("...");      // then the others throw Declined, with this reason
//   });
//
// All members run the same rounds in the same order as the runs of their programs. run_round() returns when all of
// them have come to the end, and throws if one has not.
//
// Thread safety: one thread at a time per group.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/core/base/export.h"
#include "lockstep/core/communicators/group.h"

namespace lockstep {

class LOCKSTEP_API GroupRound {
 public:
  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  // As those of Communicator; they return when the call is complete.
  void all_gather(DType dtype, const void* in, void* out, std::int64_t count);
  void broadcast(DType dtype, void* data, std::int64_t count, int root);

 private:
  friend LOCKSTEP_API void run_round(Group& group, const std::function<void(GroupRound&)>& body);
  explicit GroupRound(Group& group) : group_(group), round_(group.begin_round()) {}
  void call(const CommunicatorCall& call);

  Group& group_;
  Group::Round round_;
};

LOCKSTEP_API void run_round(Group& group, const std::function<void(GroupRound&)>& body);

}  // namespace lockstep
