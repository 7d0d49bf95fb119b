// Tests: strategies/trace/variable_rules.cpp
// Every cell of the table in strategies/trace/variable_rules.h, spelled out, and what must hold for all
// cells.
#include "lockstep/strategies/trace/variable_rules.h"

#include <map>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using M = VariableMeaning;

constexpr Synchronization kSynchronizations[] = {Synchronization::kAuto, Synchronization::kNone,
                                                 Synchronization::kOnWrite, Synchronization::kOnRead};
constexpr Aggregation kAggregations[] = {Aggregation::kNone, Aggregation::kSum, Aggregation::kMean,
                                         Aggregation::kOnlyFirstReplica};
constexpr ContextKind kContexts[] = {ContextKind::kCrossReplica, ContextKind::kReplica, ContextKind::kUpdate};
constexpr VariableAction kActions[] = {VariableAction::kRead, VariableAction::kAssign,
                                       VariableAction::kAssignAdd, VariableAction::kScatter,
                                       VariableAction::kScatterSet};
constexpr ReplicaKind kKinds[] = {ReplicaKind::kSingle, ReplicaKind::kMirrored, ReplicaKind::kPerReplica};

template <class Visit>
void for_each_question(const Visit& visit) {
  for (const Synchronization s : kSynchronizations)
    for (const Aggregation a : kAggregations)
      for (const ContextKind c : kContexts)
        for (const VariableAction action : kActions)
          for (const ReplicaKind kind : kKinds)
            for (const bool floating : {true, false})
              for (const std::int64_t replicas : {1, 3})
                visit(VariableQuestion{s, a, c, action, kind, floating, replicas, false});
}

TEST(VariableRules, AnswerEveryQuestion) {
  int questions = 0, refused = 0;
  for_each_question([&](const VariableQuestion& q) {
    const VariableAnswer answer = variable_rule(q);
    ++questions;
    if (answer.meaning == M::kRefused) {
      ++refused;
      EXPECT_FALSE(answer.reason.empty());
    } else {
      EXPECT_TRUE(answer.reason.empty());
    }
  });
  EXPECT_EQ(questions, 4 * 4 * 3 * 5 * 3 * 2 * 2);
  EXPECT_GT(refused, 0);
}

TEST(VariableRules, AutoIsOnWriteAndNoneIsRefusedWhereThereAreReplicas) {
  for_each_question([&](VariableQuestion q) {
    if (q.synchronization == Synchronization::kNone && q.replicas > 1) {
      EXPECT_EQ(variable_rule(q).meaning, M::kRefused);
      EXPECT_THAT(variable_rule(q).reason, HasSubstr("NONE"));
      return;
    }
    if (q.synchronization == Synchronization::kOnWrite || q.synchronization == Synchronization::kOnRead)
      return;
    const VariableMeaning as_auto = variable_rule(q).meaning;
    q.synchronization = Synchronization::kOnWrite;
    EXPECT_EQ(as_auto, variable_rule(q).meaning);
  });
}

// One replica never needs another: nothing that only concerns replicas among themselves is refused.
TEST(VariableRules, WithOneReplicaAssignmentsInItAreItsOwn) {
  for_each_question([&](const VariableQuestion& q) {
    if (q.replicas != 1 || q.context != ContextKind::kReplica) return;
    EXPECT_EQ(variable_rule(q).meaning, M::kOwnCopy);
  });
}

TEST(VariableRules, InUpdatesAVariableIsTheCopy) {
  for_each_question([&](const VariableQuestion& q) {
    if (q.context == ContextKind::kUpdate &&
        (q.synchronization != Synchronization::kNone || q.replicas == 1)) {
      EXPECT_EQ(variable_rule(q).meaning, M::kOwnCopy);
    }
  });
}

struct Cell {
  Synchronization s;
  Aggregation a;
  M replica_read, replica_assign_differs, replica_assign_same, cross_read, cross_assign, cross_add;
};

TEST(VariableRules, AreTheTable) {
  constexpr auto kWrite = Synchronization::kOnWrite, kReadSync = Synchronization::kOnRead;
  const Cell cells[] = {
      {kWrite, Aggregation::kNone, M::kOwnCopy, M::kRefused, M::kRefused, M::kFirstCopy, M::kEveryCopy,
       M::kEveryCopy},
      {kWrite, Aggregation::kSum, M::kOwnCopy, M::kSum, M::kRefused, M::kFirstCopy, M::kEveryCopy,
       M::kEveryCopy},
      {kWrite, Aggregation::kMean, M::kOwnCopy, M::kMean, M::kEveryCopy, M::kFirstCopy, M::kEveryCopy,
       M::kEveryCopy},
      {kWrite, Aggregation::kOnlyFirstReplica, M::kOwnCopy, M::kFirstReplica, M::kEveryCopy, M::kFirstCopy,
       M::kEveryCopy, M::kEveryCopy},
      {kReadSync, Aggregation::kNone, M::kOwnCopy, M::kOwnCopy, M::kOwnCopy, M::kRefused, M::kEveryCopy,
       M::kEveryCopy},
      {kReadSync, Aggregation::kSum, M::kOwnCopy, M::kOwnCopy, M::kOwnCopy, M::kSumCopies, M::kShareEach,
       M::kRefused},
      {kReadSync, Aggregation::kMean, M::kOwnCopy, M::kOwnCopy, M::kOwnCopy, M::kMeanCopies, M::kEveryCopy,
       M::kEveryCopy},
      {kReadSync, Aggregation::kOnlyFirstReplica, M::kOwnCopy, M::kOwnCopy, M::kOwnCopy, M::kFirstCopy,
       M::kEveryCopy, M::kEveryCopy},
  };
  for (const Cell& cell : cells) {
    const auto ask = [&](ContextKind context, VariableAction action, ReplicaKind kind) {
      return variable_rule({cell.s, cell.a, context, action, kind, true, 2, false}).meaning;
    };
    using enum VariableAction;
    EXPECT_EQ(ask(ContextKind::kReplica, kRead, ReplicaKind::kSingle), cell.replica_read);
    for (const VariableAction action : {kAssign, kAssignAdd}) {
      EXPECT_EQ(ask(ContextKind::kReplica, action, ReplicaKind::kPerReplica), cell.replica_assign_differs);
      EXPECT_EQ(ask(ContextKind::kReplica, action, ReplicaKind::kSingle), cell.replica_assign_same);
      EXPECT_EQ(ask(ContextKind::kReplica, action, ReplicaKind::kMirrored), cell.replica_assign_same);
    }
    EXPECT_EQ(ask(ContextKind::kCrossReplica, kRead, ReplicaKind::kSingle), cell.cross_read);
    EXPECT_EQ(ask(ContextKind::kCrossReplica, kAssign, ReplicaKind::kSingle), cell.cross_assign);
    EXPECT_EQ(ask(ContextKind::kCrossReplica, kAssignAdd, ReplicaKind::kSingle), cell.cross_add);
    // Rows are assigned as wholes are, where there are any.
    const bool rows = cell.s == kWrite;
    const bool sums = cell.a == Aggregation::kSum || cell.a == Aggregation::kMean;
    EXPECT_EQ(ask(ContextKind::kReplica, kScatter, ReplicaKind::kPerReplica),
              rows ? cell.replica_assign_differs : M::kRefused);
    EXPECT_EQ(ask(ContextKind::kReplica, kScatterSet, ReplicaKind::kPerReplica),
              rows && !sums ? cell.replica_assign_differs : M::kRefused);
    EXPECT_EQ(ask(ContextKind::kCrossReplica, kScatterSet, ReplicaKind::kSingle),
              rows ? cell.cross_assign : M::kRefused);
  }
}

// Where its user lets copies drift apart, a replica changes its own.
TEST(VariableRules, CopiesThatMayDriftAreTheReplicas) {
  for_each_question([&](VariableQuestion q) {
    if (q.context != ContextKind::kReplica || q.synchronization != Synchronization::kOnWrite) return;
    q.may_drift = true;
    EXPECT_EQ(variable_rule(q).meaning, M::kOwnCopy);
  });
}

TEST(VariableRules, AMeanOfIntegersThatDifferIsRefused) {
  const VariableQuestion q{Synchronization::kOnWrite,
                           Aggregation::kMean,
                           ContextKind::kReplica,
                           VariableAction::kAssign,
                           ReplicaKind::kPerReplica,
                           false,
                           2,
                           false};
  EXPECT_THAT(variable_rule(q).reason, HasSubstr("mean of integers"));
}

}  // namespace
}  // namespace lockstep
