// graph/ir/internal/group_rounds.h - a run's part in the groups that its nodes name.
//
// The calls of a run are a round of each of its groups (core/communicators/group.h). A run that is ready to commit votes for it;
// one that fails before, or cannot even begin, gives it up, and then the runs of the other members fail too.
//
// Thread safety: one thread at a time; of() from any, meanwhile.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/communicators/group.h"
#include "lockstep/core/runtime.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep::internal {

// Those that are named, and those that the nodes of the graph and of its regions name, if the runtime has them. Throws NotFound.
LOCKSTEP_API std::vector<Group*> groups_of(const Graph& graph, const Runtime& runtime,
                                           std::span<const std::string> named);

class LOCKSTEP_API GroupRounds {
 public:
  // The groups must outlive it.
  explicit GroupRounds(std::span<Group* const> groups);
  GroupRounds(const GroupRounds&) = delete;
  GroupRounds& operator=(const GroupRounds&) = delete;

  bool any() const { return !rounds_.empty(); }
  // Of the run before, all have voted: now comes the next one.
  void next() noexcept;
  Group::Round of(const Group& group) const noexcept;
  // Returns when all members are ready to commit. Throws what keeps one of them from it.
  void vote();
  // The run has failed for this reason. After the vote the group ends, since the others may have committed.
  void give_up(ErrorCode code, std::string_view why) noexcept;

 private:
  std::vector<std::pair<Group*, Group::Round>> rounds_;
  bool is_agreed_ = false;
};

}  // namespace lockstep::internal
