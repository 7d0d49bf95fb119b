// graph/run/variable_role.h - what a declared variable is in a store: by itself or a copy, and what its
// copies are together.
//
// Thread safety: a pure function.
#pragma once

#include "lockstep/core/export.h"
#include "lockstep/core/variable_store.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

// Copies of what is synchronized on read are summed, averaged, represented by the first, joined or left apart,
// as the aggregation says; all others are equal.
LOCKSTEP_API VariableRole role_of(const VariableDecl& decl);
// The other way round: a declaration that says what the role says of the copies. Of copies that are equal it
// says what it said.
LOCKSTEP_API void declare_as(const VariableRole& role, VariableDecl& decl);

}  // namespace lockstep
