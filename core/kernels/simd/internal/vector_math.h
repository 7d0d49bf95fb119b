// core/kernels/simd/internal/vector_math.h - functions of vectors, one struct each: a part of vector_loops.h.
//
// Included there, inside the namespace of each instruction set: no guard, and nothing of its own to include.

// c0 + c1 x + c2 x^2 + ...
template <class D, class V, class T>
HWY_INLINE V polynomial(D d, V, T c0) {
  return hn::Set(d, c0);
}
template <class D, class V, class T, class... Ts>
HWY_INLINE V polynomial(D d, V x, T c0, Ts... rest) {
  return hn::MulAdd(polynomial(d, x, rest...), x, hn::Set(d, c0));
}

template <class D>
using Lane = hn::TFromD<D>;

template <class D>
HWY_INLINE hn::Vec<D> constant(D d, double value) {
  return hn::Set(d, static_cast<Lane<D>>(value));
}
template <class D>
HWY_INLINE hn::Vec<D> infinity(D d) {
  return hn::Set(d, std::numeric_limits<Lane<D>>::infinity());
}
template <class D, class V>
HWY_INLINE hn::Mask<D> is_nan(D, V x) {
  return hn::IsNaN(x);  // not Ne(x, x), which is false for NaN on some instruction sets
}
template <class D, class V>
HWY_INLINE V keep_nan(D d, V x, V y) {
  return hn::IfThenElse(is_nan(d, x), x, y);
}

struct Neg {
  template <class D, class V>
  static HWY_INLINE V run(D, V x) {
    return hn::Neg(x);
  }
};
struct Abs {
  template <class D, class V>
  static HWY_INLINE V run(D, V x) {
    return hn::Abs(x);
  }
};
struct Square {
  template <class D, class V>
  static HWY_INLINE V run(D, V x) {
    return hn::Mul(x, x);
  }
};
struct Sign {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    const V zero = hn::Zero(d);
    const V up = hn::IfThenElseZero(hn::Gt(x, zero), constant(d, 1));
    return keep_nan(d, x, hn::IfThenElse(hn::Lt(x, zero), constant(d, -1), up));
  }
};
// Operations that 64-bit Arm has instructions for and Highway does not have: the larger and the smaller of
// two numbers, where NaN wins and +0 is above -0; and x, or 0 if x is below zero. Compilers must not see that
// the latter is decided by a comparison: some turn it into a maximum, which loses the sign of -0.
#if HWY_ARCH_ARM_A64 && \
    (HWY_TARGET == HWY_NEON || (defined(HWY_NEON_WITHOUT_AES) && HWY_TARGET == HWY_NEON_WITHOUT_AES))
#define LOCKSTEP_NEON 1
using F32s = hn::Vec128<float>;
using F64s = hn::Vec128<double>;
HWY_INLINE F32s larger_of(F32s a, F32s b) { return F32s(vmaxq_f32(a.raw, b.raw)); }
HWY_INLINE F64s larger_of(F64s a, F64s b) { return F64s(vmaxq_f64(a.raw, b.raw)); }
HWY_INLINE F32s smaller_of(F32s a, F32s b) { return F32s(vminq_f32(a.raw, b.raw)); }
HWY_INLINE F64s smaller_of(F64s a, F64s b) { return F64s(vminq_f64(a.raw, b.raw)); }
HWY_INLINE F32s zero_if_below(F32s x) {
  uint32x4_t below = vcltzq_f32(x.raw);
  asm("" : "+w"(below));
  return F32s(vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x.raw), below)));
}
HWY_INLINE F64s zero_if_below(F64s x) {
  uint64x2_t below = vcltzq_f64(x.raw);
  asm("" : "+w"(below));
  return F64s(vreinterpretq_f64_u64(vbicq_u64(vreinterpretq_u64_f64(x.raw), below)));
}
#else
#define LOCKSTEP_NEON 0
#endif
// On bits, for the same reason. Read as integers, the numbers below zero lie above -0, which is the smallest
// integer, and go up to minus infinity.
struct Relu {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
#if LOCKSTEP_NEON
    static_cast<void>(d);
    return zero_if_below(x);
#else
    const hn::RebindToSigned<D> di;
    const auto bits = hn::BitCast(di, x);
    const auto minus_infinity = hn::BitCast(di, hn::Neg(infinity(d)));
    const auto minus_zero = hn::Set(di, std::numeric_limits<hn::TFromD<decltype(di)>>::min());
    const auto below = hn::AndNot(hn::Gt(bits, minus_infinity), hn::Gt(bits, minus_zero));
    return hn::BitCast(d, hn::IfThenZeroElse(below, bits));
#endif
  }
};
struct Sqrt {
  template <class D, class V>
  static HWY_INLINE V run(D, V x) {
    return hn::Sqrt(x);
  }
};
struct Rsqrt {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    return hn::Div(constant(d, 1), hn::Sqrt(x));
  }
};
struct Reciprocal {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    return hn::Div(constant(d, 1), x);
  }
};
// Without an instruction for it, Highway loses the sign of zero.
struct Floor {
  template <class D, class V>
  static HWY_INLINE V run(D, V x) {
    return hn::CopySign(hn::Floor(x), x);
  }
};
struct Ceil {
  template <class D, class V>
  static HWY_INLINE V run(D, V x) {
    return hn::CopySign(hn::Ceil(x), x);
  }
};
struct Round {
  template <class D, class V>
  static HWY_INLINE V run(D, V x) {
    return hn::CopySign(hn::Round(x), x);
  }
};

// Highway's exp is correct until the result overflows by a few binades, and does not handle NaN.
struct Exp {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    const V top = constant(d, sizeof(Lane<D>) == 4 ? 104 : 1000);
    return keep_nan(d, x, hn::Exp(d, hn::IfThenElse(hn::Gt(x, top), top, x)));
  }
};

// Adds to `log`, which Highway computes for x > 0 only, the cases that Highway leaves out.
template <class D, class V>
HWY_INLINE V log_or_special(D d, V x, V log) {
  const V zero = hn::Zero(d);
  const V nan = hn::Set(d, std::numeric_limits<Lane<D>>::quiet_NaN());
  log = hn::IfThenElse(hn::Eq(x, infinity(d)), x, log);
  log = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity(d)), log);
  return keep_nan(d, x, hn::IfThenElse(hn::Lt(x, zero), nan, log));
}
struct Log {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    return log_or_special(d, x, hn::Log(d, x));
  }
};
struct Log1p {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    const V plus = hn::Add(x, constant(d, 1));
    const V log = hn::Log1p(d, x);
    return keep_nan(d, x, log_or_special(d, plus, log));
  }
};

// Highway reduces angles up to here; beyond, and for NaN, the C library does it, lane by lane.
constexpr double kLargestAngle = 39000;
template <class D, class V>
HWY_INLINE V with_large_angles(D d, V x, V y, Lane<D> (*scalar)(Lane<D>)) {
  const auto small = hn::Le(hn::Abs(x), constant(d, kLargestAngle));
  if (HWY_LIKELY(hn::AllTrue(d, small))) return y;
  HWY_ALIGN Lane<D> angles[HWY_MAX_BYTES / sizeof(Lane<D>)];
  HWY_ALIGN Lane<D> results[HWY_MAX_BYTES / sizeof(Lane<D>)];
  hn::Store(x, d, angles);
  hn::Store(y, d, results);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
    if (!(std::abs(angles[i]) <= static_cast<Lane<D>>(kLargestAngle))) results[i] = scalar(angles[i]);
  }
  return hn::Load(d, results);
}
struct Sin {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    const V sine = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), x, hn::Sin(d, x));  // sin(-0) is -0
    return with_large_angles(d, x, sine, static_cast<Lane<D> (*)(Lane<D>)>(std::sin));
  }
};
struct Cos {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    return with_large_angles(d, x, hn::Cos(d, x), static_cast<Lane<D> (*)(Lane<D>)>(std::cos));
  }
};
struct Tanh {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    return keep_nan(d, x, hn::Tanh(d, x));
  }
};
// exp is only taken of numbers <= 0: nothing overflows, and small results keep their digits.
struct Sigmoid {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    const V one = constant(d, 1);
    const V e = Exp::run(d, hn::Neg(hn::Abs(x)));
    const V top = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
    return keep_nan(d, x, hn::Div(top, hn::Add(one, e)));
  }
};
struct Softplus {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    const V e = Exp::run(d, hn::Neg(hn::Abs(x)));
    const V ramp = hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
    return keep_nan(d, x, hn::Add(ramp, hn::Log1p(d, e)));
  }
};

// erf(x) for |x| < 1: x times a polynomial in x^2, fitted to erf(x) / x on Chebyshev nodes.
template <class D, class V>
HWY_INLINE V erf_near(D d, V x) {
  const V s = hn::Mul(x, x);
  if constexpr (sizeof(Lane<D>) == 4) {
    return hn::Mul(x, polynomial(d, s, 1.1283791658F, -0.37612626667F, 0.11283594715F, -0.026854212011F,
                                 0.0051890874234F, -0.00080168642872F, 7.8758750627e-5F));
  } else {
    return hn::Mul(x,
                   polynomial(d, s, 1.128379167095512567, -0.3761263890318354044, 0.1128379167094500627,
                              -0.02686617064323777036, 0.005223977607116422732, -0.0008548325975389692081,
                              0.0001205529490483970792, -0.00001492473690741966034, 1.644742470331736241e-6,
                              -1.62084838018717059e-7, 1.37200645467776856e-8, -7.795898827002142242e-10));
  }
}
// 1 - erf(x) for x >= 1: exp(-x^2) times a polynomial in (x - 3) / (x + 3), fitted up to where exp(-x^2)
// underflows; beyond that it is 0.
template <class D, class V>
HWY_INLINE V erfc_far(D d, V x) {
  x = hn::Min(x, constant(d, sizeof(Lane<D>) == 4 ? 11.0 : 28.0));
  const V three = constant(d, 3);
  const V t = hn::Div(hn::Sub(x, three), hn::Add(x, three));
  V p;
  if constexpr (sizeof(Lane<D>) == 4) {
    p = polynomial(d, t, 0.17900115F, -0.32623357F, 0.24560377F, -0.15011555F, 0.071666904F, -0.024397589F,
                   0.0042582694F, 0.00073295838F, -0.00055281347F);
  } else {
    p = polynomial(d, t, 0.1790011511813899408, -0.3262335600430377659, 0.2456038017123363599,
                   -0.1501159365007137987, 0.07166583719748105316, -0.02439249932063951704,
                   0.004269136349449894912, 0.0007077464586365290265, -0.000597062211859667779,
                   0.00004525534460920980388, 0.00006405872493564999471, -0.00001286272373550630276,
                   -7.987254461796597506e-6, 2.136261449024283605e-6, 1.267766630755187076e-6,
                   -3.438951890069615748e-7, -2.250806406599283489e-7, 8.604769088421784959e-8);
  }
  return hn::Mul(Exp::run(d, hn::Neg(hn::Mul(x, x))), p);
}
struct Erf {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    const V size = hn::Abs(x);
    const V far = hn::CopySign(hn::Sub(constant(d, 1), erfc_far(d, size)), x);
    return keep_nan(d, x, hn::IfThenElse(hn::Lt(size, constant(d, 1)), erf_near(d, x), far));
  }
};
// The share of the normal distribution that lies below x.
template <class D, class V>
HWY_INLINE V normal_below(D d, V x) {
  const V half = constant(d, 0.5);
  const V one = constant(d, 1);
  const V z = hn::Mul(x, constant(d, 0.70710678118654752440));
  const V size = hn::Abs(z);
  const auto negative = hn::Lt(x, hn::Zero(d));
  const V tail = hn::Mul(half, erfc_far(d, size));
  const V far = hn::IfThenElse(negative, tail, hn::Sub(one, tail));
  const V near = hn::MulAdd(half, erf_near(d, z), half);
  return hn::IfThenElse(hn::Lt(size, one), near, far);
}
struct Gelu {
  template <class D, class V>
  static HWY_INLINE V run(D d, V x) {
    const V below = normal_below(d, x);
    // Far below zero the product is -0, also for minus infinity.
    const V factor = hn::IfThenElse(hn::Lt(x, constant(d, -1e6)), constant(d, -1e6), x);
    return keep_nan(d, x, hn::Mul(factor, below));
  }
};

struct AddOf {
  template <class D, class V>
  static HWY_INLINE V run(D, V a, V b) {
    return hn::Add(a, b);
  }
};
struct SubOf {
  template <class D, class V>
  static HWY_INLINE V run(D, V a, V b) {
    return hn::Sub(a, b);
  }
};
struct MulOf {
  template <class D, class V>
  static HWY_INLINE V run(D, V a, V b) {
    return hn::Mul(a, b);
  }
};
struct DivOf {
  template <class D, class V>
  static HWY_INLINE V run(D, V a, V b) {
    return hn::Div(a, b);
  }
};
// The larger zero is +0, so that the order of operands does not matter; NaN if either is.
struct Maximum {
  template <class D, class V>
  static HWY_INLINE V run(D d, V a, V b) {
#if LOCKSTEP_NEON
    static_cast<void>(d);
    return larger_of(a, b);
#else
    const V larger = hn::IfThenElse(hn::Or(hn::Gt(a, b), is_nan(d, a)), a, b);
    return hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), larger);
#endif
  }
};
struct Minimum {
  template <class D, class V>
  static HWY_INLINE V run(D d, V a, V b) {
#if LOCKSTEP_NEON
    static_cast<void>(d);
    return smaller_of(a, b);
#else
    const V smaller = hn::IfThenElse(hn::Or(hn::Lt(a, b), is_nan(d, a)), a, b);
    return hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), smaller);
#endif
  }
};
struct GeluGrad {
  template <class D, class V>
  static HWY_INLINE V run(D d, V gradient, V x) {
    // Beyond 40 the density is 0, also times x.
    const V near = hn::Min(hn::Max(x, constant(d, -40)), constant(d, 40));
    const V density = hn::Mul(Exp::run(d, hn::Mul(hn::Mul(near, near), constant(d, -0.5))),
                              constant(d, 0.39894228040143267794));
    return hn::Mul(gradient, keep_nan(d, x, hn::MulAdd(near, density, normal_below(d, x))));
  }
};
struct ReluGrad {
  template <class D, class V>
  static HWY_INLINE V run(D d, V gradient, V x) {
    return hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), gradient);
  }
};
