// Tests: graph/ops/moving.cpp, graph/ops/shapes.cpp, graph/ops/slicing.cpp
// Gradients of ops that move elements, first and second order, with shapes known and unknown.
#include "lockstep/graph/ops/ops.h"
#include "support/gradient_check.h"

namespace lockstep {
namespace {

using testing::expect_gradients;
using testing::random_tensor;
using Inputs = std::span<const Value>;
using Ints = std::vector<std::int64_t>;

Value constant_ints(GraphBuilder& b, const Ints& values) {
  return b.constant(Tensor::from<std::int64_t>({static_cast<std::int64_t>(values.size())},
                                               std::span<const std::int64_t>(values)));
}

// x * x makes the second order other than zero.

TEST(ShapeGradients, Reshape) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return reshape(x[0] * x[0], {-1, 2});
      },
      {random_tensor({2, 3}, 1)});
  expect_gradients([](GraphBuilder&, Inputs x) { return reshape(x[0] * x[0], shape_of(x[1])) * x[1]; },
                   {random_tensor({6}, 1), random_tensor({3, 2}, 2)});
}

TEST(ShapeGradients, ExpandDimsAndSqueeze) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return expand_dims(x[0] * x[0], {0, -1});
      },
      {random_tensor({2, 3}, 1)});
  expect_gradients([](GraphBuilder&, Inputs x) { return squeeze(x[0] * x[0], {1}); },
                   {random_tensor({2, 1, 3}, 1)});
}

TEST(ShapeGradients, BroadcastToAndSumTo) {
  expect_gradients([](GraphBuilder&, Inputs x) { return broadcast_to(x[0] * x[0], shape_of(x[1])) * x[1]; },
                   {random_tensor({2, 1}, 1), random_tensor({3, 2, 2}, 2)});
  expect_gradients([](GraphBuilder&, Inputs x) { return sum_to(x[0] * x[0], shape_of(x[1])) * x[1]; },
                   {random_tensor({3, 2, 2}, 1), random_tensor({2, 1}, 2)});
}

TEST(ShapeGradients, TransposeAndFlip) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return transpose(x[0] * x[0], {2, 0, 1});
      },
      {random_tensor({2, 3, 2}, 1)});
  expect_gradients([](GraphBuilder&, Inputs x) { return flip(x[0] * x[0], {1}); },
                   {random_tensor({2, 3}, 1)});
}

TEST(ShapeGradients, Tile) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return tile(x[0] * x[0], Ints{2, 3});
      },
      {random_tensor({2, 2}, 1)});
  expect_gradients([](GraphBuilder&, Inputs x) { return tile(x[0] * x[0], shape_of(x[1])); },
                   {random_tensor({2, 2}, 1), random_tensor({3, 1}, 2)});
}

TEST(ShapeGradients, ConcatAndStack) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return concat({x[0] * x[0], x[1], x[0]}, 1);
      },
      {random_tensor({2, 3}, 1), random_tensor({2, 1}, 2)});
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return stack({x[0] * x[0], x[1] * x[0]}, -1);
      },
      {random_tensor({2, 3}, 1), random_tensor({2, 3}, 2)});
}

TEST(ShapeGradients, Split) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        const std::vector<Value> pieces = split(x[0] * x[0], Ints{2, -1}, 1);
        return pieces[0] * 3;  // nothing flows back into the other
      },
      {random_tensor({2, 5}, 1)});
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        const std::vector<Value> pieces = split_evenly(x[0], 2, 0);
        return pieces[0] * pieces[1];
      },
      {random_tensor({4, 2}, 1)});
}

TEST(ShapeGradients, SliceAndUnslice) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return slice(x[0] * x[0], {1, kOpen}, {4, kOpen}, {1, -2});
      },
      {random_tensor({5, 4}, 1)});
  expect_gradients(
      [](GraphBuilder& b, Inputs x) {
        const Value begin = constant_ints(b, {1, 0});
        const Value size = constant_ints(b, {2, 3});
        return slice(x[0] * x[0], begin, size);
      },
      {random_tensor({4, 4}, 1)});
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return unslice(x[0] * x[0], shape_of(x[1]), {kOpen}, {kOpen}, {-2}) * x[1];
      },
      {random_tensor({3, 2}, 1), random_tensor({5, 2}, 2)});
  expect_gradients(
      [](GraphBuilder& b, Inputs x) {
        return unslice(x[0] * x[0], shape_of(x[1]), constant_ints(b, {1, 0})) * x[1];
      },
      {random_tensor({3, 2}, 1), random_tensor({5, 2}, 2)});
}

TEST(ShapeGradients, Pad) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return pad(x[0] * x[0], {1, 0}, {0, 2}, 3);
      },
      {random_tensor({2, 3}, 1)});
}

TEST(ShapeGradients, Gather) {
  const Tensor indices = Tensor::from<std::int64_t>({2, 2}, {2, 0, 2, 1});
  const Tensor narrow = Tensor::from<std::int32_t>({3}, {1, 1, 0});
  for (const std::int64_t axis : {0, 1, -1}) {
    expect_gradients([axis](GraphBuilder&, Inputs x) { return gather(x[0] * x[0], x[1], axis); },
                     {random_tensor({3, 3, 3}, 1), indices});
  }
  expect_gradients([](GraphBuilder&, Inputs x) { return gather(x[0], x[1]) * gather(x[0], x[1]); },
                   {random_tensor({3, 2}, 1), narrow});
  expect_gradients([](GraphBuilder&, Inputs x) { return gather(x[0], x[1]); },
                   {random_tensor({3}, 1), Tensor::scalar(std::int64_t{2})});
}

TEST(ShapeGradients, ScatterAddAndSegmentSum) {
  const Tensor indices = Tensor::from<std::int64_t>({3}, {2, 0, 2});
  expect_gradients(
      [](GraphBuilder&, Inputs x) { return scatter_add(x[1], x[0] * x[0], shape_of(x[2])) * x[2]; },
      {random_tensor({3, 2}, 1), indices, random_tensor({4, 2}, 2)});
  expect_gradients([](GraphBuilder&, Inputs x) { return segment_sum(x[0] * x[0], x[1], 3); },
                   {random_tensor({3, 2}, 1), indices});
}

TEST(ShapeGradients, ConstantsByShapeHaveNone) {
  expect_gradients(
      [](GraphBuilder& b, Inputs x) {
        const Value filled = full(b, DType::kF64, shape_of(x[0]), 2);
        return x[0] * x[0] * filled * ones_like(x[0]);
      },
      {random_tensor({2, 3}, 1)});
}

}  // namespace
}  // namespace lockstep
