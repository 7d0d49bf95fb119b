// graph/ops/shapes.cpp - ops that move elements and change shapes.
#include "lockstep/graph/ops/shapes.h"

#include "lockstep/graph/internal/builtin_ops.h"

namespace lockstep {

void register_shapes_ops(OpRegistry&) {}

Value shape_of(const Operand&) { throw Error(ErrorCode::kUnimplemented, "shape_of"); }
Value reshape(const Operand&, const Shape&) { throw Error(ErrorCode::kUnimplemented, "reshape"); }
Value reshape(const Operand&, const Value&) { throw Error(ErrorCode::kUnimplemented, "reshape"); }
Value broadcast_to(const Operand&, const Shape&) { throw Error(ErrorCode::kUnimplemented, "broadcast_to"); }
Value broadcast_to(const Operand&, const Value&) { throw Error(ErrorCode::kUnimplemented, "broadcast_to"); }
Value sum_to(const Operand&, const Value&) { throw Error(ErrorCode::kUnimplemented, "sum_to"); }
Value zeros_like(const Operand&) { throw Error(ErrorCode::kUnimplemented, "zeros_like"); }
Value ones_like(const Operand&) { throw Error(ErrorCode::kUnimplemented, "ones_like"); }
Value concat(const std::vector<Value>&, std::int64_t, SourceSite) {
  throw Error(ErrorCode::kUnimplemented, "concat");
}

}  // namespace lockstep
