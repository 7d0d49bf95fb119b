// graph/ops/sources.h - values made from nothing.
//
// Thread safety: as the builder.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// The number of the replica that runs it, i32 scalar: 0 if nothing is replicated.
LOCKSTEP_API Value replica_id(GraphBuilder& builder, SourceSite site = SourceSite::current());

// Every element is `value`. A large tensor is made when the step runs and takes no room in the graph. A shape
// given as a Value must follow from constants and from shapes: see OpDef::shape_operands.
LOCKSTEP_API Value full(GraphBuilder& builder, DType dtype, const Shape& shape, double value,
                        SourceSite site = SourceSite::current());
LOCKSTEP_API Value full(GraphBuilder& builder, DType dtype, const Value& shape, double value,
                        SourceSite site = SourceSite::current());
template <class ShapeOrValue>
Value zeros(GraphBuilder& builder, DType dtype, const ShapeOrValue& shape,
            SourceSite site = SourceSite::current()) {
  return full(builder, dtype, shape, 0, site);
}
template <class ShapeOrValue>
Value ones(GraphBuilder& builder, DType dtype, const ShapeOrValue& shape,
           SourceSite site = SourceSite::current()) {
  return full(builder, dtype, shape, 1, site);
}
inline Value zeros(GraphBuilder& builder, DType dtype, std::initializer_list<std::int64_t> shape,
                   SourceSite site = SourceSite::current()) {
  return full(builder, dtype, Shape(shape), 0, site);
}
inline Value ones(GraphBuilder& builder, DType dtype, std::initializer_list<std::int64_t> shape,
                  SourceSite site = SourceSite::current()) {
  return full(builder, dtype, Shape(shape), 1, site);
}
// start, start + step, start + 2 step, ...: `count` elements, a number or (as a Value) an i64 scalar or
// vector of one that follows from shapes. Floating elements are computed in f64 and rounded once; integers
// wrap around.
LOCKSTEP_API Value iota(GraphBuilder& builder, DType dtype, std::int64_t count, double start = 0,
                        double step = 1, SourceSite site = SourceSite::current());
LOCKSTEP_API Value iota(GraphBuilder& builder, DType dtype, const Value& count, double start = 0,
                        double step = 1, SourceSite site = SourceSite::current());

}  // namespace lockstep
