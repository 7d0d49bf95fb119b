// strategies/trace/variable_rules.h - what reading and assigning a distributed variable means: the whole
// table, as one function.
//
// Rows are synchronization x aggregation; columns are the action, its context and the kind of value. An
// answer is either what happens or why it is refused.
//
//                         replica read  replica assign           cross read   cross assign      cross assign_add
//   ON_WRITE, none        own copy      refused                  copy 0       every copy        every copy
//   ON_WRITE, sum         own copy      sum of the replicas'     copy 0       every copy        every copy
//   ON_WRITE, mean        own copy      mean of the replicas'    copy 0       every copy        every copy
//   ON_WRITE, only first  own copy      replica 0's              copy 0       every copy        every copy
//   ON_READ, none         own copy      own copy                 refused      every copy        every copy
//   ON_READ, sum          own copy      own copy                 sum          value / replicas  refused
//   ON_READ, mean         own copy      own copy                 mean         every copy        every copy
//   ON_READ, only first   own copy      own copy                 copy 0       every copy        every copy
//   ON_READ, slices       own copy      own copy                 joined       refused           refused
//   NONE, any             refused when it is made, if there are several replicas
//
// kAuto is ON_WRITE, and with one replica so is kNone. A replica's assignment aggregates the argument, not
// the variable. A sum of values that are the same on all replicas is refused (divide first if it is intended;
// but the number 0 may be written), and so is a mean of integers that differ; with one replica nothing is
// refused. Assigning rows follows the same rules as assigning the whole value, except that setting rows has
// no sum and no mean, and variables that are synchronized on read have no rows. Inside Strategy::update() a
// variable is the copy that is being updated, whatever its row says. A may_drift variable is each replica's
// own: it has no value outside of the replicas. Slices are changed as one value only outside of functions
// (Variable::assign, assign_add and assign_sub of a tensor).
//
// Thread safety: functions of their arguments, from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/strategies/trace/context.h"
#include "lockstep/strategies/trace/values.h"

namespace lockstep {

// kAssignAdd: assign_sub as well. kScatter: rows are added, subtracted, multiplied or divided by;
// kScatterSet: rows are set, or the larger or smaller is taken.
enum class VariableAction : std::uint8_t { kRead, kAssign, kAssignAdd, kScatter, kScatterSet };

struct VariableQuestion {
  Synchronization synchronization = Synchronization::kAuto;
  Aggregation aggregation = Aggregation::kNone;
  ContextKind context = ContextKind::kReplica;
  VariableAction action = VariableAction::kRead;
  ReplicaKind value = ReplicaKind::kPerReplica;  // of the argument
  bool floating = true;                          // the variable's dtype
  std::int64_t replicas = 2;
  bool may_drift = false;  // its user allows copies to differ: each replica then changes its own
};

enum class VariableMeaning : std::uint8_t {
  kOwnCopy,    // read it, or change it by this replica's value
  kFirstCopy,  // read copy 0
  kSumCopies,  // read them all
  kMeanCopies,
  kJoinCopies,
  kEveryCopy,  // change every copy by the value
  kShareEach,  // change every copy by value / replicas
  kSum,        // change every copy by the sum of the replicas' values
  kMean,
  kFirstReplica,  // change every copy by replica 0's value
  kRefused
};
LOCKSTEP_API std::string_view to_string(VariableMeaning meaning);

struct VariableAnswer {
  VariableMeaning meaning = VariableMeaning::kRefused;
  std::string reason = {};  // if it is refused
};

LOCKSTEP_API VariableAnswer variable_rule(const VariableQuestion& question);
// Whether a variable of this kind may be made at all.
LOCKSTEP_API Decision can_make_variable(Synchronization synchronization, Aggregation aggregation,
                                        std::int64_t replicas);

}  // namespace lockstep
