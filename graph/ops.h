// graph/ops.h - the op library as functions on values.
//
// Each function adds one node; its op has the function's name. What every op takes and gives is in docs/ops.md.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/graph/builder.h"
#include "lockstep/graph/value.h"

namespace lockstep {

class OpRegistry;

// Element-wise with NumPy broadcasting; both operands of one dtype. Also as operators.
LOCKSTEP_API Value add(const Operand& a, const Operand& b);
LOCKSTEP_API Value sub(const Operand& a, const Operand& b);
LOCKSTEP_API Value mul(const Operand& a, const Operand& b);
LOCKSTEP_API Value div(const Operand& a, const Operand& b);
LOCKSTEP_API Value less(const Operand& a, const Operand& b);  // bool

LOCKSTEP_API Value identity(const Operand& x);
LOCKSTEP_API Value relu(const Operand& x);
// Rank 2 by rank 2: [m,k] x [k,n] -> [m,n].
LOCKSTEP_API Value matmul(const Operand& a, const Operand& b);
// Over the given axes (all where empty), which may count from the end; keepdims leaves them with extent 1.
LOCKSTEP_API Value sum(const Operand& x, std::vector<std::int64_t> axes = {}, bool keepdims = false);
// This replica's number, i32 scalar: 0 where nothing is replicated.
LOCKSTEP_API Value replica_id(GraphBuilder& builder, SourceSite site = SourceSite::current());

// Called once by OpRegistry::global().
LOCKSTEP_API void register_builtin_ops(OpRegistry& registry);

}  // namespace lockstep
