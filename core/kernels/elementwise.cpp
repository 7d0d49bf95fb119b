#include "lockstep/core/kernels/elementwise.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "lockstep/core/error.h"

// The loops below read element i of their inputs and write element i of their output: where these alias, they are
// the same element, so that no iteration depends on another. Saying so lets the compilers vectorise in place.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // loops of 16-bit types and integer division stay scalar
#define LOCKSTEP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety) interleave(assume_safety)")
#elif defined(__GNUC__)
#define LOCKSTEP_INDEPENDENT _Pragma("GCC ivdep")
#else
#define LOCKSTEP_INDEPENDENT
#endif

namespace lockstep::kernels {
namespace {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, F16> || std::is_same_v<T, BF16>;

// What an op gives on operands of type T: a comparison gives bool.
template <BinaryOp op, class T>
using ResultOf = std::conditional_t<op == BinaryOp::kLess, bool, T>;

template <BinaryOp op, class T>
ResultOf<op, T> apply(T a, T b) {
  if constexpr (kIsHalf<T>) {
    return ResultOf<op, T>(apply<op, float>(static_cast<float>(a), static_cast<float>(b)));
  } else if constexpr (op == BinaryOp::kLess) {
    return a < b;
  } else if constexpr (std::is_integral_v<T>) {
    using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    const auto x = static_cast<Wrapping>(a);
    const auto y = static_cast<Wrapping>(b);
    if constexpr (op == BinaryOp::kAdd) return static_cast<T>(x + y);
    if constexpr (op == BinaryOp::kSub) return static_cast<T>(x - y);
    if constexpr (op == BinaryOp::kMul) return static_cast<T>(x * y);
    if constexpr (op == BinaryOp::kDiv) {
      if (b == 0) throw InvalidArgument(str("div: division of ", +a, " by zero in ", dtype_of<T>));
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return static_cast<T>(Wrapping{0} - x);  // the one quotient that may overflow
      }
      return static_cast<T>(a / b);
    }
  } else {
    if constexpr (op == BinaryOp::kAdd) return a + b;
    if constexpr (op == BinaryOp::kSub) return a - b;
    if constexpr (op == BinaryOp::kMul) return a * b;
    if constexpr (op == BinaryOp::kDiv) return a / b;
  }
}

// One run of consecutive output elements; each operand runs along or stands still.
template <BinaryOp op, class T>
void run(const T* a, bool a_moves, const T* b, bool b_moves, ResultOf<op, T>* out, std::int64_t count) {
  if (a_moves && b_moves) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) out[i] = apply<op>(a[i], b[i]);
  } else if (a_moves) {
    const T fixed = *b;
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) out[i] = apply<op>(a[i], fixed);
  } else if (b_moves) {
    const T fixed = *a;
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) out[i] = apply<op>(fixed, b[i]);
  } else if (count > 0) {
    std::fill_n(out, count, apply<op>(*a, *b));
  }
}

// The axes of a broadcast, outermost first: extents of the output, and how far each operand moves per step (0 where
// it is broadcast). Neighbours over which both operands behave alike are merged and extents of one dropped, so that
// the last axis is the longest run there is; on it an operand moves by 1 or by 0.
class BroadcastAxes {
 public:
  BroadcastAxes(const Shape& out, const Shape& a, const Shape& b) {
    std::int64_t a_stride = 1, b_stride = 1;
    // From the last axis on; reversed at the end.
    for (std::size_t back = 1; back <= out.rank(); ++back) {
      const std::int64_t extent = out[out.rank() - back];
      const std::int64_t a_extent = back <= a.rank() ? a[a.rank() - back] : 1;
      const std::int64_t b_extent = back <= b.rank() ? b[b.rank() - back] : 1;
      if (extent != 1) push(extent, a_extent == 1 ? 0 : a_stride, b_extent == 1 ? 0 : b_stride);
      a_stride *= a_extent;
      b_stride *= b_extent;
    }
    if (rank_ == 0) push(1, 1, 1);
    std::reverse(axes_, axes_ + rank_);
  }

  struct Axis {
    std::int64_t extent, a_step, b_step;
    std::int64_t index = 0;
  };
  Axis& operator[](std::size_t i) { return axes_[i]; }
  std::size_t rank() const { return rank_; }
  Axis& last() { return axes_[rank_ - 1]; }

 private:
  void push(std::int64_t extent, std::int64_t a_step, std::int64_t b_step) {
    if (rank_ > 0) {
      Axis& inner = axes_[rank_ - 1];
      if (a_step == inner.a_step * inner.extent && b_step == inner.b_step * inner.extent) {
        inner.extent *= extent;
        return;
      }
    }
    axes_[rank_++] = Axis{extent, a_step, b_step};
  }

  std::size_t rank_ = 0;
  Axis axes_[Shape::kMaxRank];
};

template <BinaryOp op, class T>
void broadcast(const Shape& out_shape, const T* a, const Shape& a_shape, const T* b, const Shape& b_shape,
               ResultOf<op, T>* out, std::int64_t begin, std::int64_t end) {
  BroadcastAxes axes(out_shape, a_shape, b_shape);
  std::int64_t rest = begin;
  std::int64_t a_at = 0, b_at = 0;
  for (std::size_t i = axes.rank(); i-- > 0;) {
    axes[i].index = rest % axes[i].extent;
    rest /= axes[i].extent;
    a_at += axes[i].index * axes[i].a_step;
    b_at += axes[i].index * axes[i].b_step;
  }
  BroadcastAxes::Axis& inner = axes.last();
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t count = std::min(end - at, inner.extent - inner.index);
    run<op>(a + a_at, inner.a_step != 0, b + b_at, inner.b_step != 0, out + at, count);
    at += count;
    // On to the next run: the last axis starts anew, and the others count like an odometer.
    a_at -= inner.index * inner.a_step;
    b_at -= inner.index * inner.b_step;
    inner.index = 0;
    for (std::size_t i = axes.rank() - 1; i-- > 0;) {
      BroadcastAxes::Axis& axis = axes[i];
      a_at += axis.a_step;
      b_at += axis.b_step;
      if (++axis.index < axis.extent) break;
      a_at -= axis.extent * axis.a_step;
      b_at -= axis.extent * axis.b_step;
      axis.index = 0;
    }
  }
}

void check_operand(BinaryOp op, const Shape& operand, const Shape& out) {
  bool fits = operand.rank() <= out.rank();
  for (std::size_t back = 1; fits && back <= operand.rank(); ++back) {
    const std::int64_t extent = operand[operand.rank() - back];
    fits = extent == 1 || extent == out[out.rank() - back];
  }
  if (!fits)
    throw InvalidArgument(
        str(to_string(op), ": an operand of shape ", operand, " does not broadcast to ", out));
}

void check_range(const char* what, std::int64_t begin, std::int64_t end) {
  LOCKSTEP_CHECK(0 <= begin && begin <= end, what, ": range [", begin, ", ", end, ")");
}

template <BinaryOp op>
void dispatch(DType dtype, const Shape& out_shape, const void* a, const Shape& a_shape, const void* b,
              const Shape& b_shape, void* out, std::int64_t begin, std::int64_t end) {
  const std::int64_t total = out_shape.num_elements();
  LOCKSTEP_CHECK(0 <= begin && begin <= end && end <= total, to_string(op), ": range [", begin, ", ", end,
                 ") of ", out_shape);
  const bool same = a_shape == out_shape && b_shape == out_shape;
  if (!same) {
    check_operand(op, a_shape, out_shape);
    check_operand(op, b_shape, out_shape);
  }
  if (begin == end) return;
  // An operand as large as the output has its order of elements, whatever extents of one it has or lacks.
  const std::int64_t a_total = same ? total : a_shape.num_elements();
  const std::int64_t b_total = same ? total : b_shape.num_elements();
  const bool a_moves = a_total == total;
  const bool b_moves = b_total == total;
  const bool flat = (a_moves || a_total == 1) && (b_moves || b_total == 1);
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, bool> || op == BinaryOp::kLess) {
      const auto* left = static_cast<const T*>(a);
      const auto* right = static_cast<const T*>(b);
      auto* result = static_cast<ResultOf<op, T>*>(out);
      if (flat) {
        run<op>(left + (a_moves ? begin : 0), a_moves, right + (b_moves ? begin : 0), b_moves, result + begin,
                end - begin);
      } else {
        broadcast<op>(out_shape, left, a_shape, right, b_shape, result, begin, end);
      }
    }
  });
}

// Floats by their bits: above -0 and up to -infinity they are negative and not NaN. Compilers turn the comparison of
// numbers into instructions that differ in what they make of -0.
template <class T>
struct FloatBits;
template <>
struct FloatBits<F16> {
  using Type = std::uint16_t;
  static constexpr Type kNegativeZero = 0x8000U, kNegativeInfinity = 0xFC00U;
};
template <>
struct FloatBits<BF16> {
  using Type = std::uint16_t;
  static constexpr Type kNegativeZero = 0x8000U, kNegativeInfinity = 0xFF80U;
};
template <>
struct FloatBits<float> {
  using Type = std::uint32_t;
  static constexpr Type kNegativeZero = 0x80000000U, kNegativeInfinity = 0xFF800000U;
};
template <>
struct FloatBits<double> {
  using Type = std::uint64_t;
  static constexpr Type kNegativeZero = 0x8000000000000000U, kNegativeInfinity = 0xFFF0000000000000U;
};

template <class T>
void relu_run(const T* in, T* out, std::int64_t count) {
  if constexpr (is_floating(dtype_of<T>)) {
    using Bits = FloatBits<T>;
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<typename Bits::Type>(in[i]);
      const bool negative = bits > Bits::kNegativeZero && bits <= Bits::kNegativeInfinity;
      out[i] = std::bit_cast<T>(negative ? typename Bits::Type{0} : bits);
    }
  } else {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) out[i] = in[i] < T{0} ? T{0} : in[i];
  }
}

}  // namespace

std::string_view to_string(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd: return "add";
    case BinaryOp::kSub: return "sub";
    case BinaryOp::kMul: return "mul";
    case BinaryOp::kDiv: return "div";
    case BinaryOp::kLess: break;
  }
  return "less";
}

void binary(BinaryOp op, DType dtype, const Shape& out_shape, const void* a, const Shape& a_shape,
            const void* b, const Shape& b_shape, void* out, std::int64_t begin, std::int64_t end) {
  if (dtype == DType::kBool && op != BinaryOp::kLess) {
    throw InvalidArgument(str(to_string(op), ": bool has no arithmetic: convert to another dtype first"));
  }
  switch (op) {
    case BinaryOp::kAdd:
      return dispatch<BinaryOp::kAdd>(dtype, out_shape, a, a_shape, b, b_shape, out, begin, end);
    case BinaryOp::kSub:
      return dispatch<BinaryOp::kSub>(dtype, out_shape, a, a_shape, b, b_shape, out, begin, end);
    case BinaryOp::kMul:
      return dispatch<BinaryOp::kMul>(dtype, out_shape, a, a_shape, b, b_shape, out, begin, end);
    case BinaryOp::kDiv:
      return dispatch<BinaryOp::kDiv>(dtype, out_shape, a, a_shape, b, b_shape, out, begin, end);
    case BinaryOp::kLess:
      return dispatch<BinaryOp::kLess>(dtype, out_shape, a, a_shape, b, b_shape, out, begin, end);
  }
}

void relu(DType dtype, const void* in, void* out, std::int64_t begin, std::int64_t end) {
  check_range("relu", begin, end);
  if (dtype == DType::kBool) throw InvalidArgument("relu: bool has no sign: convert to another dtype first");
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, bool>) {
      relu_run(static_cast<const T*>(in) + begin, static_cast<T*>(out) + begin, end - begin);
    }
  });
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
