// graph/ops/shapes.h - ops that move elements and change shapes.
//
// Thread safety: as the builder.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// A shape given as a Value is an i64 vector that must follow from constants and from shapes: see
// OpDef::shape_operands.

// The dimensions of x, i64[rank]; costs nothing, and does not look at the contents of x.
LOCKSTEP_API Value shape_of(const Operand& x);
// The same elements under another shape; one dimension may be -1 and is computed. Costs nothing.
LOCKSTEP_API Value reshape(const Operand& x, const Shape& shape);
LOCKSTEP_API Value reshape(const Operand& x, const Value& shape);
// x repeated along new axes and along those of extent 1, as NumPy broadcasts.
LOCKSTEP_API Value broadcast_to(const Operand& x, const Shape& shape);
LOCKSTEP_API Value broadcast_to(const Operand& x, const Value& shape);
// The reverse: the sum of x over the elements that broadcasting a tensor of that shape to x's shape would
// repeat. Costs nothing if the shapes turn out equal.
LOCKSTEP_API Value sum_to(const Operand& x, const Shape& shape);
LOCKSTEP_API Value sum_to(const Operand& x, const Value& shape);
// Zeros / ones of the dtype and shape of x. In the code of a replica they are the replica's own if x is.
LOCKSTEP_API Value zeros_like(const Operand& x);
LOCKSTEP_API Value ones_like(const Operand& x);
// x with axes of extent 1 at these places of the result, which may count from its end. Costs nothing.
LOCKSTEP_API Value expand_dims(const Operand& x, std::vector<std::int64_t> axes);
inline Value expand_dims(const Operand& x, std::int64_t axis) { return expand_dims(x, std::vector{axis}); }
// x without these axes, all of extent 1. If none is named: without all axes of extent 1, and then all extents
// of x must be known. Costs nothing.
LOCKSTEP_API Value squeeze(const Operand& x, std::vector<std::int64_t> axes = {});

// Axis i of the result is axis perm[i] of x; empty: the axes in reverse order.
LOCKSTEP_API Value transpose(const Operand& x, std::vector<std::int64_t> perm = {});
// Backwards along these axes; empty: along all.
LOCKSTEP_API Value flip(const Operand& x, std::vector<std::int64_t> axes = {});
// x repeated as a whole, reps[i] times along axis i.
LOCKSTEP_API Value tile(const Operand& x, std::vector<std::int64_t> reps);
LOCKSTEP_API Value tile(const Operand& x, const Value& reps);
// Joined along an axis; the shapes may differ only along it.
LOCKSTEP_API Value concat(const std::vector<Value>& values, std::int64_t axis,
                          SourceSite site = SourceSite::current());
// Joined along a new axis; all of one shape.
LOCKSTEP_API Value stack(const std::vector<Value>& values, std::int64_t axis = 0,
                         SourceSite site = SourceSite::current());
// Cut along an axis into pieces of these extents; one of them may be -1 and is computed.
LOCKSTEP_API std::vector<Value> split(const Operand& x, std::vector<std::int64_t> sizes, std::int64_t axis);
LOCKSTEP_API std::vector<Value> split(const Operand& x, const Value& sizes, std::int64_t axis);
// Into `parts` pieces of equal extent.
LOCKSTEP_API std::vector<Value> split_evenly(const Operand& x, std::int64_t parts, std::int64_t axis);

// As a begin or an end of slice(): as far as the axis goes, in the direction of the step.
inline constexpr std::int64_t kOpen = std::numeric_limits<std::int64_t>::max();
// x[begin[0]:end[0]:steps[0], ...] as NumPy reads it: negative begins and ends count from the end, both are
// cut to the axis, steps may be negative. Axes after the last named one stay whole; without steps each step
// is 1.
LOCKSTEP_API Value slice(const Operand& x, std::vector<std::int64_t> begin, std::vector<std::int64_t> end,
                         std::vector<std::int64_t> steps = {});
// The piece of this size that begins at `begin`, each with one element per axis; a size of -1 goes to the end
// of the axis. Nothing is cut: a piece that leaves x is an error. Both are shape operands: they follow from
// constants and from shapes. For a place that is computed during the step use slice_at().
LOCKSTEP_API Value slice(const Operand& x, const Value& begin, const Value& size);
// The reverse: zeros of that shape, with x at the places that slice() with the same arguments would read.
LOCKSTEP_API Value unslice(const Operand& x, const Value& shape, std::vector<std::int64_t> begin,
                           std::vector<std::int64_t> end, std::vector<std::int64_t> steps = {});
LOCKSTEP_API Value unslice(const Operand& x, const Value& shape, const Value& begin);
// The piece of `size` elements along an axis that begins at a place computed by the step: slice_at(x, id * n,
// n). `begin` is an integer scalar; a piece that leaves x fails the step. Instead of the size, the shape of
// the piece can be given as a shape operand; only its extent along the axis counts.
LOCKSTEP_API Value slice_at(const Operand& x, const Operand& begin, std::int64_t size, std::int64_t axis = 0);
LOCKSTEP_API Value slice_at(const Operand& x, const Operand& begin, const Value& shape,
                            std::int64_t axis = 0);
// The reverse: zeros of that shape, with x at `begin`.
LOCKSTEP_API Value unslice_at(const Operand& x, const Operand& begin, const Value& shape,
                              std::int64_t axis = 0);
// x with before[i] elements of that value before it and after[i] elements after it along axis i.
LOCKSTEP_API Value pad(const Operand& x, std::vector<std::int64_t> before, std::vector<std::int64_t> after,
                       double value = 0);

}  // namespace lockstep
