// Tests: core/kernels/broadcast.cpp, core/kernels/elementwise.cpp
#include "lockstep/core/kernels/elementwise.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "support/random_tensors.h"

namespace lockstep::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr BinaryOp kOps[] = {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kDiv};

Tensor run(BinaryOp op, const Tensor& a, const Tensor& b) {
  Tensor out = Tensor::empty(a.dtype(), broadcast_shapes(a.shape(), b.shape()));
  binary(op, a.dtype(), out.shape(), a.raw(), a.shape(), b.raw(), b.shape(), out.raw(), 0,
         out.num_elements());
  return out;
}

// One element at a time, in the widest type that is exact for the inputs of these tests.
template <class T>
T naive(BinaryOp op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    const auto x = static_cast<std::int64_t>(a), y = static_cast<std::int64_t>(b);
    if (op == BinaryOp::kAdd) return static_cast<T>(x + y);
    if (op == BinaryOp::kSub) return static_cast<T>(x - y);
    if (op == BinaryOp::kMul) return static_cast<T>(x * y);
    return static_cast<T>(x / y);
  } else {
    using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const C x = static_cast<C>(a), y = static_cast<C>(b);
    if (op == BinaryOp::kAdd) return T(x + y);
    if (op == BinaryOp::kSub) return T(x - y);
    if (op == BinaryOp::kMul) return T(x * y);
    return T(x / y);
  }
}

std::int64_t source_index(const Shape& out, const Shape& operand, std::int64_t at) {
  std::int64_t index = 0, stride = 1;
  for (std::size_t back = 1; back <= out.rank(); ++back) {
    const std::int64_t coordinate = at % out[out.rank() - back];
    at /= out[out.rank() - back];
    if (back > operand.rank()) continue;
    const std::int64_t extent = operand[operand.rank() - back];
    if (extent != 1) index += coordinate * stride;
    stride *= extent;
  }
  return index;
}

Tensor naive(BinaryOp op, const Tensor& a, const Tensor& b) {
  Tensor out = Tensor::empty(a.dtype(), broadcast_shapes(a.shape(), b.shape()));
  visit_dtype(a.dtype(), [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, bool>) {
      for (std::int64_t i = 0; i < out.num_elements(); ++i) {
        const auto left = static_cast<std::size_t>(source_index(out.shape(), a.shape(), i));
        const auto right = static_cast<std::size_t>(source_index(out.shape(), b.shape(), i));
        out.data<T>()[static_cast<std::size_t>(i)] = naive<T>(op, a.data<T>()[left], b.data<T>()[right]);
      }
    }
  });
  return out;
}

// Two shapes that broadcast, of up to seven axes.
std::pair<Shape, Shape> random_shapes(Dice& dice) {
  const auto rank = static_cast<std::size_t>(dice.roll(8));
  std::vector<std::int64_t> a(rank), b(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t extent = 1 + dice.roll(rank > 4 ? 3 : 6);
    const std::int64_t kind = dice.roll(4);
    a[i] = kind == 0 ? 1 : extent;
    b[i] = kind == 1 ? 1 : extent;
  }
  auto& shorter = dice.roll(2) == 0 ? a : b;
  shorter.erase(shorter.begin(),
                shorter.begin() + (rank == 0 ? 0 : dice.roll(static_cast<std::int64_t>(rank))));
  return {Shape(std::span<const std::int64_t>(a)), Shape(std::span<const std::int64_t>(b))};
}

TEST(Binary, EqualsTheNaiveLoopOnRandomShapes) {
  Dice dice(1);
  for (int round = 0; round < 150; ++round) {
    const auto [a_shape, b_shape] = random_shapes(dice);
    for (const DType dtype : kAllDTypes) {
      if (dtype == DType::kBool) continue;
      const Tensor a = random_tensor(dtype, a_shape, dice), b = random_tensor(dtype, b_shape, dice);
      const BinaryOp op = kOps[dice.roll(4)];
      ASSERT_TRUE(run(op, a, b).bit_equal(naive(op, a, b)))
          << to_string(op) << ' ' << dtype << ' ' << a_shape << ' ' << b_shape;
    }
  }
}

TEST(Binary, EveryOpEqualsTheNaiveLoopOnLongRuns) {
  Dice dice(2);
  const std::pair<Shape, Shape> shapes[] = {
      {{1003}, {1003}},    {{1003}, {}},         {{1, 1}, {17, 59}},       {{17, 59}, {59}},
      {{17, 1}, {17, 59}}, {{5, 1, 40}, {7, 1}}, {{3, 4, 50}, {3, 1, 50}}, {{1, 1003}, {1003}}};
  for (const auto& [a_shape, b_shape] : shapes) {
    for (const DType dtype : kAllDTypes) {
      if (dtype == DType::kBool) continue;
      const Tensor a = random_tensor(dtype, a_shape, dice), b = random_tensor(dtype, b_shape, dice);
      for (const BinaryOp op : kOps) {
        ASSERT_TRUE(run(op, a, b).bit_equal(naive(op, a, b)))
            << to_string(op) << ' ' << dtype << ' ' << a_shape << ' ' << b_shape;
      }
    }
  }
}

TEST(Binary, CuttingTheRangeChangesNothing) {
  Dice dice(3);
  for (int round = 0; round < 100; ++round) {
    const auto [a_shape, b_shape] = random_shapes(dice);
    const Tensor a = random_tensor(DType::kF32, a_shape, dice), b = random_tensor(DType::kF32, b_shape, dice);
    const Tensor whole = run(BinaryOp::kMul, a, b);
    Tensor pieces = Tensor::zeros(whole.shape());
    const std::vector<std::int64_t> cuts = random_cuts(whole.num_elements(), dice);
    for (std::size_t i = 1; i < cuts.size(); ++i) {
      binary(BinaryOp::kMul, DType::kF32, whole.shape(), a.raw(), a_shape, b.raw(), b_shape, pieces.raw(),
             cuts[i - 1], cuts[i]);
    }
    ASSERT_TRUE(pieces.bit_equal(whole)) << a_shape << ' ' << b_shape;
  }
}

TEST(Binary, WritesItsRangeOnly) {
  const Tensor a = Tensor::full(DType::kF32, {4, 5}, 1), b = Tensor::full(DType::kF32, {5}, 2);
  Tensor out = Tensor::zeros({4, 5});
  binary(BinaryOp::kAdd, DType::kF32, out.shape(), a.raw(), a.shape(), b.raw(), b.shape(), out.raw(), 3, 12);
  for (std::int64_t i = 0; i < 20; ++i) EXPECT_EQ(element(out, i), i >= 3 && i < 12 ? 3.0 : 0.0) << i;
}

TEST(Binary, WorksInPlaceOnEitherSide) {
  Dice dice(4);
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    for (const Shape& other_shape : {Shape{9, 21}, Shape{21}, Shape{9, 1}, Shape{}}) {
      const Tensor full = random_tensor(dtype, {9, 21}, dice),
                   other = random_tensor(dtype, other_shape, dice);
      for (const BinaryOp op : kOps) {
        Tensor left = full.clone();
        binary(op, dtype, full.shape(), left.raw(), full.shape(), other.raw(), other_shape, left.raw(), 0,
               189);
        EXPECT_TRUE(left.bit_equal(run(op, full, other)));
        Tensor right = full.clone();
        binary(op, dtype, full.shape(), other.raw(), other_shape, right.raw(), full.shape(), right.raw(), 0,
               189);
        EXPECT_TRUE(right.bit_equal(run(op, other, full)));
      }
      Tensor both = full.clone();
      binary(BinaryOp::kSub, dtype, full.shape(), both.raw(), full.shape(), both.raw(), full.shape(),
             both.raw(), 0, 189);
      EXPECT_TRUE(both.bit_equal(Tensor::zeros(dtype, {9, 21})));
    }
  }
}

TEST(Binary, OfNoElementsTouchesNothing) {
  for (const BinaryOp op : kOps) {
    binary(op, DType::kF32, {0, 3}, nullptr, {0, 3}, nullptr, {3}, nullptr, 0, 0);
    binary(op, DType::kI32, {2, 0}, nullptr, {2, 0}, nullptr, {2, 1}, nullptr, 0, 0);
  }
}

TEST(Binary, IntegersWrapAround) {
  constexpr auto kMin32 = std::numeric_limits<std::int32_t>::min(),
                 kMax32 = std::numeric_limits<std::int32_t>::max();
  constexpr auto kMin64 = std::numeric_limits<std::int64_t>::min(),
                 kMax64 = std::numeric_limits<std::int64_t>::max();
  const auto i32 = [](BinaryOp op, std::int32_t a, std::int32_t b) {
    return run(op, Tensor::scalar(a), Tensor::scalar(b)).data<std::int32_t>()[0];
  };
  const auto i64 = [](BinaryOp op, std::int64_t a, std::int64_t b) {
    return run(op, Tensor::scalar(a), Tensor::scalar(b)).data<std::int64_t>()[0];
  };
  const auto u8 = [](BinaryOp op, std::uint8_t a, std::uint8_t b) {
    return run(op, Tensor::scalar(a), Tensor::scalar(b)).data<std::uint8_t>()[0];
  };
  EXPECT_EQ(i32(BinaryOp::kAdd, kMax32, 1), kMin32);
  EXPECT_EQ(i32(BinaryOp::kSub, kMin32, 1), kMax32);
  EXPECT_EQ(i32(BinaryOp::kMul, kMax32, 2), -2);
  EXPECT_EQ(i32(BinaryOp::kDiv, kMin32, -1), kMin32);
  EXPECT_EQ(i64(BinaryOp::kAdd, kMax64, 1), kMin64);
  EXPECT_EQ(i64(BinaryOp::kMul, kMin64, -1), kMin64);
  EXPECT_EQ(i64(BinaryOp::kDiv, kMin64, -1), kMin64);
  EXPECT_EQ(u8(BinaryOp::kAdd, 255, 1), 0);
  EXPECT_EQ(u8(BinaryOp::kSub, 0, 1), 255);
  EXPECT_EQ(u8(BinaryOp::kMul, 16, 17), 16);
  EXPECT_EQ(u8(BinaryOp::kDiv, 255, 2), 127);
}

TEST(Binary, IntegerDivisionTruncatesTowardZero) {
  const Tensor a = Tensor::from({4}, {7, -7, 7, -7});
  const Tensor b = Tensor::from({4}, {2, 2, -2, -2});
  EXPECT_THAT(run(BinaryOp::kDiv, a, b).data<std::int32_t>(), ElementsAre(3, -3, -3, 3));
}

TEST(Binary, IntegerDivisionByZeroIsAnError) {
  const Tensor a = Tensor::from({2}, {7, 8});
  EXPECT_THROW(run(BinaryOp::kDiv, a, Tensor::from({2}, {1, 0})), InvalidArgument);
  EXPECT_THROW(run(BinaryOp::kDiv, a, Tensor::scalar(0)), InvalidArgument);
  EXPECT_THROW(run(BinaryOp::kDiv, Tensor::scalar(std::uint8_t{1}), Tensor::scalar(std::uint8_t{0})),
               InvalidArgument);
  try {
    run(BinaryOp::kDiv, a, Tensor::from({2}, {1, 0}));
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.message(), HasSubstr("div: division of 8 by zero in i32"));
  }
}

TEST(Binary, FloatsFollowIeee) {
  const Tensor a = Tensor::from({3}, {1.F, -1.F, 0.F});
  const Tensor quotient = run(BinaryOp::kDiv, a, Tensor::scalar(0.F));
  EXPECT_EQ(quotient.data<float>()[0], INFINITY);
  EXPECT_EQ(quotient.data<float>()[1], -INFINITY);
  EXPECT_TRUE(std::isnan(quotient.data<float>()[2]));
  const Tensor half = Tensor::scalar(F16(60000.F));
  EXPECT_EQ(run(BinaryOp::kAdd, half, half).item(), INFINITY);
}

TEST(Binary, RefusesShapesAndDTypesItCannotHandle) {
  float memory[6] = {};
  EXPECT_THROW(binary(BinaryOp::kAdd, DType::kF32, {2, 3}, memory, {2, 3}, memory, {2}, memory, 0, 6),
               InvalidArgument);
  EXPECT_THROW(binary(BinaryOp::kAdd, DType::kF32, {3}, memory, {2, 3}, memory, {3}, memory, 0, 3),
               InvalidArgument);
  EXPECT_THROW(binary(BinaryOp::kAdd, DType::kBool, {2}, memory, {2}, memory, {2}, memory, 0, 2),
               InvalidArgument);
  EXPECT_THROW(binary(BinaryOp::kAdd, DType::kF32, {2}, memory, {2}, memory, {2}, memory, 0, 3), Error);
}

TEST(Relu, CutsBelowZero) {
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool || dtype == DType::kU8) continue;
    Dice dice(5);
    const Tensor in = random_tensor(dtype, {301}, dice);
    Tensor out = Tensor::empty(dtype, {301});
    relu(dtype, in.raw(), out.raw(), 0, 100);
    relu(dtype, in.raw(), out.raw(), 100, 301);
    for (std::int64_t i = 0; i < 301; ++i) ASSERT_EQ(element(out, i), std::max(0.0, element(in, i))) << dtype;
    Tensor in_place = in.clone();
    relu(dtype, in_place.raw(), in_place.raw(), 0, 301);
    EXPECT_TRUE(in_place.bit_equal(out));
  }
}

TEST(Relu, KeepsNaNInfinityAndTheSignOfZero) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    const auto of = [dtype](double value) {
      const Tensor in = Tensor::full(dtype, {}, value);
      Tensor out = Tensor::empty(dtype, {});
      relu(dtype, in.raw(), out.raw(), 0, 1);
      return out.item();
    };
    EXPECT_TRUE(std::isnan(of(NAN))) << dtype;
    EXPECT_TRUE(std::isnan(of(-NAN))) << dtype;
    EXPECT_EQ(of(INFINITY), INFINITY) << dtype;
    EXPECT_EQ(of(-INFINITY), 0.0) << dtype;
    EXPECT_FALSE(std::signbit(of(-1.0))) << dtype;
    EXPECT_TRUE(std::signbit(of(-0.0))) << dtype;
  }
}

TEST(Relu, LeavesUnsignedNumbersAndRefusesBool) {
  const Tensor in = Tensor::from({3}, {std::uint8_t{0}, std::uint8_t{127}, std::uint8_t{255}});
  Tensor out = Tensor::empty(DType::kU8, {3});
  relu(DType::kU8, in.raw(), out.raw(), 0, 3);
  EXPECT_TRUE(out.bit_equal(in));
  EXPECT_THROW(relu(DType::kBool, in.raw(), out.raw(), 0, 3), InvalidArgument);
}

TEST(Copy, CopiesItsRangeOfEveryDType) {
  for (const DType dtype : kAllDTypes) {
    Dice dice(6);
    const Tensor in = random_tensor(dtype, {10}, dice);
    Tensor out = Tensor::zeros(dtype, {10});
    copy(dtype, in.raw(), out.raw(), 2, 7);
    EXPECT_TRUE(out.slice(2, 7).bit_equal(in.slice(2, 7))) << dtype;
    EXPECT_TRUE(out.slice(0, 2).bit_equal(Tensor::zeros(dtype, {2})));
    EXPECT_TRUE(out.slice(7, 10).bit_equal(Tensor::zeros(dtype, {3})));
    copy(dtype, nullptr, nullptr, 0, 0);
  }
}

TEST(Fill, FillsItsRangeOfEveryDType) {
  for (const DType dtype : kAllDTypes) {
    const Tensor value = Tensor::full(dtype, {}, 1);
    Tensor out = Tensor::zeros(dtype, {10});
    fill(dtype, value.raw(), out.raw(), 2, 7);
    for (std::int64_t i = 0; i < 10; ++i) EXPECT_EQ(element(out, i), i >= 2 && i < 7 ? 1.0 : 0.0) << dtype;
  }
}

}  // namespace
}  // namespace lockstep::kernels
