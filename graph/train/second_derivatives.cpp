// graph/train/second_derivatives.cpp - gradient rules that call gradients() themselves.
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/graph/ops/internal/builtin_ops.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/rules/internal/axes.h"
#include "lockstep/graph/train/gradients.h"

namespace lockstep {
namespace {

// The second derivative goes through the same formulas, written with ordinary ops, in which mean and rstd are
// functions of x. Copies of the inputs separate what flows through this op from what flows through any other
// connection between them.
std::vector<Gradient> layer_norm_grad_gradient(GradientContext& c) {
  const Value x = identity(c.input(0));
  const Value gamma = identity(c.input(1));
  const Value g = identity(c.input(4));
  const std::vector<std::int64_t> axes = internal::last_axes(gamma.shape().rank());
  const Value distance = x - mean(x, axes, true);
  const Value variance = mean(square(distance), axes, true);
  const Value rstd = rsqrt(variance + c.view().get<double>("epsilon"));
  const Value normal = distance * rstd;
  const Value scaled = g * gamma;
  const Value slope = normal * mean(scaled * normal, axes, true);
  const Value level = scaled - mean(scaled, axes, true);
  const Value outputs[] = {rstd * (level - slope), sum_to_like(g * normal, gamma), sum_to_like(g, gamma)};
  Value total;
  for (std::size_t i = 0; i < 3; ++i) {
    if (!c.has_grad(i)) continue;
    const Value part = sum(outputs[i] * c.grad(i));
    total = total.valid() ? total + part : part;
  }
  const std::vector<Gradient> flows = gradients(total, {x, gamma, g});
  return {flows[0], flows[1], Gradient(), Gradient(), flows[2]};
}

// To differentiate it again, element i is written as the product along row i of a matrix whose row i has 1 in
// place of x[i].
std::vector<Gradient> prod_of_others_gradient(GradientContext& c) {
  const Value x = identity(c.input());
  const auto axis = static_cast<std::size_t>(internal::normal_axis(c.view()));
  const Value place = cumsum(cast(ones_like(x), DType::kI32), static_cast<std::int64_t>(axis));
  const Value dims = shape_of(x);
  std::vector<std::int64_t> before, after;
  for (std::size_t i = 0; i < x.shape().rank(); ++i) {
    if (i == axis) before.push_back(-1);
    before.push_back(static_cast<std::int64_t>(i));
    after.push_back(static_cast<std::int64_t>(i));
    if (i == axis) after.push_back(-1);
  }
  // The dimensions of x with a 1 inserted at the place of -1.
  const auto with_one = [&](std::vector<std::int64_t> places) {
    for (std::int64_t& p : places) p = p < 0 ? static_cast<std::int64_t>(x.shape().rank()) : p;
    const Value one = c.builder().constant(Tensor::from<std::int64_t>({1}, {1}));
    const Value all = concat({dims, one}, 0);
    const Shape shape{static_cast<std::int64_t>(places.size())};
    return gather(
        all, c.builder().constant(Tensor::from<std::int64_t>(shape, std::span<const std::int64_t>(places))));
  };
  const Value rows = with_one(after), columns = with_one(before);
  const Value same = equal(reshape(place, rows), reshape(place, columns));
  const Value matrix = where(same, 1, reshape(x, columns));
  const Value others = prod(matrix, {static_cast<std::int64_t>(axis) + 1});
  return {gradients(sum(others * c.grad()), {x})[0]};
}

}  // namespace

GradientFn internal::gradient_of_layer_norm_grad() { return layer_norm_grad_gradient; }
GradientFn internal::gradient_of_prod_of_others() { return prod_of_others_gradient; }

}  // namespace lockstep
