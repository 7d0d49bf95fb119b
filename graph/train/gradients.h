// graph/train/gradients.h - reverse-mode derivatives, as nodes of the same graph.
//
//   Value loss = mean(square(matmul(x, b.read(w)) - y));
//   std::vector<Gradient> g = gradients(loss, {x, z});        // of values
//   std::vector<Gradient> h = gradients(loss, {w});           // of variables: all that is read of them
//   Value second = gradients(sum(square(g[0])), {x})[0];      // gradient nodes are ordinary nodes
//
// gradients() walks back from the target and asks each op's gradient rule (OpDef::gradient) for nodes that
// compute what flows into its inputs. The new nodes are named "gradients/<node>/..." and carry the source
// line of the node they belong to; Provenance::made_by says "gradients", and the origin is that node. If
// several flows meet they are added in a fixed order.
//
// Inside a region (the functions of cond, while_loop, ...) the target may depend on values of enclosing
// graphs, and gradients by these, or by the variables read there, may be asked for: flows continue outwards
// through captured values. They end at the carried values of a loop.
//
// A Gradient is a dense Value or IndexedSlices: rows of the gradient of gather(), which optimizers apply
// without making them dense. A dense one converts to a Value; for the other kind call to_dense(). If slices
// flow on into an op that is not a gather, a visible to_dense node makes them dense.
//
// Custom rules: an op's OpDef::gradient, or custom_gradient() around any function. A rule for y = f(a, b):
//
//   def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
//     return {sum_to_like(c.grad() * c.input(1), c.input(0)),
//             sum_to_like(c.grad() * c.input(0), c.input(1))};
//   };
//
// Errors (InvalidArgument, naming node and line): the target is not a floating scalar and no seed is given;
// an op on the way has no rule; a region on the way reads a variable that is asked for; a wanted value is not
// connected and Unconnected::kError was asked for.
// Thread safety: as the builder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/source_site.h"
#include "lockstep/graph/build/value.h"
#include "lockstep/graph/ops/gradient_rule.h"

namespace lockstep {

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
LOCKSTEP_API std::vector<Gradient> gradients(const Value& target, std::initializer_list<Value> of,
                                             const GradientOptions& options = {},
                                             SourceSite site = SourceSite::current());
// By variables: by every read of a variable before the step first writes it. If the graph around a region has
// written a variable, the region starts anew with the value it finds; so does each step of a loop, or of
// several in one graph.
LOCKSTEP_API std::vector<Gradient> gradients(const Value& target, std::span<const VariableRef> of,
                                             const GradientOptions& options = {},
                                             SourceSite site = SourceSite::current());
LOCKSTEP_API std::vector<Gradient> gradients(const Value& target, std::initializer_list<VariableRef> of,
                                             const GradientOptions& options = {},
                                             SourceSite site = SourceSite::current());

// x, through which nothing flows back.
LOCKSTEP_API Value stop_gradient(const Operand& x);

// forward(inputs), with a custom rule in place of the rules of its ops. The rule sees the inputs, the output
// and what flows into it, and gives one value per input, empty if nothing flows back; it is traced here,
// once.
//
//   Value y = custom_gradient({x}, [](auto in) { return round(in[0]); },          // straight through
//                             [](auto, Value, Value flow) -> std::vector<Value> { return {flow}; });
using CustomForwardFn = std::function<Value(std::span<const Value> inputs)>;
using CustomBackwardFn =
    std::function<std::vector<Value>(std::span<const Value> inputs, const Value& output, const Value& flow)>;
LOCKSTEP_API Value custom_gradient(std::span<const Value> inputs, const CustomForwardFn& forward,
                                   const CustomBackwardFn& backward, SourceSite site = SourceSite::current());
LOCKSTEP_API Value custom_gradient(std::initializer_list<Value> inputs, const CustomForwardFn& forward,
                                   const CustomBackwardFn& backward, SourceSite site = SourceSite::current());

// x, to be kept for the way back. Values computed on the way to it, since the last kept ones, need not be
// kept: the pass recompute-checkpoints (graph/passes/recompute_checkpoints.h) lets gradients compute them
// again instead.
LOCKSTEP_API Value checkpoint(const Operand& x);

}  // namespace lockstep
