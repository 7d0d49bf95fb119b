// Tests: graph/ops/call.cpp, graph/ops/sources.cpp, graph/ops/variables.cpp, graph/ir/kernel.cpp,
//        graph/ir/op.cpp, graph/ops/rules/axes.cpp
// The value of each op against a naive computation.
#include "lockstep/graph/ops/ops.h"

#include <cmath>
#include <numeric>

#include "lockstep/core/kernels/random.h"
#include "lockstep/core/random.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "support/op_test.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using ::testing::ElementsAre;
using testing::evaluate;
using testing::expect_same_tensors;
using testing::floats;
using ::testing::HasSubstr;
using testing::list;
using testing::vec;
using testing::with_lanes;

Tensor numbers(const Shape& shape, std::uint64_t key) {
  Tensor tensor = Tensor::empty(DType::kF32, shape);
  const RandomStream stream{.seed = 3, .key = key};
  std::uint64_t i = 0;
  for (float& element : tensor.data<float>()) element = Philox::to_unit_float(stream.block(i++)[0]) * 4 - 2;
  return tensor;
}

// The graph's results on these feeds: by the program, inline and call by call, and by the interpreter; all
// agree. The element of a broadcast operand that belongs to the element of the output.
std::size_t broadcast_index(const Shape& in, const Shape& out, std::size_t at) {
  std::size_t index = 0;
  std::size_t stride = 1;
  for (std::size_t axis = out.rank(); axis-- > 0;) {
    const auto extent = static_cast<std::size_t>(out[axis]);
    const std::size_t place = at % extent;
    at /= extent;
    const std::size_t behind = out.rank() - axis;
    if (behind > in.rank()) continue;
    const auto own = static_cast<std::size_t>(in[in.rank() - behind]);
    if (own != 1) index += place * stride;
    stride *= own;
  }
  return index;
}

struct BroadcastCase {
  Shape a, b, out;
};

class Broadcasting : public ::testing::TestWithParam<BroadcastCase> {};

TEST_P(Broadcasting, AgreesWithNaiveLoops) {
  const auto& [shape_a, shape_b, shape_out] = GetParam();
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, shape_a);
  const Value y = b.placeholder("y", DType::kF32, shape_b);
  for (const Value& value : {x + y, x - y, x * y, x / y, less(x, y)}) {
    EXPECT_EQ(value.shape(), shape_out);
    b.result(value);
  }
  const Tensor first = numbers(shape_a, 1);
  const Tensor second = numbers(shape_b, 2);
  const std::vector<Tensor> results = evaluate(b, {first, second});
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape_out.num_elements()); ++i) {
    const float p = first.data<float>()[broadcast_index(shape_a, shape_out, i)];
    const float q = second.data<float>()[broadcast_index(shape_b, shape_out, i)];
    ASSERT_EQ(results[0].data<float>()[i], p + q) << i;
    ASSERT_EQ(results[1].data<float>()[i], p - q) << i;
    ASSERT_EQ(results[2].data<float>()[i], p * q) << i;
    ASSERT_EQ(results[3].data<float>()[i], p / q) << i;
    ASSERT_EQ(results[4].data<bool>()[i], p < q) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Broadcasting,
    ::testing::Values(BroadcastCase{{}, {}, {}}, BroadcastCase{{5}, {}, {5}},
                      BroadcastCase{{}, {2, 3}, {2, 3}}, BroadcastCase{{4, 1}, {3}, {4, 3}},
                      BroadcastCase{{2, 1, 3}, {4, 1}, {2, 4, 3}}, BroadcastCase{{1}, {7}, {7}},
                      BroadcastCase{{0, 3}, {3}, {0, 3}}, BroadcastCase{{1}, {0}, {0}},
                      BroadcastCase{{2, 0, 3}, {1, 1, 3}, {2, 0, 3}},
                      BroadcastCase{{300, 400}, {400}, {300, 400}}, BroadcastCase{{70'001}, {1}, {70'001}}));

TEST(Ops, IntegersTruncateWhenDivided) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI32, {4});
  b.result(x / 2);
  const Tensor result = evaluate(b, {Tensor::from<std::int32_t>({4}, {7, -7, 0, 1})})[0];
  EXPECT_TRUE(result.bit_equal(Tensor::from<std::int32_t>({4}, {3, -3, 0, 0})));
}

TEST(Ops, Relu) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  b.result(relu(x));
  const std::vector<float> result = floats(evaluate(b, {vec({-1, 0, 2, std::nanf("")})})[0]);
  EXPECT_EQ(result[0], 0);
  EXPECT_EQ(result[1], 0);
  EXPECT_EQ(result[2], 2);
  EXPECT_TRUE(std::isnan(result[3]));
}

TEST(Ops, IdentityOfEveryDType) {
  GraphBuilder b;
  std::vector<Tensor> feeds;
  for (const DType dtype : kAllDTypes) {
    b.result(identity(b.placeholder(to_string(dtype), dtype, {3})));
    feeds.push_back(Tensor::full(dtype, {3}, 1));
  }
  expect_same_tensors(evaluate(b, feeds), feeds);
}

class MatrixProduct : public ::testing::TestWithParam<std::array<std::int64_t, 3>> {};

TEST_P(MatrixProduct, AgreesWithNaiveLoops) {
  const auto [m, k, n] = GetParam();
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {m, k});
  const Value y = b.placeholder("y", DType::kF32, {k, n});
  b.result(matmul(x, y));
  const Tensor first = numbers({m, k}, 1);
  const Tensor second = numbers({k, n}, 2);
  const Tensor product = evaluate(b, {first, second})[0];
  ASSERT_EQ(product.shape(), (Shape{m, n}));
  const auto at = [](const Tensor& t, std::int64_t row, std::int64_t column) {
    return static_cast<double>(t.data<float>()[static_cast<std::size_t>(row * t.shape()[1] + column)]);
  };
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < k; ++p) sum += at(first, i, p) * at(second, p, j);
      ASSERT_NEAR(at(product, i, j), sum, 1e-5 * static_cast<double>(k + 1)) << i << ", " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, MatrixProduct,
    ::testing::Values(std::array<std::int64_t, 3>{1, 1, 1}, std::array<std::int64_t, 3>{2, 3, 4},
                      std::array<std::int64_t, 3>{0, 3, 4}, std::array<std::int64_t, 3>{2, 0, 4},
                      std::array<std::int64_t, 3>{2, 3, 0}, std::array<std::int64_t, 3>{17, 33, 9},
                      std::array<std::int64_t, 3>{150, 128, 96}));

TEST(Ops, MatmulOfIntegers) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI64, {2, 2});
  b.result(matmul(x, x));
  const Tensor result = evaluate(b, {Tensor::from<std::int64_t>({2, 2}, {1, 2, 3, 4})})[0];
  EXPECT_TRUE(result.bit_equal(Tensor::from<std::int64_t>({2, 2}, {7, 10, 15, 22})));
}

TEST(Ops, SumOverAnyAxes) {
  const std::vector<std::vector<std::int64_t>> choices = {{},   {0},    {1},       {2},
                                                          {-1}, {0, 2}, {0, 1, 2}, {-3, -2}};
  const Shape shape{3, 4, 5};
  const Tensor feed = numbers(shape, 7);
  for (const bool keepdims : {false, true}) {
    for (const std::vector<std::int64_t>& axes : choices) {
      GraphBuilder b;
      b.result(sum(b.placeholder("x", DType::kF32, shape), axes, keepdims));
      const Tensor result = evaluate(b, {feed})[0];
      std::array<bool, 3> summed = {axes.empty(), axes.empty(), axes.empty()};
      for (const std::int64_t axis : axes) summed[static_cast<std::size_t>((axis + 3) % 3)] = true;
      std::vector<std::int64_t> dims;
      for (std::size_t i = 0; i < 3; ++i) {
        if (!summed[i]) dims.push_back(shape[i]);
        if (summed[i] && keepdims) dims.push_back(1);
      }
      ASSERT_EQ(result.shape(), Shape(std::span<const std::int64_t>(dims)));
      std::vector<double> expected(static_cast<std::size_t>(result.num_elements()), 0);
      for (std::size_t at = 0; at < 60; ++at) {
        const std::array<std::size_t, 3> place = {at / 20, at / 5 % 4, at % 5};
        std::size_t to = 0;
        for (std::size_t i = 0; i < 3; ++i) {
          if (!summed[i]) to = to * static_cast<std::size_t>(shape[i]) + place[i];
        }
        expected[to] += static_cast<double>(feed.data<float>()[at]);
      }
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(result.data<float>()[i], expected[i], 1e-4);
    }
  }
}

TEST(Ops, SumOfLittleAndOfMuch) {
  GraphBuilder b;
  b.result(sum(b.placeholder("none", DType::kF32, {0, 3})));
  b.result(sum(b.placeholder("none_by_column", DType::kF32, {0, 3}), {0}));
  b.result(sum(b.placeholder("scalar", DType::kF32, {})));
  b.result(sum(b.placeholder("much", DType::kI64, {300'000})));
  Tensor much = Tensor::empty(DType::kI64, {300'000});
  std::iota(much.data<std::int64_t>().begin(), much.data<std::int64_t>().end(), 0);
  const std::vector<Tensor> results =
      evaluate(b, {Tensor::zeros({0, 3}), Tensor::zeros({0, 3}), Tensor::scalar(3.0F), much});
  EXPECT_EQ(results[0].item(), 0);
  EXPECT_THAT(floats(results[1]), ElementsAre(0, 0, 0));
  EXPECT_EQ(results[2].item(), 3);
  EXPECT_EQ(results[3].item(), 299'999.0 * 150'000.0);
}

TEST(Ops, RandomUniformLiesInItsRangeAndFollowsSeedKeyAndStep) {
  const auto draw = [](std::uint64_t seed, std::int64_t key, std::uint64_t step) {
    GraphBuilder b;
    b.result(b.random_uniform({DType::kF32, {50'000}}, -2, 6, key));
    const Program program = compile(b.finish(), Runtime({.threads = 2, .seed = seed}), with_lanes());
    program.variables().set_step(step);
    return program.run()[0];
  };
  const Tensor drawn = draw(1, 2, 3);
  double sum = 0;
  for (const float element : drawn.data<float>()) {
    ASSERT_GE(element, -2);
    ASSERT_LT(element, 6);
    sum += static_cast<double>(element);
  }
  EXPECT_NEAR(sum / 50'000, 2, 0.05);
  EXPECT_TRUE(drawn.bit_equal(draw(1, 2, 3)));
  EXPECT_FALSE(drawn.bit_equal(draw(2, 2, 3)));
  EXPECT_FALSE(drawn.bit_equal(draw(1, 3, 3)));
  EXPECT_FALSE(drawn.bit_equal(draw(1, 2, 4)));
}

TEST(Ops, ReplicaIdIsZeroOutsideAndTheNumberInside) {
  GraphBuilder b;
  b.result(replica_id(b));
  const auto ids =
      replicated(b, 3, {}, {}, [&](std::span<const Value>) { return std::vector<Value>{replica_id(b)}; });
  for (const Value& id : ids[0]) b.result(id);
  const std::vector<Tensor> results = evaluate(b, {});
  EXPECT_EQ(results[0].item(), 0);
  for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(results[r + 1].item(), static_cast<double>(r));
}

TEST(Ops, ReplicasDrawTheirOwnNumbers) {
  GraphBuilder b;
  const auto drawn = replicated(b, 2, {}, {}, [&](std::span<const Value>) {
    return std::vector<Value>{b.random_uniform({DType::kF32, {8}})};
  });
  b.result(drawn[0][0]);
  b.result(drawn[0][1]);
  const std::vector<Tensor> results = evaluate(b, {});
  EXPECT_FALSE(results[0].bit_equal(results[1]));
}

TEST(Ops, CallGivesSeveralOutputs) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const std::vector<TensorSpec> specs = {{DType::kF32, {}}, {DType::kI32, {2}}};
  const std::vector<Value> outputs = b.call("both", {&x, 1}, specs, [](KernelContext& c) {
    const std::span<const float> in = c.input<float>(0);
    c.output<float>(0)[0] = in[0] + in[1];
    c.output<std::int32_t>(1)[0] = static_cast<std::int32_t>(in[1]);
    c.output<std::int32_t>(1)[1] = static_cast<std::int32_t>(in[0]);
  });
  b.result(outputs[0]);
  b.result(outputs[1]);
  const std::vector<Tensor> results = evaluate(b, {vec({1, 2})});
  EXPECT_EQ(results[0].item(), 3);
  EXPECT_TRUE(results[1].bit_equal(Tensor::from<std::int32_t>({2}, {2, 1})));
}

TEST(Ops, ALambdaThatAsksForTheWrongTypeIsToldSo) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const TensorSpec spec = x.spec();
  b.result(b.call("wrong", {&x, 1}, {&spec, 1}, [](KernelContext& c) { c.output<double>(0)[0] = 1; })[0]);
  const auto error = caught([program = compile(b.finish(), Runtime())] {
    program.run({{"x", vec({1, 2})}});
  });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what, HasSubstr("kernel asks for f64 elements of a f32 tensor"));
  EXPECT_EQ(error.place.node, "wrong");
}

// --- an op of the user's own: traits, split and kernel

const OpDef& axpy_op() {
  static const OpDef& op = [&]() -> const OpDef& {
    OpDef def;
    def.name = "test.axpy";
    def.inputs = Arity::exactly(2);
    def.attributes = {{"a", AttributeType::kFloat}};
    def.traits.elementwise = true;
    def.traits.in_place = true;
    def.traits.infallible = true;
    def.infer = [](InferContext& c) {
      c.same_dtype();
      c.require(c.input(0).shape == c.input(1).shape, "takes equal shapes");
      c.add_output(c.input(0));
    };
    def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
      return Split{std::max<std::int64_t>(1, outputs[0].shape.num_elements() / 1000), 0, false};
    };
    def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
      return [a = static_cast<float>(node.get<double>("a"))](KernelContext& c) {
        const std::span<float> out = c.output<float>(0);
        const auto [begin, end] = c.range(static_cast<std::int64_t>(out.size()));
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
          out[i] = a * c.input<float>(0)[i] + c.input<float>(1)[i];
        }
      };
    };
    return OpRegistry::global().add(std::move(def));
  }();
  return op;
}

TEST(CustomOp, IsFirstClass) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {10'000});
  Value y = b.op1(axpy_op().name, {x, x + 1.0F}, {{"a", 3.0}});
  EXPECT_EQ(y.name(), "test.axpy");
  y = b.op1(axpy_op().name, {y, x}, {{"a", -1.0}});
  b.result(y);
  verify(b.graph());
  const Tensor feed = numbers({10'000}, 11);
  const Tensor result = evaluate(b, {feed})[0];
  for (std::size_t i = 0; i < 10'000; ++i) {
    const float v = feed.data<float>()[i];
    ASSERT_EQ(result.data<float>()[i], -1.0F * (3.0F * v + (v + 1.0F)) + v) << i;
  }
}

TEST(CustomOp, RefusesInItsOwnWords) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value y = b.placeholder("y", DType::kF32, {3});
  EXPECT_THAT(caught([&] {
                b.op1(axpy_op().name, {x, y}, {{"a", 1.0}});
              }).what,
              HasSubstr("test.axpy: takes equal shapes"));
}

TEST(CustomOp, ATakenOrMalformedNameIsRefused) {
  OpDef taken;
  taken.name = axpy_op().name;
  taken.infer = [](InferContext&) {};
  EXPECT_THAT(caught([&] { OpRegistry::global().add(taken); }).what,
              HasSubstr("'test.axpy' is registered already"));
  taken.name = "1st";
  EXPECT_THROW(OpRegistry::global().add(taken), InvalidArgument);
  OpDef rule;
  rule.name = "test.no_rule";
  EXPECT_THAT(caught([&] { OpRegistry::global().add(rule); }).what, HasSubstr("has no inference rule"));
}

// By way of f32 these would be ties, and go down.
TEST(Iota, AndFullRoundOnce) {
  const double above_a_tie = 1 + 0x1p-11 + 0x1p-30;
  GraphBuilder b;
  b.result(iota(b, DType::kF16, 2, above_a_tie, 0));
  b.result(full(b, DType::kF16, {2}, above_a_tie));
  for (const Tensor& result : evaluate(b, {}))
    EXPECT_EQ(static_cast<float>(result.data<F16>()[0]), 1 + 0x1p-10F);
}

}  // namespace
}  // namespace lockstep
