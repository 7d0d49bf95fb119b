// graph/ops/elementwise.cpp - ops that work element by element: what they share, identity, where, clip and
// cast. The rest is in elementwise_unary.cpp and elementwise_binary.cpp.
#include "lockstep/core/kernels/elementwise.h"

#include <array>
#include <cmath>
#include <cstring>

#include "lockstep/core/kernels/broadcast.h"
#include "lockstep/core/kernels/cast.h"
#include "lockstep/graph/ops/gradient_rule.h"
#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/internal/elementwise_ops.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {

// --- what element-wise ops share

namespace {

using internal::elementwise_op;
using internal::unary_kernel;
using internal::unary_node;
using internal::value_of;
using internal::Weight;

double flops_of(Weight weight) {
  switch (weight) {
    case Weight::kLight: return 1;
    case Weight::kMedium: return 16;
    case Weight::kHeavy: break;
  }
  return 100;
}

// Elements per shard: 20 to 100 us of work.
std::int64_t grain_of(Weight weight) {
  switch (weight) {
    case Weight::kLight: return 64 << 10;
    case Weight::kMedium: return 32 << 10;
    case Weight::kHeavy: break;
  }
  return 8 << 10;
}

const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }
std::int64_t element_size(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

}  // namespace

OpDef internal::elementwise_op(std::string name, std::string summary, std::size_t inputs, Weight weight) {
  OpDef def;
  def.name = std::move(name);
  def.summary = std::move(summary);
  def.inputs = Arity::exactly(inputs);
  def.traits.elementwise = true;
  def.traits.shape_math = true;
  def.traits.in_place = true;
  def.traits.infallible = true;
  def.cost = [flops = flops_of(weight)](const NodeView& node, std::span<const TensorSpec> outputs) {
    Cost cost;
    cost.flops = flops * static_cast<double>(outputs[0].shape.num_elements());
    cost.bytes = static_cast<double>(num_bytes(outputs[0]));
    for (const TensorSpec& input : node.inputs()) cost.bytes += static_cast<double>(num_bytes(input));
    return cost;
  };
  def.split = [grain = grain_of(weight)](const NodeView&, std::span<const TensorSpec> outputs) -> Split {
    return {shards_for(outputs[0].shape.num_elements(), grain), 0, false};
  };
  return def;
}

KernelFn internal::unary_kernel(kernels::UnaryLoop loop, const TensorSpec& in, const TensorSpec& out) {
  return [loop, n = out.shape.num_elements(), in_size = element_size(in.dtype),
          out_size = element_size(out.dtype)](KernelContext& c) {
    const auto [begin, end] = c.range(n);
    loop(bytes(c.input(0)) + begin * in_size, bytes(c.output(0)) + begin * out_size, end - begin);
  };
}

KernelFn internal::binary_kernel(kernels::BinaryLoop loop, const NodeView& node, const TensorSpec& out) {
  const kernels::Broadcast plan(out.shape, {&node.input(0).shape, &node.input(1).shape});
  const std::int64_t n = out.shape.num_elements();
  const std::int64_t size = element_size(node.input(0).dtype);
  const std::int64_t out_size = element_size(out.dtype);
  if (plan.flat()) {
    return [loop, n, a_moves = plan.moves(0), b_moves = plan.moves(1), size, out_size](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      const std::byte* const a = bytes(c.input(0)) + (a_moves ? begin * size : 0);
      const std::byte* const b = bytes(c.input(1)) + (b_moves ? begin * size : 0);
      kernels::at_element(begin, [&, from = begin, count = end - begin] {
        loop(a, a_moves, b, b_moves, bytes(c.output(0)) + from * out_size, count);
      });
    };
  }
  return [loop, plan, n, size, out_size](KernelContext& c) {
    const auto [begin, end] = c.range(n);
    plan.run<2>(begin, end, {size, size}, {c.input(0), c.input(1)}, c.output(0), out_size,
                [&](const auto& operands, const auto& moves, std::byte* out_at, std::int64_t count) {
                  kernels::at_element((out_at - bytes(c.output(0))) / out_size, [&] {
                    loop(operands[0], moves[0], operands[1], moves[1], out_at, count);
                  });
                });
  };
}

// Can the dtype hold the number, up to rounding? Floating dtypes hold infinities and NaN too, but a finite
// number must not become one.
bool holds(DType dtype, double number) {
  if (is_integer(dtype) && number != std::trunc(number)) return false;
  try {
    const Tensor constant = Tensor::full(dtype, Shape{}, number);
    return !is_floating(dtype) || !std::isfinite(number) || std::isfinite(constant.item());
  } catch (const InvalidArgument&) {
    return false;
  }
}

Value internal::value_of(std::string_view op, const Operand& operand, const Operand& other, SourceSite site) {
  if (!operand.number()) return operand.value_for(op);
  GraphBuilder& builder = other.value_for(op).builder();
  const DType dtype = other.value().dtype();
  const double number = *operand.number();
  const bool exact = dtype == DType::kI64 && operand.integer();
  if (!exact && !holds(dtype, number)) {
    const std::string written = operand.integer() ? str(*operand.integer()) : str(number);
    throw InvalidArgument(str(op, ": ", written, " beside a value of ", dtype,
                              ", which cannot hold it; cast the value, or write a number that fits"),
                          {{}, std::string(op), {}, site.file, site.line, -1});
  }
  const Tensor constant = exact ? Tensor::scalar(*operand.integer()) : Tensor::full(dtype, Shape{}, number);
  return builder.constant(constant, "constant", site);
}

Value internal::unary_node(std::string_view op, const Operand& x) {
  const Value& value = x.value_for(op);
  return value.builder().op1(op, {value}, {}, {}, x.site());
}

Value internal::binary_node(std::string_view op, const Operand& a, const Operand& b) {
  const Value left = value_of(op, a, b, a.site());
  const Value right = value_of(op, b, a, a.site());
  return left.builder().op1(op, {left, right}, {}, {}, a.site());
}

// --- identity, where, clip, cast

namespace {

OpDef identity_op() {
  OpDef def = elementwise_op("identity", "its input", 1);
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  def.source = {"x0"};
  def.traits.alias = true;
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      kernels::copy(dtype, c.input(0), c.output(0), begin, end);
    };
  };
  def.tile = [](const NodeView&, std::span<const TensorSpec> outputs) -> TileFn {
    return [dtype = outputs[0].dtype](const void* const* in, void* out, std::int64_t count) {
      kernels::copy(dtype, in[0], out, 0, count);
    };
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> { return {c.grad()}; };
  return def;
}

void infer_where(InferContext& c) {
  if (c.input(0).dtype != DType::kBool)
    NodeView::fail(str("the condition must be bool, got ", c.input(0), "; compare it with something"));
  if (c.input(1).dtype != c.input(2).dtype)
    NodeView::fail(str("chooses between values of one dtype, got ", c.input(1), " and ", c.input(2)));
  const Shape chosen = broadcast_shapes(c.input(1).shape, c.input(2).shape);
  c.add_output(c.input(1).dtype, broadcast_shapes(c.input(0).shape, chosen));
}

OpDef where_op() {
  OpDef def = elementwise_op("where", "a where the condition holds, else b", 3);
  def.infer = infer_where;
  def.source = {"x0 ? x1 : x2"};
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    const TensorSpec& out = outputs[0];
    return
        [loop = kernels::select_loop(out.dtype), size = element_size(out.dtype), n = out.shape.num_elements(),
         plan = kernels::Broadcast(out.shape, {&node.input(0).shape, &node.input(1).shape,
                                               &node.input(2).shape})](KernelContext& c) {
          const auto [begin, end] = c.range(n);
          plan.run<3>(begin, end, {1, size, size}, {c.input(0), c.input(1), c.input(2)}, c.output(0), size,
                      [&](const auto& in, const auto& moves, std::byte* out_at, std::int64_t count) {
                        loop(in[0], moves[0], in[1], moves[1], in[2], moves[2], out_at, count);
                      });
        };
  };
  def.tile = [](const NodeView&, std::span<const TensorSpec> outputs) -> TileFn {
    return [loop = kernels::select_loop(outputs[0].dtype)](const void* const* in, void* out,
                                                           std::int64_t count) {
      loop(in[0], true, in[1], true, in[2], true, out, count);
    };
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Value a = where(c.input(0), c.grad(), 0);
    const Value b = where(c.input(0), 0, c.grad());
    const Value to_a = sum_to_like(a, c.input(1));
    return {Gradient(), to_a, sum_to_like(b, c.input(2))};
  };
  return def;
}

// One bound of clip, as an element; not given if it bounds nothing.
struct Bound {
  bool given = false;
  alignas(8) std::array<std::byte, 8> element = {};
};

Bound bound_of(std::string_view what, double number, DType dtype) {
  Bound bound;
  if (std::isinf(number)) return bound;
  const auto refuse = [&] {
    NodeView::fail(str(what, " is ", number, ", which ", dtype,
                       " cannot hold; where nothing is to be bounded, give an infinity"));
  };
  if (is_integer(dtype) && number != std::trunc(number)) refuse();
  try {
    const Tensor scalar = Tensor::full(dtype, Shape{}, number);
    std::memcpy(bound.element.data(), scalar.raw(), size_of(dtype));
  } catch (const InvalidArgument&) {
    refuse();
  }
  bound.given = true;
  return bound;
}

TileFn clip_tile(const NodeView& node, std::span<const TensorSpec> outputs) {
  const DType dtype = outputs[0].dtype;
  return [larger = kernels::binary_loop(kernels::BinaryOp::kMaximum, dtype),
          smaller = kernels::binary_loop(kernels::BinaryOp::kMinimum, dtype), size = element_size(dtype),
          low = bound_of("low", node.get<double>("low"), dtype),
          high = bound_of("high", node.get<double>("high"), dtype)](const void* const* in, void* out,
                                                                    std::int64_t count) {
    constexpr std::int64_t kPiece = 1024;  // stays in the first cache between the two loops
    for (std::int64_t at = 0; at < count; at += kPiece) {
      const std::int64_t n = std::min(kPiece, count - at);
      const std::byte* from = bytes(in[0]) + at * size;
      std::byte* to = bytes(out) + at * size;
      if (low.given) {
        larger(from, true, low.element.data(), false, to, n);
        from = to;
      }
      if (high.given) {
        smaller(from, true, high.element.data(), false, to, n);
      } else if (from != to) {
        std::memcpy(to, from, static_cast<std::size_t>(n * size));
      }
    }
  };
}

OpDef clip_op() {
  OpDef def = elementwise_op("clip", "x, but not below low nor above high", 1);
  def.attributes = {{"low", AttributeType::kFloat}, {"high", AttributeType::kFloat}};
  def.infer = [](InferContext& c) {
    const double low = c.get<double>("low");
    const double high = c.get<double>("high");
    const DType dtype = c.input(0).dtype;
    c.require(dtype != DType::kBool, "has no meaning for bool");
    if (!(low <= high)) NodeView::fail(str("low must not be above high, got ", low, " and ", high));
    bound_of("low", low, dtype);
    bound_of("high", high, dtype);
    c.add_output(c.input(0));
  };
  def.tile = clip_tile;
  def.source = {"ls_clip(x0, $low, $high)"};
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [tile = clip_tile(node, outputs), size = element_size(outputs[0].dtype),
            n = outputs[0].shape.num_elements()](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      const void* in = bytes(c.input(0)) + begin * size;
      tile(&in, bytes(c.output(0)) + begin * size, end - begin);
    };
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    const Value above = greater_equal(c.input(), c.view().get<double>("low"));
    const Value below = less_equal(c.input(), c.view().get<double>("high"));
    const Value inside = logical_and(above, below);
    return {where(inside, c.grad(), 0)};
  };
  return def;
}

OpDef check_finite_op() {
  OpDef def = elementwise_op("check_finite", "x; fails where an element is NaN, or infinite", 1);
  def.attributes = {{"infinite", AttributeType::kBool}};
  def.traits.infallible = false;
  def.traits.refuses_floats = true;
  def.infer = [](InferContext& c) {
    if (!is_floating(c.input(0).dtype)) NodeView::fail(str("takes floating values, got ", c.input(0)));
    c.add_output(c.input(0));
  };
  def.source = {"(($infinite != 0 ? isfinite(x0) : !isnan(x0)) ? x0 : (refuse(), x0))"};
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return [dtype = outputs[0].dtype, n = outputs[0].shape.num_elements(),
            infinite = node.get<bool>("infinite")](KernelContext& c) {
      const auto [begin, end] = c.range(n);
      visit_dtype(dtype, [&, first = begin, last = end]<class T>(T) {
        if constexpr (is_floating(dtype_of<T>)) {
          const T* const values = static_cast<const T*>(c.input(0));
          for (std::int64_t i = first; i < last; ++i) {
            using Wide = std::conditional_t<sizeof(T) == 2, float, T>;
            const auto value = static_cast<Wide>(values[i]);
            if (infinite ? std::isfinite(value) : !std::isnan(value)) continue;
            throw RefusedData(str("check_finite: element ", i, " is ", value), i);
          }
        }
      });
      kernels::copy(dtype, c.input(0), c.output(0), begin, end);
    };
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> { return {c.grad()}; };
  return def;
}

OpDef cast_op() {
  OpDef def = elementwise_op("cast", "x as another dtype", 1);
  def.attributes = {{"dtype", AttributeType::kDType}};
  def.traits.alias_if_same = true;
  def.source = {"ls_cast<R>(x0)"};
  def.infer = [](InferContext& c) { c.add_output(c.get<DType>("dtype"), c.input(0).shape); };
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec> outputs) -> KernelFn {
    return unary_kernel(kernels::cast_loop(node.input(0).dtype, outputs[0].dtype), node.input(0), outputs[0]);
  };
  def.tile = [](const NodeView& node, std::span<const TensorSpec> outputs) -> TileFn {
    return [loop = kernels::cast_loop(node.input(0).dtype, outputs[0].dtype)](
               const void* const* in, void* out, std::int64_t count) { loop(in[0], out, count); };
  };
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    if (!is_floating(c.input().dtype())) return {Gradient()};
    return {cast(c.grad(), c.input().dtype())};
  };
  return def;
}

}  // namespace

void internal::register_elementwise_ops(OpRegistry& registry) {
  register_unary_ops(registry);
  register_binary_ops(registry);
  registry.add(identity_op());
  registry.add(where_op());
  registry.add(clip_op());
  registry.add(check_finite_op());
  registry.add(cast_op());
}

Value check_finite(const Operand& x, bool infinite) {
  const Value& value = x.value_for("check_finite");
  return value.builder().op1("check_finite", {value}, {{"infinite", infinite}}, {}, x.site());
}

Value identity(const Operand& x) { return unary_node("identity", x); }

Value where(const Operand& condition, const Operand& a, const Operand& b) {
  const Value& chooser = condition.value_for("where");
  const Value left = value_of("where", a, b, condition.site());
  const Value right = value_of("where", b, a, condition.site());
  return chooser.builder().op1("where", {chooser, left, right}, {}, {}, condition.site());
}

Value clip(const Operand& x, double low, double high) {
  const Value& value = x.value_for("clip");
  return value.builder().op1("clip", {value}, {{"low", low}, {"high", high}}, {}, x.site());
}

Value cast(const Operand& x, DType dtype) {
  const Value& value = x.value_for("cast");
  if (value.dtype() == dtype) return value;
  return value.builder().op1("cast", {value}, {{"dtype", dtype}}, {}, x.site());
}

}  // namespace lockstep
