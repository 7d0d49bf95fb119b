// core/kernels/simd/internal/vector_loops.h - the loops of the vector table, compiled once per instruction
// set.
//
// Included by core/kernels/simd/vector_table.cpp alone, many times: Highway sets HWY_NAMESPACE and the
// compiler's target anew each time, hence the odd include guard.
#if defined(LOCKSTEP_VECTOR_LOOPS) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_VECTOR_LOOPS
#undef LOCKSTEP_VECTOR_LOOPS
#else
#define LOCKSTEP_VECTOR_LOOPS
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "lockstep/core/kernels/simd/internal/vector_table.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// --- math

#include "lockstep/core/kernels/simd/internal/vector_math.h"

// --- loops

// The last vector overlaps the one before it. It is computed first, since a loop in place would have
// overwritten its inputs by then. Two vectors at a time keep the processor busy. Fewer elements than a vector
// has lanes are computed in a copy.
template <class Op, class T>
void unary(const void* in, void* out, std::int64_t count) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const T* from = static_cast<const T*>(in);
  T* to = static_cast<T*>(out);
  if (HWY_UNLIKELY(count < lanes)) {
    if (count <= 0) return;
    HWY_ALIGN T few[HWY_MAX_BYTES / sizeof(T)];
    hn::Store(hn::Set(d, from[0]), d, few);
    for (std::int64_t i = 1; i < count; ++i) few[i] = from[i];
    hn::Store(Op::run(d, hn::Load(d, few)), d, few);
    for (std::int64_t i = 0; i < count; ++i) to[i] = few[i];
    return;
  }
  const std::int64_t last = count - lanes;
  const auto at_last = Op::run(d, hn::LoadU(d, from + last));
  std::int64_t i = 0;
  for (; i + lanes < last; i += 2 * lanes) {
    const auto first = Op::run(d, hn::LoadU(d, from + i));
    const auto second = Op::run(d, hn::LoadU(d, from + i + lanes));
    hn::StoreU(first, d, to + i);
    hn::StoreU(second, d, to + i + lanes);
  }
  for (; i < last; i += lanes) hn::StoreU(Op::run(d, hn::LoadU(d, from + i)), d, to + i);
  hn::StoreU(at_last, d, to + last);
}

template <class Op, class T, bool a_moves, bool b_moves>
HWY_INLINE void binary_run(const T* a, const T* b, T* out, std::int64_t count) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V a_fixed = hn::Set(d, a[0]);
  const V b_fixed = hn::Set(d, b[0]);
  const std::int64_t last = count - lanes;
  const V a_last = a_moves ? hn::LoadU(d, a + last) : a_fixed;
  const V b_last = b_moves ? hn::LoadU(d, b + last) : b_fixed;
  const V at_last = Op::run(d, a_last, b_last);
  for (std::int64_t i = 0; i < last; i += lanes) {
    const V left = a_moves ? hn::LoadU(d, a + i) : a_fixed;
    const V right = b_moves ? hn::LoadU(d, b + i) : b_fixed;
    hn::StoreU(Op::run(d, left, right), d, out + i);
  }
  hn::StoreU(at_last, d, out + last);
}

template <class Op, class T>
void binary(const void* a, bool a_moves, const void* b, bool b_moves, void* out, std::int64_t count) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const T* left = static_cast<const T*>(a);
  const T* right = static_cast<const T*>(b);
  T* to = static_cast<T*>(out);
  if (HWY_UNLIKELY(count < lanes || (!a_moves && !b_moves))) {
    if (count <= 0) return;
    HWY_ALIGN T few[2][HWY_MAX_BYTES / sizeof(T)];
    const std::int64_t distinct = a_moves || b_moves ? count : 1;
    for (std::int64_t i = 0; i < lanes; ++i) {
      few[0][i] = left[a_moves && i < distinct ? i : 0];
      few[1][i] = right[b_moves && i < distinct ? i : 0];
    }
    hn::Store(Op::run(d, hn::Load(d, few[0]), hn::Load(d, few[1])), d, few[0]);
    if (distinct == count) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = few[0][i];
    } else {
      std::fill_n(to, count, few[0][0]);
    }
    return;
  }
  if (a_moves && b_moves) {
    binary_run<Op, T, true, true>(left, right, to, count);
  } else if (a_moves) {
    binary_run<Op, T, true, false>(left, right, to, count);
  } else {
    binary_run<Op, T, false, true>(left, right, to, count);
  }
}

// --- 16-bit floats; see F16 and BF16 for how the bits come about

#if HWY_ARCH_ARM_A64 || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2)
#define LOCKSTEP_CONVERTS_F16 1
#else
#define LOCKSTEP_CONVERTS_F16 0
#endif

struct F16ToF32 {
  using In = std::uint16_t;
  using Out = float;
  template <class D, class VIn>
  static HWY_INLINE hn::Vec<D> run(D d, VIn bits) {
#if LOCKSTEP_CONVERTS_F16
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
#else
    const hn::RebindToUnsigned<D> du;
    const auto wide = hn::PromoteTo(du, bits);
    const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(du, 0x8000U)));
    const auto size = hn::ShiftLeft<13>(hn::And(wide, hn::Set(du, 0x7FFFU)));
    // The same digits read as a float give a value that is too small by 2^112; this holds for subnormals,
    // too.
    const auto scaled = hn::BitCast(du, hn::Mul(hn::BitCast(d, size), hn::Set(d, 0x1p112F)));
    const auto special = hn::Gt(size, hn::Set(du, 0x0F7FFFFFU));
    const auto nan = hn::Gt(size, hn::Set(du, 0x0F800000U));
    auto large = hn::Or(size, hn::Set(du, 0x7F800000U));
    large = hn::Or(large, hn::IfThenElseZero(nan, hn::Set(du, 0x00400000U)));
    return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(special, large, scaled)));
#endif
  }
};
struct F32ToF16 {
  using In = float;
  using Out = std::uint16_t;
  template <class D, class VIn>
  static HWY_INLINE auto run([[maybe_unused]] D d, VIn x) {
    const hn::Rebind<std::uint16_t, D> d16;
#if LOCKSTEP_CONVERTS_F16
    return hn::BitCast(d16, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), x));
#else
    const hn::RebindToUnsigned<D> du;
    const auto whole = hn::BitCast(du, x);
    const auto sign = hn::And(hn::ShiftRight<16>(whole), hn::Set(du, 0x8000U));
    const auto size = hn::And(whole, hn::Set(du, 0x7FFFFFFFU));
    const auto nan = hn::Or(hn::Set(du, 0x7E00U), hn::And(hn::ShiftRight<13>(size), hn::Set(du, 0x03FFU)));
    const auto tiny =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, size), hn::Set(d, 0.5F))), hn::Set(du, 0x3F000000U));
    const auto odd = hn::And(hn::ShiftRight<13>(size), hn::Set(du, 1U));
    const auto rounded = hn::Add(hn::Add(size, hn::Set(du, 0x0FFFU)), odd);
    auto half = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(du, 112U << 23U)));
    half = hn::IfThenElse(hn::Lt(size, hn::Set(du, 0x38800000U)), tiny, half);
    half = hn::IfThenElse(hn::Gt(size, hn::Set(du, 0x477FFFFFU)), hn::Set(du, 0x7C00U), half);
    half = hn::IfThenElse(hn::Gt(size, hn::Set(du, 0x7F800000U)), nan, half);
    return hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<D>(), hn::Or(sign, half)));
#endif
  }
};
struct BF16ToF32 {
  using In = std::uint16_t;
  using Out = float;
  template <class D, class VIn>
  static HWY_INLINE hn::Vec<D> run(D d, VIn bits) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D>(), bits)));
  }
};
struct F32ToBF16 {
  using In = float;
  using Out = std::uint16_t;
  template <class D, class VIn>
  static HWY_INLINE auto run(D, VIn x) {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<std::uint16_t, D> d16;
    const auto whole = hn::BitCast(du, x);
    const auto size = hn::And(whole, hn::Set(du, 0x7FFFFFFFU));
    const auto nan = hn::Or(hn::ShiftRight<16>(whole), hn::Set(du, 0x0040U));
    const auto odd = hn::And(hn::ShiftRight<16>(whole), hn::Set(du, 1U));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(whole, hn::Set(du, 0x7FFFU)), odd));
    const auto bits = hn::IfThenElse(hn::Gt(size, hn::Set(du, 0x7F800000U)), nan, rounded);
    return hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<D>(), bits));
  }
};

template <class Op>
void convert(const void* in, void* out, std::int64_t count) {
  const hn::ScalableTag<float> d;
  using In = typename Op::In;
  using Out = typename Op::Out;
  const hn::Rebind<In, decltype(d)> d_in;
  const hn::Rebind<Out, decltype(d)> d_out;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const In* from = static_cast<const In*>(in);
  Out* to = static_cast<Out*>(out);
  if (HWY_UNLIKELY(count < lanes)) {
    HWY_ALIGN In few[HWY_MAX_BYTES / sizeof(In)] = {};
    HWY_ALIGN Out results[HWY_MAX_BYTES / sizeof(Out)];
    for (std::int64_t i = 0; i < count; ++i) few[i] = from[i];
    hn::StoreU(Op::run(d, hn::LoadU(d_in, few)), d_out, results);
    for (std::int64_t i = 0; i < count; ++i) to[i] = results[i];
    return;
  }
  const std::int64_t last = count - lanes;
  for (std::int64_t i = 0; i < last; i += lanes)
    hn::StoreU(Op::run(d, hn::LoadU(d_in, from + i)), d_out, to + i);
  hn::StoreU(Op::run(d, hn::LoadU(d_in, from + last)), d_out, to + last);
}

// --- chains

#include "lockstep/core/kernels/simd/internal/vector_chain.h"

// --- many arrays into one

#include "lockstep/core/kernels/simd/internal/vector_replicas.h"

// --- the table

template <class Op>
void set(VectorTable& table, UnaryOp op) {
  table.unary[static_cast<std::size_t>(op)][0] = unary<Op, float>;
  table.unary[static_cast<std::size_t>(op)][1] = unary<Op, double>;
}
template <class Op>
void set(VectorTable& table, BinaryOp op) {
  table.binary[static_cast<std::size_t>(op)][0] = binary<Op, float>;
  table.binary[static_cast<std::size_t>(op)][1] = binary<Op, double>;
}

VectorTable make_table() {
  VectorTable t;
  t.target = hwy::TargetName(HWY_TARGET);
  set<Neg>(t, UnaryOp::kNeg);
  set<Abs>(t, UnaryOp::kAbs);
  set<Square>(t, UnaryOp::kSquare);
  set<Sign>(t, UnaryOp::kSign);
  set<Relu>(t, UnaryOp::kRelu);
  set<Exp>(t, UnaryOp::kExp);
  set<Log>(t, UnaryOp::kLog);
  set<Log1p>(t, UnaryOp::kLog1p);
  set<Sqrt>(t, UnaryOp::kSqrt);
  set<Rsqrt>(t, UnaryOp::kRsqrt);
  set<Reciprocal>(t, UnaryOp::kReciprocal);
  set<Sin>(t, UnaryOp::kSin);
  set<Cos>(t, UnaryOp::kCos);
  set<Tanh>(t, UnaryOp::kTanh);
  set<Sigmoid>(t, UnaryOp::kSigmoid);
  set<Gelu>(t, UnaryOp::kGelu);
  set<Erf>(t, UnaryOp::kErf);
  set<Softplus>(t, UnaryOp::kSoftplus);
  set<Floor>(t, UnaryOp::kFloor);
  set<Ceil>(t, UnaryOp::kCeil);
  set<Round>(t, UnaryOp::kRound);
  set<AddOf>(t, BinaryOp::kAdd);
  set<SubOf>(t, BinaryOp::kSub);
  set<MulOf>(t, BinaryOp::kMul);
  set<DivOf>(t, BinaryOp::kDiv);
  set<Maximum>(t, BinaryOp::kMaximum);
  set<Minimum>(t, BinaryOp::kMinimum);
  set<ReluGrad>(t, BinaryOp::kReluGrad);
  set<GeluGrad>(t, BinaryOp::kGeluGrad);
  t.chain[0] = chain<float>;
  t.chain[1] = chain<double>;
  set_replicas<AddOf>(t, ReplicaReduce::kSum);
  set_replicas<AddOf>(t, ReplicaReduce::kMean);
  set_replicas<Minimum>(t, ReplicaReduce::kMin);
  set_replicas<Maximum>(t, ReplicaReduce::kMax);
  set_replicas<MulOf>(t, ReplicaReduce::kProd);
  t.f16_to_f32 = convert<F16ToF32>;
  t.f32_to_f16 = convert<F32ToF16>;
  t.bf16_to_f32 = convert<BF16ToF32>;
  t.f32_to_bf16 = convert<F32ToBF16>;
  return t;
}

#undef LOCKSTEP_CONVERTS_F16
#undef LOCKSTEP_NEON

}  // namespace

const VectorTable* table_of_target() {
  static const VectorTable table = make_table();
  return &table;
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels
HWY_AFTER_NAMESPACE();

#endif
