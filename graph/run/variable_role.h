// graph/run/variable_role.h - the role of a declared variable in a store: on its own or a copy, and how its
// copies form a value.
//
// Thread safety: a pure function.
#pragma once

#include "lockstep/core/base/export.h"
#include "lockstep/core/variable_store.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

// Copies of a variable that is synchronized on read are summed, averaged, represented by the first, joined or
// left apart, according to its aggregation; all other copies are equal.
LOCKSTEP_API VariableRole role_of(const VariableDecl& decl);
// The reverse: makes the declaration state what the role says about the copies. If the copies are equal, the
// declaration is left as it was.
LOCKSTEP_API void declare_as(const VariableRole& role, VariableDecl& decl);

}  // namespace lockstep
