// graph/train/gradients.h - reverse-mode derivatives, as nodes of the same graph.
//
//   Value loss = mean(square(matmul(x, b.read(w)) - y));
//   std::vector<Gradient> g = gradients(loss, {x, z});        // of values
//   std::vector<Gradient> h = gradients(loss, {w});           // of variables: all that is read of them
//   Value second = gradients(sum(square(g[0])), {x})[0];      // gradient nodes are ordinary nodes
//
// gradients() walks back from the target and asks each op's gradient rule (OpDef::gradient) for nodes that compute
// what flows into its inputs. The new nodes are named "gradients/<node>/..." and carry the source line of the node
// they belong to; Provenance::made_by says "gradients", and the origin is that node. Where several flows meet they are added in a fixed order.
//
// Inside a region (the functions of cond, while_loop, ...) the target may depend on values of enclosing graphs, and these or
// the variables read there may be what is asked for: flows pass on through what the region captured. The carried values of a
// loop are where they end.
//
// A Gradient is a dense Value or IndexedSlices: rows of the gradient of gather(), which optimizers apply without making
// them dense. It converts to a Value where it is dense; to_dense() is the explicit way for the other kind. Where slices
// flow on into an op that is not a gather, they are made dense by a visible to_dense node.
//
// A rule of one's own: an op's OpDef::gradient, or custom_gradient() around any function. A rule for y = f(a, b):
//
//   def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
//     return {sum_to_like(c.grad() * c.input(1), c.input(0)), sum_to_like(c.grad() * c.input(0), c.input(1))};
//   };
//
// Errors (InvalidArgument, naming node and line): the target is not a floating scalar and no seed is given; an op on
// the way has no rule; a region on the way reads a variable that is asked for; a wanted value is not connected and
// Unconnected::kError was asked for.
// Thread safety: as the builder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/core/source_site.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

// Some rows of a tensor of shape `dense_shape`: row i of `values` belongs at row indices[i] of the dense tensor; a row
// that is named twice counts twice. All other rows are zero.
struct IndexedSlices {
  Value indices;      // i64[k]
  Value values;       // [k, ...]
  Value dense_shape;  // i64[rank], as of shape_of()
};

class LOCKSTEP_API Gradient {
 public:
  Gradient() = default;                 // nothing flows back
  Gradient(const Value& dense);         // NOLINT(google-explicit-constructor)
  Gradient(const IndexedSlices& rows);  // NOLINT(google-explicit-constructor)

  bool valid() const { return value_.valid(); }
  bool is_sparse() const { return indices_.valid(); }
  // Throw FailedPrecondition where there is none, or it is of the other kind.
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
  // Does anything flow back into output i? (Always, where there is but one.)
  bool has_grad(std::size_t i = 0) const { return output_gradients_[i].valid(); }
  // What flows back into output i; zeros of its shape where nothing does.
  Value grad(std::size_t i = 0) const;

 private:
  const Node& node_;
  const NodeView& view_;
  std::span<const Value> inputs_;
  std::span<const Value> outputs_;
  std::span<const Value> output_gradients_;
};

// The sum of `value` over what broadcasting `like` to its shape repeated: the gradient of a broadcast operand.
LOCKSTEP_API Value sum_to_like(const Value& value, const Value& like);

// What to give for a value that the target does not depend on.
enum class Unconnected : std::uint8_t { kZero, kError };

struct GradientOptions {
  Unconnected unconnected = Unconnected::kZero;
  // What flows into the target, of its dtype and shape; absent: ones, and the target must be a scalar.
  Value seed = {};
};

LOCKSTEP_API std::vector<Gradient> gradients(const Value& target, std::span<const Value> of,
                                             const GradientOptions& options = {},
                                             SourceSite site = SourceSite::current());
inline std::vector<Gradient> gradients(const Value& target, std::initializer_list<Value> of,
                                       const GradientOptions& options = {},
                                       SourceSite site = SourceSite::current()) {
  return gradients(target, std::span<const Value>(of.begin(), of.size()), options, site);
}
// Of variables: of what the step reads of each before it first writes it. A region that reads one which the graph around it has
// written begins anew, with the value it finds: so does each step of a loop, or of several in one graph.
LOCKSTEP_API std::vector<Gradient> gradients(const Value& target, std::span<const VariableRef> of,
                                             const GradientOptions& options = {},
                                             SourceSite site = SourceSite::current());
inline std::vector<Gradient> gradients(const Value& target, std::initializer_list<VariableRef> of,
                                       const GradientOptions& options = {},
                                       SourceSite site = SourceSite::current()) {
  return gradients(target, std::span<const VariableRef>(of.begin(), of.size()), options, site);
}

// x, through which nothing flows back.
LOCKSTEP_API Value stop_gradient(const Operand& x);

// forward(inputs), with a rule of one's own in place of those of the ops it is made of. The rule sees the inputs, the output and
// what flows into it, and gives one value per input, empty where nothing flows back; it is traced here, once.
//
//   Value y = custom_gradient({x}, [](auto in) { return round(in[0]); },          // straight through
//                             [](auto, Value, Value flow) -> std::vector<Value> { return {flow}; });
using CustomForwardFn = std::function<Value(std::span<const Value> inputs)>;
using CustomBackwardFn =
    std::function<std::vector<Value>(std::span<const Value> inputs, const Value& output, const Value& flow)>;
LOCKSTEP_API Value custom_gradient(std::span<const Value> inputs, const CustomForwardFn& forward,
                                   const CustomBackwardFn& backward, SourceSite site = SourceSite::current());
inline Value custom_gradient(std::initializer_list<Value> inputs, const CustomForwardFn& forward,
                             const CustomBackwardFn& backward, SourceSite site = SourceSite::current()) {
  return custom_gradient(std::span<const Value>(inputs.begin(), inputs.size()), forward, backward, site);
}

// x, to be kept for the way back. What was computed on the way to it, since the last kept values, need not be: the pass
// recompute-checkpoints (graph/passes/recompute_checkpoints.h) lets gradients compute it again instead.
LOCKSTEP_API Value checkpoint(const Operand& x);

}  // namespace lockstep
