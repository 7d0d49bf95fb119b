// Tests: core/kernels/chain.cpp
// A chain gives the bits of the loops of its steps, one after another.
#include "lockstep/core/kernels/chain.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::kernels {
namespace {

constexpr std::array kUnary = {UnaryOp::kNeg,  UnaryOp::kAbs,  UnaryOp::kSquare,
                               UnaryOp::kRelu, UnaryOp::kSqrt, UnaryOp::kReciprocal};
constexpr std::array kBinary = {BinaryOp::kAdd,     BinaryOp::kSub,     BinaryOp::kMul,     BinaryOp::kDiv,
                                BinaryOp::kMaximum, BinaryOp::kMinimum, BinaryOp::kReluGrad};

TEST(Chain, KnowsTheCheapOpsOnly) {
  for (const UnaryOp op : kUnary) EXPECT_TRUE(chain_op_of(op)) << to_string(op);
  for (const BinaryOp op : kBinary) EXPECT_TRUE(chain_op_of(op)) << to_string(op);
  EXPECT_FALSE(chain_op_of(UnaryOp::kTanh));
  EXPECT_FALSE(chain_op_of(BinaryOp::kLess));
  EXPECT_EQ(chain_loop(DType::kI32), nullptr);
  EXPECT_EQ(chain_loop(DType::kF16), nullptr);
}

template <class T>
class ChainTest : public ::testing::Test {};
using Floats = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ChainTest, Floats);

template <class T>
std::vector<T> numbers(std::mt19937& random, std::size_t count) {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  constexpr T kSpecial[] = {T{0}, -T{0}, kInf, -kInf, std::numeric_limits<T>::quiet_NaN()};
  std::vector<T> values(count);
  for (T& value : values) {
    value = random() % 16 == 0 ? kSpecial[random() % 5]
                               : static_cast<T>(static_cast<double>(random() % 2000) / 500 - 2);
  }
  return values;
}

// NaNs are equal whatever they carry: compilers choose whose they keep.
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) != std::isnan(b[i])) return false;
    if (!std::isnan(a[i]) && std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return false;
  }
  return true;
}

TYPED_TEST(ChainTest, GivesTheBitsOfItsSteps) {
  using T = TypeParam;
  std::mt19937 random(7);
  for (std::int64_t count = 0; count < 600; count += count < 70 ? 1 : 23) {
    for (int trial = 0; trial < 8; ++trial) {
      const auto n = static_cast<std::size_t>(count);
      const std::vector<T> in = numbers<T>(random, n);
      std::vector<T> expected = in;
      std::vector<std::vector<T>> operands;
      operands.reserve(40);
      std::vector<ChainLink> steps;
      std::vector<std::pair<std::size_t, std::vector<T>>> stored;  // operand, and what must be in it
      for (std::size_t i = 0; i < 1 + random() % 12; ++i) {
        if (random() % 6 == 0) {
          operands.emplace_back(n);
          steps.push_back({ChainOp::kStore, ChainForm::kRight, operands.back().data()});
          stored.emplace_back(operands.size() - 1, expected);
          continue;
        }
        if (random() % 2 == 0) {
          const UnaryOp op = kUnary[random() % kUnary.size()];
          steps.push_back({*chain_op_of(op)});
          unary_loop(op, dtype_of<T>)(expected.data(), expected.data(), count);
          continue;
        }
        const BinaryOp op = kBinary[random() % kBinary.size()];
        const auto form = static_cast<ChainForm>(random() % 4);
        const bool moves = form == ChainForm::kRight || form == ChainForm::kLeft;
        operands.push_back(numbers<T>(random, moves ? n : 1));
        steps.push_back({*chain_op_of(op), form, operands.back().data()});
        const BinaryLoop loop = binary_loop(op, dtype_of<T>);
        if (form == ChainForm::kRight || form == ChainForm::kRightScalar) {
          loop(expected.data(), true, operands.back().data(), moves, expected.data(), count);
        } else {
          loop(operands.back().data(), moves, expected.data(), true, expected.data(), count);
        }
      }
      std::vector<T> out(n);
      chain_loop(dtype_of<T>)(in.data(), steps.data(), steps.size(), out.data(), count);
      ASSERT_TRUE(same(out, expected)) << count << " elements, trial " << trial;
      for (const auto& [operand, values] : stored) ASSERT_TRUE(same(operands[operand], values));
      std::vector<T> in_place = in;
      chain_loop(dtype_of<T>)(in_place.data(), steps.data(), steps.size(), in_place.data(), count);
      ASSERT_TRUE(same(in_place, expected)) << "in place, " << count << " elements";
    }
  }
}

TYPED_TEST(ChainTest, MayHaveAnyNumberOfSteps) {
  using T = TypeParam;
  std::mt19937 random(11);
  constexpr std::int64_t kCount = 203;  // blocks of every width, and a few elements more
  for (const std::size_t num_steps : {0U, 1U, 62U, 63U, 64U, 65U, 200U}) {
    const std::vector<T> in = numbers<T>(random, kCount);
    std::vector<T> expected = in;
    std::vector<T> scalars(num_steps);
    for (std::size_t i = 0; i < num_steps; ++i) scalars[i] = static_cast<T>(i % 5) / 4;
    std::vector<T> array = numbers<T>(random, kCount);
    std::vector<ChainLink> steps;
    for (std::size_t i = 0; i < num_steps; ++i) {
      const BinaryOp op = i % 2 == 0 ? BinaryOp::kMaximum : BinaryOp::kSub;
      const bool moves = i % 3 == 0;
      void* const operand = moves ? array.data() : &scalars[i];
      steps.push_back({*chain_op_of(op), moves ? ChainForm::kRight : ChainForm::kLeftScalar, operand});
      const BinaryLoop loop = binary_loop(op, dtype_of<T>);
      if (moves) {
        loop(expected.data(), true, operand, true, expected.data(), kCount);
      } else {
        loop(operand, false, expected.data(), true, expected.data(), kCount);
      }
    }
    std::vector<T> out(kCount);
    chain_loop(dtype_of<T>)(in.data(), steps.data(), steps.size(), out.data(), kCount);
    EXPECT_TRUE(same(out, expected)) << num_steps << " steps";
  }
}

TYPED_TEST(ChainTest, ReluKeepsMinusZeroAndNaN) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  const T nan = Limits::quiet_NaN();
  const std::vector<T> in = {T{0},
                             -T{0},
                             Limits::denorm_min(),
                             -Limits::denorm_min(),
                             Limits::infinity(),
                             -Limits::infinity(),
                             nan,
                             -nan,
                             Limits::max(),
                             Limits::lowest(),
                             T{2},
                             -T{2}};
  const std::vector<T> expected = {
      T{0}, -T{0}, Limits::denorm_min(), T{0}, Limits::infinity(), T{0}, nan, nan, Limits::max(), T{0},
      T{2}, T{0}};
  std::vector<T> alone(in.size());
  unary_loop(UnaryOp::kRelu, dtype_of<T>)(in.data(), alone.data(), static_cast<std::int64_t>(in.size()));
  EXPECT_TRUE(same(alone, expected));
  std::vector<T> many(8 * in.size());  // in whole blocks as well
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = in[i % in.size()];
  const ChainLink step{ChainOp::kRelu};
  chain_loop(dtype_of<T>)(many.data(), &step, 1, many.data(), static_cast<std::int64_t>(many.size()));
  for (std::size_t i = 0; i < many.size(); i += in.size()) {
    const auto from = many.begin() + static_cast<std::ptrdiff_t>(i);
    EXPECT_TRUE(same(std::vector<T>(from, from + static_cast<std::ptrdiff_t>(in.size())), expected)) << i;
  }
}

TYPED_TEST(ChainTest, WritesOverAnOperand) {
  using T = TypeParam;
  const std::vector<T> in(100, T{3});
  std::vector<T> operand(100, T{4});
  const ChainLink step{ChainOp::kMul, ChainForm::kRight, operand.data()};
  chain_loop(dtype_of<T>)(in.data(), &step, 1, operand.data(), 100);
  EXPECT_EQ(operand, std::vector<T>(100, T{12}));
}

TYPED_TEST(ChainTest, LargerAndSmallerKnowNaNAndSignedZeros) {
  using T = TypeParam;
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const auto both = [](T a, T b) {
    std::array<T, 2> results = {a, a};
    const ChainLink larger{ChainOp::kMaximum, ChainForm::kRightScalar, &b};
    const ChainLink smaller{ChainOp::kMinimum, ChainForm::kRightScalar, &b};
    chain_loop(dtype_of<T>)(&results[0], &larger, 1, &results[0], 1);
    chain_loop(dtype_of<T>)(&results[1], &smaller, 1, &results[1], 1);
    return results;
  };
  for (const auto& [a, b] : {std::pair<T, T>{nan, 1}, {1, nan}, {nan, nan}}) {
    EXPECT_TRUE(std::isnan(both(a, b)[0]));
    EXPECT_TRUE(std::isnan(both(a, b)[1]));
  }
  for (const auto& [a, b] : {std::pair<T, T>{T{0}, -T{0}}, {-T{0}, T{0}}}) {
    EXPECT_FALSE(std::signbit(both(a, b)[0]));
    EXPECT_TRUE(std::signbit(both(a, b)[1]));
  }
}

}  // namespace
}  // namespace lockstep::kernels
