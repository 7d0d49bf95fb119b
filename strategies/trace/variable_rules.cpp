// strategies/trace/variable_rules.cpp - what reading and assigning a distributed variable means: the whole
// table, as one function.
#include "lockstep/strategies/trace/variable_rules.h"

namespace lockstep {

namespace {

VariableAnswer yes(VariableMeaning meaning) { return {meaning, {}}; }
VariableAnswer no(std::string reason) { return {VariableMeaning::kRefused, std::move(reason)}; }

VariableAnswer replica_assign(const VariableQuestion& q) {
  if (q.replicas == 1) return yes(VariableMeaning::kOwnCopy);
  if (q.may_drift) return yes(VariableMeaning::kOwnCopy);
  const bool same = q.value != ReplicaKind::kPerReplica;
  const bool sums = q.aggregation == Aggregation::kSum || q.aggregation == Aggregation::kMean;
  if (q.action == VariableAction::kScatterSet && sums) {
    return no(
        "rows that replicas set, or take the larger or smaller of, have no sum and no mean: use "
        "Aggregation::kOnlyFirstReplica, or scatter_add");
  }
  switch (q.aggregation) {
    case Aggregation::kNone:
      return no(
          "You must specify an aggregation method to assign a mirrored variable in replica context: its "
          "copies could drift apart. Give the variable Aggregation::kMean or kOnlyFirstReplica, or kSum if "
          "the "
          "values differ between replicas and are to be added up");
    case Aggregation::kSum:
      if (same)
        return no(
            "the value is the same on all replicas, and a sum over replicas would count it once for each: "
            "use Aggregation::kMean or kOnlyFirstReplica, or assign outside of the replicas");
      return yes(VariableMeaning::kSum);
    case Aggregation::kMean:
      if (same) return yes(VariableMeaning::kEveryCopy);
      if (!q.floating)
        return no(
            "the mean of integers over replicas is no integer: use Aggregation::kSum or kOnlyFirstReplica, "
            "or a floating variable");
      return yes(VariableMeaning::kMean);
    case Aggregation::kOnlyFirstReplica:
      return yes(same ? VariableMeaning::kEveryCopy : VariableMeaning::kFirstReplica);
    case Aggregation::kSlices: break;
  }
  return no("unknown aggregation");
}

VariableAnswer on_write(const VariableQuestion& q) {
  const bool replica = q.context == ContextKind::kReplica;
  if (q.action == VariableAction::kRead && !replica && q.may_drift && q.replicas > 1) {
    return no(
        "its copies may drift apart, so that it has no one value outside of a replica: read it in the "
        "replicas "
        "and reduce that, or take copies()");
  }
  if (q.action == VariableAction::kRead)
    return yes(replica ? VariableMeaning::kOwnCopy : VariableMeaning::kFirstCopy);
  if (replica) return replica_assign(q);
  if (q.value == ReplicaKind::kPerReplica && q.replicas > 1)
    return no("Expected value to be mirrored across replicas: reduce the per-replica value first");
  return yes(VariableMeaning::kEveryCopy);
}

VariableAnswer on_read(const VariableQuestion& q) {
  if (q.replicas > 1 && (q.action == VariableAction::kScatter || q.action == VariableAction::kScatterSet))
    return no("SyncOnRead variables do not support changes by rows: assign the whole");
  if (q.context == ContextKind::kReplica) return yes(VariableMeaning::kOwnCopy);
  if (q.action == VariableAction::kRead) {
    switch (q.aggregation) {
      case Aggregation::kNone:
        return no(
            "Could not convert: a variable that is synchronized on read needs an aggregation to be read "
            "outside of a replica. Give it Aggregation::kSum, kMean or kOnlyFirstReplica, or take copies()");
      case Aggregation::kSum: return yes(VariableMeaning::kSumCopies);
      case Aggregation::kMean:
        if (!q.floating && q.replicas > 1)
          return no(
              "the mean of integers over replicas is no integer: use Aggregation::kSum or kOnlyFirstReplica");
        return yes(VariableMeaning::kMeanCopies);
      case Aggregation::kOnlyFirstReplica: return yes(VariableMeaning::kFirstCopy);
      case Aggregation::kSlices: return yes(VariableMeaning::kJoinCopies);
    }
  }
  if (q.value == ReplicaKind::kPerReplica && q.replicas > 1)
    return no("Expected value to be mirrored across replicas: reduce the per-replica value first");
  if (q.aggregation == Aggregation::kSlices && q.replicas > 1) {
    return no(
        "its copies are slices, which a function changes in the replicas: each its own; a whole value is "
        "given "
        "outside of functions, as a tensor");
  }
  if (q.aggregation != Aggregation::kSum) return yes(VariableMeaning::kEveryCopy);
  if (q.action == VariableAction::kAssign) return yes(VariableMeaning::kShareEach);
  return no(
      "SyncOnRead variables that are summed do not support assign_add and assign_sub outside of a replica: "
      "assign the new sum, or add inside of the replicas");
}

}  // namespace

std::string_view to_string(VariableMeaning meaning) {
  switch (meaning) {
    case VariableMeaning::kOwnCopy: return "own copy";
    case VariableMeaning::kFirstCopy: return "first copy";
    case VariableMeaning::kSumCopies: return "sum of copies";
    case VariableMeaning::kMeanCopies: return "mean of copies";
    case VariableMeaning::kJoinCopies: return "copies joined";
    case VariableMeaning::kEveryCopy: return "every copy";
    case VariableMeaning::kShareEach: return "a share for each copy";
    case VariableMeaning::kSum: return "sum over replicas";
    case VariableMeaning::kMean: return "mean over replicas";
    case VariableMeaning::kFirstReplica: return "first replica";
    case VariableMeaning::kRefused: return "refused";
  }
  return "?";
}

VariableAnswer variable_rule(const VariableQuestion& question) {
  const Decision decision =
      can_make_variable(question.synchronization, question.aggregation, question.replicas);
  if (!decision) return no(decision.reason());
  if (question.context == ContextKind::kUpdate) return yes(VariableMeaning::kOwnCopy);
  return question.synchronization == Synchronization::kOnRead ? on_read(question) : on_write(question);
}

Decision can_make_variable(Synchronization synchronization, Aggregation aggregation, std::int64_t replicas) {
  if (synchronization > Synchronization::kOnRead)
    return Decision::no("Invalid variable synchronization mode");
  if (aggregation > Aggregation::kSlices) return Decision::no("Invalid variable aggregation mode");
  if (aggregation == Aggregation::kSlices && synchronization != Synchronization::kOnRead)
    return Decision::no("copies that are slices differ: use Synchronization::kOnRead");
  if (synchronization != Synchronization::kNone || replicas == 1) return Decision::yes();
  return Decision::no(
      "`NONE` variable synchronization mode is not supported by strategies with replicas: use kAuto, "
      "kOnWrite or kOnRead");
}

}  // namespace lockstep
