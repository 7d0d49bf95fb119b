// graph/ir/group_rounds.cpp - a run's part in the groups that its nodes name.
#include "lockstep/graph/ir/internal/group_rounds.h"

#include <algorithm>
#include <new>
#include <string>

#include "lockstep/core/awaited_completion.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

namespace {

void add_groups(const Graph& graph, const Runtime& runtime, std::vector<Group*>& groups) {
  for (const Node& node : graph.nodes()) {
    for (const Graph& region : node.regions()) add_groups(region, runtime, groups);
    if (!has(node.op().effects, Effect::kCollective)) continue;
    const auto* name = node.find<std::string>("group");
    Group* const group = name == nullptr ? nullptr : runtime.find_group(*name);
    if (group != nullptr && std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
  }
}

}  // namespace

std::vector<Group*> groups_of(const Graph& graph, const Runtime& runtime,
                              std::span<const std::string> named) {
  std::vector<Group*> groups;
  for (const std::string& name : named) {
    Group* const group = &runtime.group(name);
    if (std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
  }
  add_groups(graph, runtime, groups);
  return groups;
}

GroupRounds::GroupRounds(std::span<Group* const> groups) {
  rounds_.reserve(groups.size());
  for (Group* const group : groups) rounds_.emplace_back(group, group->begin_round());
}

void GroupRounds::next() noexcept {
  is_agreed_ = false;
  for (auto& [group, round] : rounds_) round = group->begin_round();
}

Group::Round GroupRounds::of(const Group& group) const noexcept {
  for (const auto& [known, round] : rounds_) {
    if (known == &group) return round;
  }
  return 0;
}

void GroupRounds::vote() {
  for (const auto& [group, round] : rounds_) {
    if (!group->votes()) continue;
    AwaitedCompletion ended;
    group->vote(round, ended);
    ended.wait();
  }
  is_agreed_ = true;
}

void GroupRounds::give_up(ErrorCode code, std::string_view why) noexcept {
  for (const auto& [group, round] : rounds_) {
    if (!is_agreed_) {
      group->give_up(round, code, why);
      continue;
    }
    try {
      group->abort(Error(code, std::string(why)));
    } catch (const std::bad_alloc&) {  // the others go on without this member, until it leaves
    }
  }
}

}  // namespace lockstep::internal
