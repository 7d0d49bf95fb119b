// graph/ops/indexing.cpp - ops that pick and place elements by index.
#include "lockstep/graph/ops/indexing.h"

#include "lockstep/graph/internal/builtin_ops.h"

namespace lockstep {

void register_indexing_ops(OpRegistry&) {}

Value gather(const Operand&, const Value&, std::int64_t) { throw Error(ErrorCode::kUnimplemented, "gather"); }
Value scatter_add(const Value&, const Value&, const Value&, SourceSite) {
  throw Error(ErrorCode::kUnimplemented, "scatter_add");
}

}  // namespace lockstep
