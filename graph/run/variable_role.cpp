#include "lockstep/graph/run/variable_role.h"

namespace lockstep {
namespace {

CopyRule rule_of(const VariableDecl& decl) {
  if (decl.synchronization != Synchronization::kOnRead) return CopyRule::kEqual;
  switch (decl.aggregation) {
    case Aggregation::kSum: return CopyRule::kSum;
    case Aggregation::kMean: return CopyRule::kMean;
    case Aggregation::kOnlyFirstReplica: return CopyRule::kFirst;
    case Aggregation::kNone: break;
  }
  return CopyRule::kApart;
}

}  // namespace

VariableRole role_of(const VariableDecl& decl) { return {decl.copy_of, rule_of(decl)}; }

}  // namespace lockstep
