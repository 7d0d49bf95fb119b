// graph/ops/gradient_rule.h - the input, the tools and the result of an op's gradient rule.
//
//   def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
//     return {sum_to_like(c.grad() * c.input(1), c.input(0)),
//             sum_to_like(c.grad() * c.input(0), c.input(1))};
//   };
//
// A rule gives one Gradient per input, an empty one if nothing flows back. gradients() calls it
// (graph/train/gradients.h). Thread safety: as the builder.
#pragma once

#include <cstddef>
#include <span>
#include <tuple>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep {

// Some rows of a tensor of shape `dense_shape`: row i of `values` belongs at row indices[i] of the dense
// tensor; a row that is named twice counts twice. All other rows are zero. A template, so that functions of a
// step take and give slices like any nest (strategies/trace/nest.h).
template <class T>
struct IndexedSlicesOf {
  T indices;      // i64[k]
  T values;       // [k, ...]
  T dense_shape;  // i64[rank], as of shape_of()

  auto fields() { return std::tie(indices, values, dense_shape); }
  auto fields() const { return std::tie(indices, values, dense_shape); }
};
using IndexedSlices = IndexedSlicesOf<Value>;

class LOCKSTEP_API Gradient {
 public:
  Gradient() = default;                 // nothing flows back
  Gradient(const Value& dense);         // NOLINT(google-explicit-constructor)
  Gradient(const IndexedSlices& rows);  // NOLINT(google-explicit-constructor)

  bool valid() const { return value_.valid(); }
  bool is_sparse() const { return indices_.valid(); }
  // Throw FailedPrecondition if there is no gradient, or it is of the other kind.
  const Value& dense() const;
  IndexedSlices slices() const;
  operator Value() const { return dense(); }  // NOLINT(google-explicit-constructor)

 private:
  Value value_;  // dense, or the rows
  Value indices_, dense_shape_;
};

// The gradient as one dense value; slices become a scatter of their rows into zeros.
LOCKSTEP_API Value to_dense(const Gradient& gradient);

class LOCKSTEP_API GradientContext {
 public:
  GradientContext(const Node& node, const NodeView& view, std::span<const Value> inputs,
                  std::span<const Value> outputs, std::span<const Value> output_gradients)
      : node_(node), view_(view), inputs_(inputs), outputs_(outputs), output_gradients_(output_gradients) {}

  const Node& node() const { return node_; }
  const NodeView& view() const { return view_; }  // attributes: c.view().get<bool>("keepdims")
  GraphBuilder& builder() const { return outputs_[0].builder(); }
  std::size_t num_inputs() const { return inputs_.size(); }
  std::size_t num_outputs() const { return outputs_.size(); }
  const Value& input(std::size_t i = 0) const { return inputs_[i]; }
  const Value& output(std::size_t i = 0) const { return outputs_[i]; }
  std::span<const Value> inputs() const { return inputs_; }
  // Does anything flow back into output i? (Always, if there is only one output.)
  bool has_grad(std::size_t i = 0) const { return output_gradients_[i].valid(); }
  // What flows back into output i; zeros of its shape if nothing does.
  Value grad(std::size_t i = 0) const;

 private:
  const Node& node_;
  const NodeView& view_;
  std::span<const Value> inputs_;
  std::span<const Value> outputs_;
  std::span<const Value> output_gradients_;
};

// The sum of `value` over the elements that broadcasting `like` to its shape repeats: the gradient of a
// broadcast operand.
LOCKSTEP_API Value sum_to_like(const Value& value, const Value& like);

}  // namespace lockstep
