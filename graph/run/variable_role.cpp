// graph/run/variable_role.cpp - the role of a declared variable in a store: on its own or a copy, and how its
// copies form a value.
#include "lockstep/graph/run/variable_role.h"

namespace lockstep {
namespace {

CopyRule rule_of(const VariableDecl& decl) {
  if (decl.synchronization != Synchronization::kOnRead) return CopyRule::kEqual;
  switch (decl.aggregation) {
    case Aggregation::kSum: return CopyRule::kSum;
    case Aggregation::kMean: return CopyRule::kMean;
    case Aggregation::kOnlyFirstReplica: return CopyRule::kFirst;
    case Aggregation::kSlices: return CopyRule::kSlices;
    case Aggregation::kNone: break;
  }
  return CopyRule::kOwn;
}

}  // namespace

VariableRole role_of(const VariableDecl& decl) {
  return {decl.copy_of, rule_of(decl), decl.slice_axis, decl.slice_extent};
}

void declare_as(const VariableRole& role, VariableDecl& decl) {
  if (role.copies == CopyRule::kEqual) return;
  decl.synchronization = Synchronization::kOnRead;
  decl.slice_axis = role.slice_axis;
  decl.slice_extent = role.slice_extent;
  switch (role.copies) {
    case CopyRule::kSum: decl.aggregation = Aggregation::kSum; break;
    case CopyRule::kMean: decl.aggregation = Aggregation::kMean; break;
    case CopyRule::kFirst: decl.aggregation = Aggregation::kOnlyFirstReplica; break;
    case CopyRule::kSlices: decl.aggregation = Aggregation::kSlices; break;
    case CopyRule::kOwn:
    case CopyRule::kEqual: decl.aggregation = Aggregation::kNone; break;
  }
}

}  // namespace lockstep
