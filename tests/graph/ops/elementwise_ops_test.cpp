// Tests: graph/ops/elementwise.cpp, graph/ops/elementwise_binary.cpp, graph/ops/elementwise_unary.cpp,
//        graph/ops/rules/shape_rules.cpp
// Every element-wise op, for every dtype it takes and every way to broadcast, against a scalar reference; and
// what is said of wrong input.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numbers>

#include "lockstep/core/kernels/elementwise.h"
#include "lockstep/core/random.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/gradients.h"
#include "support/op_test.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using kernels::BinaryOp;
using kernels::UnaryOp;
using testing::caught;
using ::testing::ElementsAre;
using testing::evaluate;
using testing::floats;
using ::testing::HasSubstr;
using testing::vec;

// Numbers that every dtype holds, from -3 to 3 in steps of an eighth for floats and of one for integers.
Tensor numbers(DType dtype, const Shape& shape, std::uint64_t key) {
  Tensor tensor = Tensor::empty(dtype, shape);
  const RandomStream stream{.seed = 5, .key = key};
  std::uint64_t i = 0;
  visit_dtype(dtype, [&]<class T>(T) {
    for (T& element : tensor.data<T>()) {
      const int step = static_cast<int>(stream.block(i++)[0] % 49U) - 24;
      if constexpr (std::is_same_v<T, bool>) {
        element = step > 0;
      } else if constexpr (std::is_same_v<T, std::uint8_t>) {
        element = static_cast<T>(step + 24);
      } else if constexpr (std::is_integral_v<T>) {
        element = static_cast<T>(step);
      } else {
        element = T(static_cast<float>(step) / 8);
      }
    }
  });
  return tensor;
}

double number_at(const Tensor& tensor, std::int64_t i) {
  return visit_dtype(tensor.dtype(), [&]<class T>(T) -> double {
    const T element = tensor.data<T>()[static_cast<std::size_t>(i)];
    if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, BF16>) {
      return static_cast<double>(static_cast<float>(element));
    } else {
      return static_cast<double>(element);
    }
  });
}

// The number as an element of the dtype would hold it.
double rounded(double number, DType dtype) {
  return number_at(visit_dtype(dtype,
                               [&]<class T>(T) {
                                 Tensor one = Tensor::empty(dtype, {1});
                                 if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, BF16>) {
                                   one.data<T>()[0] = T(static_cast<float>(number));
                                 } else if constexpr (std::is_same_v<T, std::uint8_t>) {
                                   one.data<T>()[0] = static_cast<T>(static_cast<std::int64_t>(number));
                                 } else {
                                   one.data<T>()[0] = static_cast<T>(number);
                                 }
                                 return one;
                               }),
                   0);
}

std::int64_t source_index(const Shape& out, const Shape& operand, std::int64_t at) {
  std::int64_t index = 0, stride = 1;
  for (std::size_t back = 1; back <= out.rank(); ++back) {
    const std::int64_t place = at % out[out.rank() - back];
    at /= out[out.rank() - back];
    if (back > operand.rank()) continue;
    const std::int64_t extent = operand[operand.rank() - back];
    if (extent != 1) index += place * stride;
    stride *= extent;
  }
  return index;
}

// Relative to what one rounding in the dtype allows, and a few more for functions.
double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-10;
    case DType::kBF16: return 0x1p-7;
    case DType::kF32: return 1e-6;
    case DType::kF64: return 1e-14;
    default: return 0;
  }
}

void expect_element(double actual, double expected, DType dtype, const std::string& where) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(actual)) << where << ": " << actual << ", not NaN";
  } else if (std::isinf(expected)) {
    ASSERT_EQ(actual, expected) << where;
  } else {
    ASSERT_NEAR(actual, expected, tolerance(dtype) * std::max(1.0, std::abs(expected))) << where;
  }
}

struct UnaryCase {
  UnaryOp op;
  double (*reference)(double);
};

const UnaryCase kUnary[] = {
    {UnaryOp::kNeg, [](double x) { return -x; }},
    {UnaryOp::kAbs, [](double x) { return std::abs(x); }},
    {UnaryOp::kSquare, [](double x) { return x * x; }},
    {UnaryOp::kSign, [](double x) { return static_cast<double>((x > 0) - (x < 0)); }},
    {UnaryOp::kRelu, [](double x) { return x > 0 ? x : 0; }},
    {UnaryOp::kExp, [](double x) { return std::exp(x); }},
    {UnaryOp::kLog, [](double x) { return std::log(x); }},
    {UnaryOp::kLog1p, [](double x) { return std::log1p(x); }},
    {UnaryOp::kSqrt, [](double x) { return std::sqrt(x); }},
    {UnaryOp::kRsqrt, [](double x) { return 1 / std::sqrt(x); }},
    {UnaryOp::kReciprocal, [](double x) { return 1 / x; }},
    {UnaryOp::kSin, [](double x) { return std::sin(x); }},
    {UnaryOp::kCos, [](double x) { return std::cos(x); }},
    {UnaryOp::kTanh, [](double x) { return std::tanh(x); }},
    {UnaryOp::kSigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }},
    {UnaryOp::kGelu, [](double x) { return x * (1 + std::erf(x / std::sqrt(2.0))) / 2; }},
    {UnaryOp::kErf, [](double x) { return std::erf(x); }},
    {UnaryOp::kSoftplus, [](double x) { return std::log1p(std::exp(x)); }},
    {UnaryOp::kFloor, [](double x) { return std::floor(x); }},
    {UnaryOp::kCeil, [](double x) { return std::ceil(x); }},
    {UnaryOp::kRound, [](double x) { return std::nearbyint(x); }},
    {UnaryOp::kIsFinite, [](double x) { return std::isfinite(x) ? 1.0 : 0.0; }},
    {UnaryOp::kLogicalNot, [](double x) { return x == 0 ? 1.0 : 0.0; }},
};
static_assert(std::size(kUnary) == kernels::kNumUnaryOps);

double floor_mod(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

struct BinaryCase {
  BinaryOp op;
  double (*reference)(double, double);
};

const BinaryCase kBinary[] = {
    {BinaryOp::kAdd, [](double a, double b) { return a + b; }},
    {BinaryOp::kSub, [](double a, double b) { return a - b; }},
    {BinaryOp::kMul, [](double a, double b) { return a * b; }},
    {BinaryOp::kDiv, [](double a, double b) { return a / b; }},
    {BinaryOp::kFloorDiv, [](double a, double b) { return b == 0 ? a / b : std::floor(a / b); }},
    {BinaryOp::kMod, floor_mod},
    {BinaryOp::kPow, [](double a, double b) { return std::pow(a, b); }},
    {BinaryOp::kMaximum, [](double a, double b) { return a > b ? a : b; }},
    {BinaryOp::kMinimum, [](double a, double b) { return a < b ? a : b; }},
    {BinaryOp::kReluGrad, [](double a, double b) { return b > 0 ? a : 0; }},
    {BinaryOp::kGeluGrad,
     [](double a, double b) {
       const double density = std::exp(b * b / -2) / std::sqrt(2 * std::numbers::pi);
       return a * ((1 + std::erf(b / std::sqrt(2.0))) / 2 + b * density);
     }},
    {BinaryOp::kLess, [](double a, double b) { return a < b ? 1.0 : 0.0; }},
    {BinaryOp::kLessEqual, [](double a, double b) { return a <= b ? 1.0 : 0.0; }},
    {BinaryOp::kGreater, [](double a, double b) { return a > b ? 1.0 : 0.0; }},
    {BinaryOp::kGreaterEqual, [](double a, double b) { return a >= b ? 1.0 : 0.0; }},
    {BinaryOp::kEqual, [](double a, double b) { return a == b ? 1.0 : 0.0; }},
    {BinaryOp::kNotEqual, [](double a, double b) { return a != b ? 1.0 : 0.0; }},
    {BinaryOp::kLogicalAnd, [](double a, double b) { return a != 0 && b != 0 ? 1.0 : 0.0; }},
    {BinaryOp::kLogicalOr, [](double a, double b) { return a != 0 || b != 0 ? 1.0 : 0.0; }},
};
static_assert(std::size(kBinary) == kernels::kNumBinaryOps);

struct Shapes {
  Shape a, b;
};
const Shapes kPatterns[] = {{{}, {}},
                            {{0}, {1}},
                            {{37}, {37}},
                            {{}, {2, 19}},
                            {{2, 19}, {}},
                            {{5, 19}, {19}},
                            {{5, 1}, {5, 19}},
                            {{5, 1}, {1, 19}},
                            {{6, 3}, {3}},
                            {{4, 1}, {4, 3}},
                            {{2, 1, 3}, {4, 1}},
                            {{2, 3, 0}, {3, 1}},
                            {{1, 7}, {7}},
                            {{2, 3, 4, 5}, {3, 1, 5}},
                            {{300, 1}, {1, 5}},
                            {{1, 1, 1}, {33}}};

TEST(ElementwiseOps, UnaryAgreeWithTheReferenceForEveryDType) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{1003}}) {
      GraphBuilder b;
      const Value x = b.placeholder("x", dtype, shape);
      std::vector<UnaryCase> cases;
      for (const UnaryCase& unary : kUnary) {
        if (kernels::unary_loop(unary.op, dtype) == nullptr) {
          EXPECT_THROW(b.op1(to_string(unary.op), {x}), InvalidArgument) << to_string(unary.op) << dtype;
          continue;
        }
        cases.push_back(unary);
        b.result(b.op1(to_string(unary.op), {x}));
      }
      if (cases.empty()) continue;
      const Tensor in = numbers(dtype, shape, 1);
      const std::vector<Tensor> results = evaluate(b, {in});
      for (std::size_t k = 0; k < cases.size(); ++k) {
        const DType out = kernels::result_dtype(cases[k].op, dtype);
        ASSERT_EQ(results[k].spec(), (TensorSpec{out, shape}));
        for (std::int64_t i = 0; i < results[k].num_elements(); ++i) {
          const double expected = rounded(cases[k].reference(number_at(in, i)), out);
          expect_element(number_at(results[k], i), expected, out,
                         str(to_string(cases[k].op), ' ', dtype, " of ", number_at(in, i)));
        }
      }
    }
  }
}

TEST(ElementwiseOps, BinaryAgreeWithTheReferenceForEveryDTypeAndPattern) {
  for (const DType dtype : kAllDTypes) {
    for (const Shapes& shapes : kPatterns) {
      GraphBuilder b;
      const Value x = b.placeholder("x", dtype, shapes.a);
      const Value y = b.placeholder("y", dtype, shapes.b);
      const Shape shape = broadcast_shapes(shapes.a, shapes.b);
      std::vector<BinaryCase> cases;
      for (const BinaryCase& binary : kBinary) {
        // Integers: no zero divisors or negative exponents; these have tests of their own.
        const bool fallible = binary.op >= BinaryOp::kDiv && binary.op <= BinaryOp::kPow;
        if (kernels::binary_loop(binary.op, dtype) == nullptr) {
          EXPECT_THROW(b.op1(to_string(binary.op), {x, y}), InvalidArgument);
          continue;
        }
        if (fallible && is_integer(dtype)) continue;
        cases.push_back(binary);
        b.result(b.op1(to_string(binary.op), {x, y}));
      }
      const Tensor left = numbers(dtype, shapes.a, 1), right = numbers(dtype, shapes.b, 2);
      const std::vector<Tensor> results = evaluate(b, {left, right});
      for (std::size_t k = 0; k < cases.size(); ++k) {
        const DType out = kernels::result_dtype(cases[k].op, dtype);
        ASSERT_EQ(results[k].spec(), (TensorSpec{out, shape}));
        for (std::int64_t i = 0; i < results[k].num_elements(); ++i) {
          const double p = number_at(left, source_index(shape, shapes.a, i));
          const double q = number_at(right, source_index(shape, shapes.b, i));
          expect_element(number_at(results[k], i), rounded(cases[k].reference(p, q), out), out,
                         str(to_string(cases[k].op), ' ', dtype, " of ", p, " and ", q));
        }
      }
    }
  }
}

TEST(ElementwiseOps, WhereBroadcastsAllThree) {
  const Shape triples[][3] = {{{}, {}, {}},   {{4, 1}, {3}, {1, 3}}, {{7}, {7}, {7}},
                              {{}, {40}, {}}, {{30, 2}, {}, {2}},    {{5, 1, 1}, {4, 1}, {33}},
                              {{0}, {1}, {}}, {{3}, {2, 1}, {2, 3}}};
  for (const DType dtype : kAllDTypes) {
    for (const auto& shapes : triples) {
      GraphBuilder b;
      const Value c = b.placeholder("c", DType::kBool, shapes[0]);
      const Value x = b.placeholder("x", dtype, shapes[1]);
      const Value y = b.placeholder("y", dtype, shapes[2]);
      b.result(where(c, x, y));
      const Shape shape = broadcast_shapes(shapes[0], broadcast_shapes(shapes[1], shapes[2]));
      const Tensor mask = numbers(DType::kBool, shapes[0], 3);
      const Tensor left = numbers(dtype, shapes[1], 4), right = numbers(dtype, shapes[2], 5);
      const Tensor result = evaluate(b, {mask, left, right})[0];
      ASSERT_EQ(result.spec(), (TensorSpec{dtype, shape}));
      for (std::int64_t i = 0; i < result.num_elements(); ++i) {
        const double expected = number_at(mask, source_index(shape, shapes[0], i)) != 0
                                    ? number_at(left, source_index(shape, shapes[1], i))
                                    : number_at(right, source_index(shape, shapes[2], i));
        ASSERT_EQ(number_at(result, i), expected) << dtype << ' ' << i;
      }
    }
  }
}

TEST(ElementwiseOps, ClipOfEveryDType) {
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    GraphBuilder b;
    const Value x = b.placeholder("x", dtype, {2100});
    const double inf = std::numeric_limits<double>::infinity();
    b.result(clip(x, 1, 2));
    b.result(clip(x, -inf, 2));
    b.result(clip(x, 1, inf));
    b.result(clip(x, -inf, inf));
    const Tensor in = numbers(dtype, {2100}, 1);
    const std::vector<Tensor> results = evaluate(b, {in});
    for (std::int64_t i = 0; i < 2100; ++i) {
      const double number = number_at(in, i);
      EXPECT_EQ(number_at(results[0], i), std::clamp(number, 1.0, 2.0));
      EXPECT_EQ(number_at(results[1], i), std::min(number, 2.0));
      EXPECT_EQ(number_at(results[2], i), std::max(number, 1.0));
      EXPECT_EQ(number_at(results[3], i), number);
    }
  }
  GraphBuilder b;
  b.result(clip(b.placeholder("x", DType::kF32, {2}), 0, 1));
  EXPECT_TRUE(std::isnan(floats(evaluate(b, {vec({std::nanf(""), 3})})[0])[0]));
}

TEST(ElementwiseOps, CastBetweenAllDTypesAndItselfIsItself) {
  for (const DType from : kAllDTypes) {
    GraphBuilder b;
    const Value x = b.placeholder("x", from, {700});
    EXPECT_EQ(cast(x, from), x);
    for (const DType to : kAllDTypes) b.result(cast(x, to));
    const Tensor in = numbers(from, {700}, 1);
    const std::vector<Tensor> results = evaluate(b, {in});
    for (std::size_t k = 0; k < std::size(kAllDTypes); ++k) {
      const DType to = kAllDTypes[k];
      for (std::int64_t i = 0; i < 700; ++i) {
        double expected = number_at(in, i);
        if (to == DType::kBool) expected = expected != 0 ? 1 : 0;
        if (is_integer(to)) expected = std::trunc(expected);
        if (to == DType::kU8 && is_floating(from)) expected = std::max(expected, 0.0);
        if (to == DType::kU8 && expected < 0) expected += 256;
        ASSERT_EQ(number_at(results[k], i), expected) << from << " to " << to;
      }
    }
  }
}

// Inputs far larger than a shard, in any broadcast: tasks and the interpreter agree to the bit.
TEST(ElementwiseOps, ManyShardsGiveTheSameBits) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {401, 997});
  const Value row = b.placeholder("row", DType::kF32, {997});
  const Value column = b.placeholder("column", DType::kF32, {401, 1});
  const Value narrow = b.placeholder("narrow", DType::kF32, {133'001, 3});
  const Value three = b.placeholder("three", DType::kF32, {3});
  b.result(gelu(x) + row);
  b.result(tanh(x) * column);
  b.result(where(x > row, exp(x), column));
  b.result(pow(abs(x), column));
  b.result(narrow * three);
  b.result(clip(x, -1, 1));
  b.result(cast(x, DType::kBF16));
  evaluate(b, {numbers(DType::kF32, {401, 997}, 1), numbers(DType::kF32, {997}, 2),
               numbers(DType::kF32, {401, 1}, 3), numbers(DType::kF32, {133'001, 3}, 4),
               numbers(DType::kF32, {3}, 5)});
}

TEST(ElementwiseOps, TilesGiveTheBitsOfTheKernels) {
  OpRegistry& registry = OpRegistry::global();
  const std::int64_t n = 77;
  for (const std::string& name : registry.names()) {
    const OpDef& def = registry.get(name);
    if (!def.tile || !def.traits.elementwise || def.inputs.min != def.inputs.max) continue;
    for (const DType dtype : kAllDTypes) {
      std::vector<Tensor> feeds;
      std::vector<Attribute> attributes;
      if (name == "clip") attributes = {{"high", 2.0}, {"low", 1.0}};
      if (name == "cast") attributes = {{"dtype", DType::kF16}};
      if (!attributes.empty() && attributes.size() != def.attributes.size()) continue;
      if (attributes.empty() && !def.attributes.empty()) continue;
      GraphBuilder b;
      std::vector<Value> inputs;
      for (std::size_t i = 0; i < def.inputs.min; ++i) {
        const DType own = name == "where" && i == 0 ? DType::kBool : dtype;
        Tensor feed = numbers(own, {n}, i + 1);
        if (is_integer(own) && i == 1) feed = Tensor::full(own, {n}, 2);
        feeds.push_back(feed);
        inputs.push_back(b.placeholder(str("x", i), own, {n}));
      }
      std::vector<Value> outputs;
      try {
        outputs = b.op(name, inputs, attributes);
      } catch (const InvalidArgument&) {
        continue;  // not for this dtype
      }
      b.result(outputs[0]);
      std::vector<TensorSpec> in_specs;
      for (const Value& input : inputs) in_specs.push_back(input.spec());
      const std::vector<TensorSpec> out_specs = {outputs[0].spec()};
      const NodeView view(name, in_specs, attributes, {}, nullptr, {});
      const TileFn tile = def.tile(view, out_specs);
      const Tensor expected = Interpreter(b.finish()).run(feeds)[0];
      // In two pieces, the first of which is in place where dtypes allow.
      Tensor actual = out_specs[0].dtype == in_specs.back().dtype ? feeds.back().clone()
                                                                  : Tensor::empty(out_specs[0].dtype, {n});
      const bool in_place = out_specs[0].dtype == in_specs.back().dtype;
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 41}, {41, n}}) {
        std::vector<const void*> pointers;
        for (std::size_t i = 0; i < feeds.size(); ++i) {
          const Tensor& from = in_place && i + 1 == feeds.size() ? actual : feeds[i];
          pointers.push_back(static_cast<const std::byte*>(from.raw()) +
                             begin * static_cast<std::int64_t>(size_of(from.dtype())));
        }
        tile(pointers.data(),
             static_cast<std::byte*>(actual.raw()) +
                 begin * static_cast<std::int64_t>(size_of(actual.dtype())),
             end - begin);
      }
      EXPECT_TRUE(actual.bit_equal(expected)) << name << ' ' << dtype;
    }
  }
}

TEST(ElementwiseOps, EveryElementwiseOpHasATile) {
  for (const char* name :
       {"add", "sub", "mul", "div", "floor_div", "mod", "pow", "maximum", "minimum", "less", "equal",
        "logical_and", "where", "clip", "cast", "exp", "relu", "relu_grad", "isfinite"})
    EXPECT_TRUE(OpRegistry::global().get(name).tile) << name;
}

TEST(ElementwiseOps, IntegersDivideModuloAndRaise) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI32, {4});
  const Value y = b.placeholder("y", DType::kI32, {4});
  for (const Value& value : {x / y, floor_div(x, y), mod(x, y), pow(x, abs(y))}) b.result(value);
  const std::vector<Tensor> results = evaluate(
      b, {Tensor::from<std::int32_t>({4}, {7, -7, 7, -7}), Tensor::from<std::int32_t>({4}, {2, 2, -2, -2})});
  EXPECT_THAT(results[0].data<std::int32_t>(), ElementsAre(3, -3, -3, 3));
  EXPECT_THAT(results[1].data<std::int32_t>(), ElementsAre(3, -4, -4, 3));
  EXPECT_THAT(results[2].data<std::int32_t>(), ElementsAre(1, 1, -1, -1));
  EXPECT_THAT(results[3].data<std::int32_t>(), ElementsAre(49, 49, 49, 49));
}

TEST(ElementwiseOps, SmallestIntegersOverflowQuietly) {
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI64, {});
  for (const Value& value : {x / -1, floor_div(x, -1), mod(x, -1), -x, abs(x)}) b.result(value);
  const std::vector<Tensor> results = evaluate(b, {Tensor::scalar(kMin)});
  for (const std::size_t i : {0U, 1U, 3U, 4U}) EXPECT_EQ(results[i].data<std::int64_t>()[0], kMin) << i;
  EXPECT_EQ(results[2].data<std::int64_t>()[0], 0);
}

TEST(ElementwiseOps, IntegersRefuseZeroDivisorsAndNegativeExponents) {
  const auto message = [](const std::function<Value(const Value&, const Value&)>& f) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kI64, {1});
    const Value y = b.placeholder("y", DType::kI64, {1});
    b.result(f(x, y));
    const Graph graph = b.finish();
    const std::vector<Tensor> feeds = {Tensor::from<std::int64_t>({1}, {5}),
                                       Tensor::from<std::int64_t>({1}, {-2})};
    return caught([&] { compile(graph, Runtime({.threads = 1})).run(feeds); }).what;
  };
  EXPECT_THAT(message([](const Value& x, const Value& y) { return floor_div(x, y - y); }),
              HasSubstr("floor_div: division of 5 by zero in i64"));
  EXPECT_THAT(message([](const Value& x, const Value& y) { return mod(x, y - y); }),
              HasSubstr("mod: division of 5 by zero in i64"));
  EXPECT_THAT(message([](const Value& x, const Value& y) { return pow(x, y); }),
              HasSubstr("pow: 5 to the power of -2 is no i64"));
}

TEST(ElementwiseOps, FloorDivAndModOfFloatsAreThoseOfPython) {
  const float inf = std::numeric_limits<float>::infinity();
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {8});
  const Value y = b.placeholder("y", DType::kF32, {8});
  b.result(floor_div(x, y));
  b.result(mod(x, y));
  const std::vector<Tensor> results =
      evaluate(b, {vec({7, -7, 7, -7, 1, -1, 1, 0.9F}), vec({2, 2, -2, -2, 0, inf, 0.1F, 0.1F})});
  EXPECT_THAT(floats(results[0]), ElementsAre(3, -4, -4, 3, inf, -1, 9, 8));
  const std::vector<float> rest = floats(results[1]);
  EXPECT_EQ(rest[0], 1);
  EXPECT_EQ(rest[1], 1);
  EXPECT_EQ(rest[2], -1);
  EXPECT_EQ(rest[3], -1);
  EXPECT_TRUE(std::isnan(rest[4]));
  EXPECT_EQ(rest[5], inf);
}

TEST(ElementwiseOps, NaNGoesThroughMaximumAndMinimumFromEitherSide) {
  const float nan = std::nanf("");
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4});
  const Value y = b.placeholder("y", DType::kF32, {4});
  b.result(maximum(x, y));
  b.result(minimum(x, y));
  b.result(maximum(y, x));
  for (const Tensor& result : evaluate(b, {vec({nan, 1, -0.F, 0.F}), vec({1, nan, 0.F, -0.F})})) {
    EXPECT_TRUE(std::isnan(floats(result)[0]));
    EXPECT_TRUE(std::isnan(floats(result)[1]));
    EXPECT_EQ(std::signbit(floats(result)[2]), std::signbit(floats(result)[3]));
  }
}

TEST(ElementwiseOps, LargeIntegersAreExactConstants) {
  constexpr std::int64_t kOdd = (std::int64_t{1} << 60) + 1;
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI64, {});
  b.result(x + kOdd);
  b.result(maximum(x, std::numeric_limits<std::int64_t>::max()));
  const std::vector<Tensor> results = evaluate(b, {Tensor::scalar(std::int64_t{0})});
  EXPECT_EQ(results[0].data<std::int64_t>()[0], kOdd);
  EXPECT_EQ(results[1].data<std::int64_t>()[0], std::numeric_limits<std::int64_t>::max());
}

TEST(ElementwiseOps, OperatorsCompareAndNegate) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {3});
  for (const Value& value : {x<2, x <= 2, x> 2, 2 >= x}) b.result(value);
  b.result(-x);
  EXPECT_TRUE(x == x) << "handles";
  const std::vector<Tensor> results = evaluate(b, {vec({1, 2, 3})});
  EXPECT_THAT(results[0].data<bool>(), ElementsAre(true, false, false));
  EXPECT_THAT(results[1].data<bool>(), ElementsAre(true, true, false));
  EXPECT_THAT(results[2].data<bool>(), ElementsAre(false, false, true));
  EXPECT_THAT(results[3].data<bool>(), ElementsAre(true, true, false));
  EXPECT_THAT(floats(results[4]), ElementsAre(-1, -2, -3));
}

TEST(ElementwiseOps, UnknownDimensionsBroadcast) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 3});
  const Value c = b.placeholder("c", DType::kBool, {kUnknown, 1});
  const Value y = where(c, exp(x), 0);
  EXPECT_EQ(y.shape(), (Shape{kUnknown, 3}));
  b.result(y);
  b.result(clip(x, 0, 1) + y);
  const std::vector<Tensor> results =
      evaluate(b, {Tensor::zeros({2, 3}), Tensor::from<bool>({2, 1}, {true, false})});
  EXPECT_THAT(floats(results[0]), ElementsAre(1, 1, 1, 0, 0, 0));
}

TEST(ElementwiseOps, AttributesSurviveTheTextForm) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {3});
  b.result(clip(x, -1.5, std::numeric_limits<double>::infinity()));
  b.result(cast(x, DType::kI32));
  b.result(where(x > 0, x, 2));
  const Graph graph = b.finish();
  const std::string text = print(graph);
  EXPECT_EQ(print(parse(text)), text);
}

TEST(ElementwiseOps, SayWhatIsWrong) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI32, {3});
  const Value flag = b.placeholder("flag", DType::kBool, {3});
  const Value y = b.placeholder("y", DType::kF32, {3});
  EXPECT_THAT(caught([&] { exp(x); }).what,
              HasSubstr("exp: takes floating values, got i32[3]; cast it first"));
  EXPECT_THAT(caught([&] { neg(flag); }).what, HasSubstr("neg: has no meaning for bool"));
  EXPECT_THAT(caught([&] { logical_not(x); }).what, HasSubstr("logical_not: takes bool, got i32[3]"));
  EXPECT_THAT(caught([&] { logical_and(x, x); }).what, HasSubstr("logical_and: takes bool, got i32"));
  EXPECT_THAT(caught([&] { maximum(flag, flag); }).what, HasSubstr("maximum: has no meaning for bool"));
  EXPECT_THAT(caught([&] { where(x, y, y); }).what,
              HasSubstr("where: the condition must be bool, got i32[3]"));
  EXPECT_THAT(caught([&] { where(flag, x, y); }).what,
              HasSubstr("where: chooses between values of one dtype, got i32[3] and f32[3]"));
  EXPECT_THAT(caught([&] { where(flag, 1, 2); }).what, HasSubstr("where"));
  EXPECT_THAT(caught([&] { clip(y, 2, 1); }).what,
              HasSubstr("clip: low must not be above high, got 2 and 1"));
  EXPECT_THAT(caught([&] { clip(y, std::nan(""), 1); }).what, HasSubstr("clip: low must not be above high"));
  EXPECT_THAT(caught([&] { clip(x, 0.5, 1); }).what, HasSubstr("clip: low is 0.5, which i32 cannot hold"));
  EXPECT_THAT(caught([&] { x + 0.5; }).what,
              HasSubstr("add: 0.5 beside a value of i32, which cannot hold it"));
}

TEST(PowGradient, NothingFlowsToTheExponentOfABaseThatIsNotAboveZero) {
  GraphBuilder b;
  const Value base = b.placeholder("base", DType::kF32, {4});
  const Value exponent = b.placeholder("exponent", DType::kF32, {4});
  b.result(gradients(sum(pow(base, exponent)), {exponent})[0]);
  // The powers are infinite, infinite, -8 and 0.
  const std::vector<Tensor> results =
      evaluate(b, {testing::vec({0, -1e30F, -2, 0}), testing::vec({-1, 2, 3, 2})});
  EXPECT_THAT(testing::floats(results[0]), ::testing::Each(0.F));
}

TEST(Clip, NamesABoundThatTheDTypeCannotHold) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kU8, {2});
  EXPECT_THAT(caught([&] { clip(x, -2, 100); }).what, HasSubstr("clip: low is -2, which u8 cannot hold"));
  EXPECT_THAT(caught([&] { clip(x, 0, 300); }).what, HasSubstr("clip: high is 300, which u8 cannot hold"));
}

}  // namespace
}  // namespace lockstep
