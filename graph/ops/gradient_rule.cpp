// graph/ops/gradient_rule.cpp - gradients as values, and the ops that rules share.
#include "lockstep/graph/ops/gradient_rule.h"

#include "lockstep/core/error.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {

Gradient::Gradient(const Value& dense) : value_(dense) {}
Gradient::Gradient(const IndexedSlices& rows)
    : value_(rows.values), indices_(rows.indices), dense_shape_(rows.dense_shape) {}

const Value& Gradient::dense() const {
  if (!valid()) throw FailedPrecondition("this gradient is empty: nothing flows back; check valid()");
  if (is_sparse()) {
    throw FailedPrecondition(
        "this gradient is IndexedSlices (rows of a gather); to_dense() makes it one value",
        place_of(value_.builder().graph().node(value_.id().node)));
  }
  return value_;
}

IndexedSlices Gradient::slices() const {
  if (!is_sparse()) throw FailedPrecondition("this gradient is not IndexedSlices; use dense()");
  return {indices_, value_, dense_shape_};
}

Value to_dense(const Gradient& gradient) {
  if (!gradient.is_sparse()) return gradient.dense();
  const IndexedSlices rows = gradient.slices();
  return scatter_add(rows.indices, rows.values, rows.dense_shape);
}

Value GradientContext::grad(std::size_t i) const {
  if (has_grad(i)) return output_gradients_[i];
  const Value& output = outputs_[i];
  // Made from the shape alone if it is known: then it is the same on all replicas.
  if (output.shape().is_known()) return full(output.builder(), output.dtype(), output.shape(), 0);
  return zeros_like(output);
}

Value sum_to_like(const Value& value, const Value& like) {
  const bool same = value.shape().is_known() && value.shape() == like.shape();
  return same ? value : sum_to(value, shape_of(like));
}

}  // namespace lockstep
