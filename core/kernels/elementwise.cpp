// core/kernels/elementwise.cpp - arithmetic element by element, on plain memory.
#include "lockstep/core/kernels/elementwise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/broadcast.h"
#include "lockstep/core/kernels/internal/independent.h"
#include "lockstep/core/kernels/simd/internal/half_floats.h"
#include "lockstep/core/kernels/simd/internal/vector_table.h"

namespace lockstep::kernels {
namespace {

constexpr std::array<std::string_view, kNumUnaryOps> kUnaryNames = {
    "neg",  "abs",      "square",     "sign", "relu",  "exp",      "log",        "log1p",
    "sqrt", "rsqrt",    "reciprocal", "sin",  "cos",   "tanh",     "sigmoid",    "gelu",
    "erf",  "softplus", "floor",      "ceil", "round", "isfinite", "logical_not"};
constexpr std::array<std::string_view, kNumBinaryOps> kBinaryNames = {
    "add",           "sub",     "mul",       "div",         "floor_div", "mod",        "pow",
    "maximum",       "minimum", "relu_grad", "gelu_grad",   "less",      "less_equal", "greater",
    "greater_equal", "equal",   "not_equal", "logical_and", "logical_or"};

// --- one element

// Integers are added, subtracted and multiplied as unsigned ones, which wrap around.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

template <UnaryOp op, class T>
constexpr bool kHasUnary =
    op == UnaryOp::kLogicalNot
        ? std::is_same_v<T, bool>
        : !std::is_same_v<T, bool> && (op <= UnaryOp::kRelu || (is_floating(dtype_of<T>)));

// Plain loops: integers and bool, and isfinite.
template <UnaryOp op, class T>
auto apply(T x) {
  if constexpr (op == UnaryOp::kLogicalNot) {
    return !x;
  } else if constexpr (op == UnaryOp::kIsFinite) {
    if constexpr (std::is_same_v<T, F16>) {
      return (x.bits & 0x7C00U) != 0x7C00U;
    } else if constexpr (std::is_same_v<T, BF16>) {
      return (x.bits & 0x7F80U) != 0x7F80U;
    } else {
      return std::abs(x) <= std::numeric_limits<T>::max();
    }
  } else {
    const auto w = static_cast<Wrapping<T>>(x);
    if constexpr (op == UnaryOp::kNeg) return static_cast<T>(Wrapping<T>{0} - w);
    if constexpr (op == UnaryOp::kAbs) return x < T{0} ? static_cast<T>(Wrapping<T>{0} - w) : x;
    if constexpr (op == UnaryOp::kSquare) return static_cast<T>(w * w);
    if constexpr (op == UnaryOp::kSign) return static_cast<T>((x > T{0}) - (x < T{0}));
    if constexpr (op == UnaryOp::kRelu) return x < T{0} ? T{0} : x;
  }
}

template <BinaryOp op, class T>
constexpr bool kHasBinary = std::is_same_v<T, bool>     ? op >= BinaryOp::kLess
                            : op == BinaryOp::kGeluGrad ? is_floating(dtype_of<T>)
                                                        : op < BinaryOp::kLogicalAnd;

template <BinaryOp op, class T>
using ResultOf = std::conditional_t<result_dtype(op, dtype_of<T>) == DType::kBool, bool, T>;

template <class T>
T float_mod(T a, T b) {
  T rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(T{0}, b);
  if ((rest < 0) != (b < 0)) rest += b;
  return rest;
}

// The whole number nearest to (a - a mod b) / b, which the quotient a / b rounded down may miss by one.
template <class T>
T float_floor_div(T a, T b) {
  if (b == 0) return a / b;
  T rest = std::fmod(a, b);
  T quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(T{0}, a / b);
  const T down = std::floor(quotient);
  return quotient - down > T(0.5) ? down + 1 : down;
}

template <class T>
[[noreturn]] void division_by_zero(BinaryOp op, T a, std::int64_t position) {
  throw RefusedData(str(to_string(op), ": division of ", +a, " by zero in ", dtype_of<T>), position);
}

template <class T>
T integer_pow(T base, T exponent, [[maybe_unused]] std::int64_t position) {
  if constexpr (std::is_signed_v<T>) {
    if (exponent < 0) {
      throw RefusedData(str("pow: ", +base, " to the power of ", +exponent, " is no ", dtype_of<T>,
                            ": convert to a floating dtype first"),
                        position);
    }
  }
  Wrapping<T> power = 1;
  auto factor = static_cast<Wrapping<T>>(base);
  for (auto left = static_cast<Wrapping<T>>(exponent); left != 0; left >>= 1U) {
    if ((left & 1U) != 0) power *= factor;
    factor *= factor;
  }
  return static_cast<T>(power);
}

// Integers, bool, comparisons, and the rest that has no vector loop. `position` is what errors name.
template <BinaryOp op, class T>
ResultOf<op, T> apply(T a, T b, [[maybe_unused]] std::int64_t position) {
  if constexpr (op == BinaryOp::kLess) return a < b;
  if constexpr (op == BinaryOp::kLessEqual) return a <= b;
  if constexpr (op == BinaryOp::kGreater) return a > b;
  if constexpr (op == BinaryOp::kGreaterEqual) return a >= b;
  if constexpr (op == BinaryOp::kEqual) return a == b;
  if constexpr (op == BinaryOp::kNotEqual) return a != b;
  if constexpr (op == BinaryOp::kLogicalAnd) return a && b;
  if constexpr (op == BinaryOp::kLogicalOr) return a || b;
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    const auto x = static_cast<Wrapping<T>>(a);
    const auto y = static_cast<Wrapping<T>>(b);
    if constexpr (op == BinaryOp::kAdd) return static_cast<T>(x + y);
    if constexpr (op == BinaryOp::kSub) return static_cast<T>(x - y);
    if constexpr (op == BinaryOp::kMul) return static_cast<T>(x * y);
    if constexpr (op == BinaryOp::kMaximum) return a > b ? a : b;
    if constexpr (op == BinaryOp::kMinimum) return a < b ? a : b;
    if constexpr (op == BinaryOp::kReluGrad) return b > T{0} ? a : T{0};
    if constexpr (op == BinaryOp::kPow) return integer_pow(a, b, position);
    if constexpr (op == BinaryOp::kDiv || op == BinaryOp::kFloorDiv || op == BinaryOp::kMod) {
      if (b == 0) division_by_zero(op, a, position);
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) {  // the one quotient that may overflow
          return op == BinaryOp::kMod ? T{0} : static_cast<T>(Wrapping<T>{0} - x);
        }
        if constexpr (op != BinaryOp::kDiv) {
          const T rest = a % b;
          const bool inexact_below = rest != 0 && (rest < 0) != (b < 0);
          if constexpr (op == BinaryOp::kMod) return inexact_below ? static_cast<T>(rest + b) : rest;
          if constexpr (op == BinaryOp::kFloorDiv) return static_cast<T>(a / b - (inexact_below ? 1 : 0));
        }
      }
      return static_cast<T>(op == BinaryOp::kMod ? a % b : a / b);
    }
  } else if constexpr (std::is_floating_point_v<T>) {
    if constexpr (op == BinaryOp::kFloorDiv) return float_floor_div(a, b);
    if constexpr (op == BinaryOp::kMod) return float_mod(a, b);
    if constexpr (op == BinaryOp::kPow) return std::pow(a, b);
    return T{0};  // the others have vector loops
  }
}

// --- loops

template <UnaryOp op, class T>
void plain_unary(const void* in, void* out, std::int64_t count) {
  const T* from = static_cast<const T*>(in);
  auto* to = static_cast<decltype(apply<op>(T{}))*>(out);
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) to[i] = apply<op>(from[i]);
}

template <UnaryOp op, class Half>
void half_unary(const void* in, void* out, std::int64_t count) {
  const UnaryLoop loop = vector_table().unary[static_cast<std::size_t>(op)][0];
  by_pieces(count, [&](std::int64_t at, std::int64_t n) {
    float piece[kHalfPiece];
    to_f32(static_cast<const Half*>(in) + at, piece, n);
    loop(piece, piece, n);
    from_f32(piece, static_cast<Half*>(out) + at, n);
  });
}

template <BinaryOp op, class T>
void plain_binary(const void* a, bool a_moves, const void* b, bool b_moves, void* out, std::int64_t count) {
  const T* left = static_cast<const T*>(a);
  const T* right = static_cast<const T*>(b);
  auto* to = static_cast<ResultOf<op, T>*>(out);
  if (a_moves && b_moves) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) to[i] = apply<op>(left[i], right[i], i);
  } else if (a_moves) {
    const T fixed = *right;
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) to[i] = apply<op>(left[i], fixed, i);
  } else if (b_moves) {
    const T fixed = *left;
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) to[i] = apply<op>(fixed, right[i], i);
  } else if (count > 0) {
    std::fill_n(to, count, apply<op>(*left, *right, 0));
  }
}

BinaryLoop f32_loop(BinaryOp op);

template <BinaryOp op, class Half>
void half_binary(const void* a, bool a_moves, const void* b, bool b_moves, void* out, std::int64_t count) {
  using Result = ResultOf<op, Half>;
  const BinaryLoop loop = f32_loop(op);
  float left[kHalfPiece], right[kHalfPiece];
  if (count > 0 && !a_moves) left[0] = static_cast<float>(*static_cast<const Half*>(a));
  if (count > 0 && !b_moves) right[0] = static_cast<float>(*static_cast<const Half*>(b));
  by_pieces(count, [&](std::int64_t at, std::int64_t n) {
    if (a_moves) to_f32(static_cast<const Half*>(a) + at, left, n);
    if (b_moves) to_f32(static_cast<const Half*>(b) + at, right, n);
    if constexpr (std::is_same_v<Result, bool>) {
      loop(left, a_moves, right, b_moves, static_cast<bool*>(out) + at, n);
    } else {
      float piece[kHalfPiece];
      loop(left, a_moves, right, b_moves, piece, n);
      from_f32(piece, static_cast<Half*>(out) + at, n);
    }
  });
}

// Reads both sides and chooses with a bit mask: there is nothing to branch on.
template <class Bits, bool c_moves, bool a_moves, bool b_moves>
void select_run(const std::uint8_t* condition, const Bits* a, const Bits* b, Bits* out, std::int64_t count) {
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) {
    const Bits x = a[a_moves ? i : 0];
    const Bits y = b[b_moves ? i : 0];
    const Bits mask = static_cast<Bits>(Bits{0} - static_cast<Bits>(condition[c_moves ? i : 0]));
    out[i] = static_cast<Bits>((x & mask) | (y & static_cast<Bits>(~mask)));
  }
}

template <class Bits>
void select(const void* condition, bool c_moves, const void* a, bool a_moves, const void* b, bool b_moves,
            void* out, std::int64_t count) {
  using Run = void (*)(const std::uint8_t*, const Bits*, const Bits*, Bits*, std::int64_t);
  static constexpr Run kRuns[2][2][2] = {
      {{select_run<Bits, false, false, false>, select_run<Bits, false, false, true>},
       {select_run<Bits, false, true, false>, select_run<Bits, false, true, true>}},
      {{select_run<Bits, true, false, false>, select_run<Bits, true, false, true>},
       {select_run<Bits, true, true, false>, select_run<Bits, true, true, true>}}};
  kRuns[c_moves ? 1 : 0][a_moves ? 1 : 0][b_moves ? 1 : 0](
      static_cast<const std::uint8_t*>(condition), static_cast<const Bits*>(a), static_cast<const Bits*>(b),
      static_cast<Bits*>(out), count);
}

// --- which loop

template <UnaryOp op, class T>
UnaryLoop find_unary() {
  if constexpr (!kHasUnary<op, T>) {
    return nullptr;
  } else if constexpr (!is_floating(dtype_of<T>) || op == UnaryOp::kIsFinite) {
    return plain_unary<op, T>;
  } else if constexpr (kIsHalf<T>) {
    return half_unary<op, T>;
  } else {
    return vector_table().unary[static_cast<std::size_t>(op)][std::is_same_v<T, float> ? 0 : 1];
  }
}

template <BinaryOp op, class T>
BinaryLoop find_binary() {
  if constexpr (!kHasBinary<op, T>) {
    return nullptr;
  } else if constexpr (kIsHalf<T>) {
    return half_binary<op, T>;
  } else {
    if constexpr (is_floating(dtype_of<T>)) {
      const BinaryLoop loop =
          vector_table().binary[static_cast<std::size_t>(op)][std::is_same_v<T, float> ? 0 : 1];
      if (loop != nullptr) return loop;
    }
    return plain_binary<op, T>;
  }
}

template <class T, std::size_t... I>
UnaryLoop find_unary(UnaryOp op, std::index_sequence<I...>) {
  using Find = UnaryLoop (*)();
  static constexpr Find kFind[] = {find_unary<static_cast<UnaryOp>(I), T>...};
  return kFind[static_cast<std::size_t>(op)]();
}

template <class T, std::size_t... I>
BinaryLoop find_binary(BinaryOp op, std::index_sequence<I...>) {
  using Find = BinaryLoop (*)();
  static constexpr Find kFind[] = {find_binary<static_cast<BinaryOp>(I), T>...};
  return kFind[static_cast<std::size_t>(op)]();
}

BinaryLoop f32_loop(BinaryOp op) { return find_binary<float>(op, std::make_index_sequence<kNumBinaryOps>()); }

void check_range(const char* what, std::int64_t begin, std::int64_t end) {
  LOCKSTEP_CHECK(0 <= begin && begin <= end, what, ": range [", begin, ", ", end, ")");
}

}  // namespace

std::string_view to_string(UnaryOp op) { return kUnaryNames[static_cast<std::size_t>(op)]; }
std::string_view to_string(BinaryOp op) { return kBinaryNames[static_cast<std::size_t>(op)]; }

UnaryLoop unary_loop(UnaryOp op, DType dtype) {
  return visit_dtype(dtype,
                     [&]<class T>(T) { return find_unary<T>(op, std::make_index_sequence<kNumUnaryOps>()); });
}

BinaryLoop binary_loop(BinaryOp op, DType dtype) {
  return visit_dtype(
      dtype, [&]<class T>(T) { return find_binary<T>(op, std::make_index_sequence<kNumBinaryOps>()); });
}

SelectLoop select_loop(DType dtype) {
  switch (size_of(dtype)) {
    case 1: return select<std::uint8_t>;
    case 2: return select<std::uint16_t>;
    case 4: return select<std::uint32_t>;
    default: return select<std::uint64_t>;
  }
}

void binary(BinaryOp op, DType dtype, const Shape& out_shape, const void* a, const Shape& a_shape,
            const void* b, const Shape& b_shape, void* out, std::int64_t begin, std::int64_t end) {
  const BinaryLoop loop = binary_loop(op, dtype);
  if (loop == nullptr) {
    throw InvalidArgument(dtype == DType::kBool
                              ? str(to_string(op), ": bool has no arithmetic: convert to another dtype first")
                              : str(to_string(op), ": has no meaning for ", dtype));
  }
  LOCKSTEP_CHECK(0 <= begin && begin <= end && end <= out_shape.num_elements(), to_string(op), ": range [",
                 begin, ", ", end, ") of ", out_shape);
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const auto out_size = static_cast<std::int64_t>(size_of(result_dtype(op, dtype)));
  const auto call = [&](const std::array<const std::byte*, 2>& operands, const std::array<bool, 2>& moves,
                        std::byte* to, std::int64_t count) {
    at_element((to - static_cast<std::byte*>(out)) / out_size,
               [&] { loop(operands[0], moves[0], operands[1], moves[1], to, count); });
  };
  const Broadcast plan(out_shape, {&a_shape, &b_shape});
  plan.run<2>(begin, end, {size, size}, {a, b}, out, out_size, call);
}

void relu(DType dtype, const void* in, void* out, std::int64_t begin, std::int64_t end) {
  check_range("relu", begin, end);
  const UnaryLoop loop = unary_loop(UnaryOp::kRelu, dtype);
  if (loop == nullptr) throw InvalidArgument("relu: bool has no sign: convert to another dtype first");
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  loop(static_cast<const std::byte*>(in) + begin * size, static_cast<std::byte*>(out) + begin * size,
       end - begin);
}

void copy(DType dtype, const void* in, void* out, std::int64_t begin, std::int64_t end) {
  check_range("copy", begin, end);
  if (begin == end) return;
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  std::memmove(static_cast<std::byte*>(out) + begin * size, static_cast<const std::byte*>(in) + begin * size,
               static_cast<std::size_t>((end - begin) * size));
}

void fill(DType dtype, const void* value, void* out, std::int64_t begin, std::int64_t end) {
  check_range("fill", begin, end);
  visit_dtype(dtype, [&]<class T>(T) {
    std::fill_n(static_cast<T*>(out) + begin, end - begin, *static_cast<const T*>(value));
  });
}

}  // namespace lockstep::kernels
