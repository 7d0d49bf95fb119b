// core/kernels/internal/vector_chain.h - chains of steps (core/kernels/chain.h): a part of vector_loops.h.
//
// Included there, inside the namespace of each instruction set: no guard, and nothing of its own to include.

// One block of vectors through all steps. They are arguments, so that each is a variable of its own: compilers keep those
// in registers, and arrays often not.
template <class T, bool whole, class D, class... V>
HWY_INLINE void chain_block(D d, const T* in, const ChainStep* step, const ChainStep* end, T* out,
                            std::int64_t at, [[maybe_unused]] std::int64_t count, V... v) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t k = 0;
  // `whole`: all lanes of all vectors count. Otherwise there is one vector, of which the first `count` lanes do.
  const auto load_lanes = [&](const T* from) {
    if constexpr (whole) {
      return hn::LoadU(d, from);
    } else {
      HWY_ALIGN T few[HWY_MAX_BYTES / sizeof(T)] = {};
      for (std::int64_t i = 0; i < count; ++i) few[i] = from[i];
      return hn::Load(d, few);
    }
  };
  const auto store_lanes = [&](auto value, T* to) {
    if constexpr (whole) {
      hn::StoreU(value, d, to);
    } else {
      HWY_ALIGN T few[HWY_MAX_BYTES / sizeof(T)];
      hn::Store(value, d, few);
      for (std::int64_t i = 0; i < count; ++i) to[i] = few[i];
    }
  };
  ((v = load_lanes(in + at + lanes * k++)), ...);
  for (; step != end; ++step) {
    T* const operand = static_cast<T*>(step->operand);
    switch (static_cast<unsigned>(step->op) * 4 + static_cast<unsigned>(step->form)) {
#define LOCKSTEP_UNARY_STEP(name, Op)             \
  case static_cast<unsigned>(StepOp::name) * 4: { \
    ((v = Op::run(d, v)), ...);                   \
    break;                                        \
  }
#define LOCKSTEP_BINARY_STEP(name, Op)                                                            \
  case static_cast<unsigned>(StepOp::name) * 4 + static_cast<unsigned>(StepForm::kRight): {       \
    k = 0;                                                                                        \
    ((v = Op::run(d, v, load_lanes(operand + at + lanes * k++))), ...);                           \
    break;                                                                                        \
  }                                                                                               \
  case static_cast<unsigned>(StepOp::name) * 4 + static_cast<unsigned>(StepForm::kRightScalar): { \
    const auto scalar = hn::Set(d, *operand);                                                     \
    ((v = Op::run(d, v, scalar)), ...);                                                           \
    break;                                                                                        \
  }                                                                                               \
  case static_cast<unsigned>(StepOp::name) * 4 + static_cast<unsigned>(StepForm::kLeft): {        \
    k = 0;                                                                                        \
    ((v = Op::run(d, load_lanes(operand + at + lanes * k++), v)), ...);                           \
    break;                                                                                        \
  }                                                                                               \
  case static_cast<unsigned>(StepOp::name) * 4 + static_cast<unsigned>(StepForm::kLeftScalar): {  \
    const auto scalar = hn::Set(d, *operand);                                                     \
    ((v = Op::run(d, scalar, v)), ...);                                                           \
    break;                                                                                        \
  }
      LOCKSTEP_UNARY_STEP(kNeg, Neg)
      LOCKSTEP_UNARY_STEP(kAbs, Abs)
      LOCKSTEP_UNARY_STEP(kSquare, Square)
      LOCKSTEP_UNARY_STEP(kRelu, Relu)
      LOCKSTEP_UNARY_STEP(kSqrt, Sqrt)
      LOCKSTEP_UNARY_STEP(kReciprocal, Reciprocal)
      LOCKSTEP_BINARY_STEP(kAdd, AddOf)
      LOCKSTEP_BINARY_STEP(kSub, SubOf)
      LOCKSTEP_BINARY_STEP(kMul, MulOf)
      LOCKSTEP_BINARY_STEP(kDiv, DivOf)
      LOCKSTEP_BINARY_STEP(kMaximum, Maximum)
      LOCKSTEP_BINARY_STEP(kMinimum, Minimum)
      LOCKSTEP_BINARY_STEP(kReluGrad, ReluGrad)
#undef LOCKSTEP_UNARY_STEP
#undef LOCKSTEP_BINARY_STEP
      case static_cast<unsigned>(StepOp::kStore) * 4: {
        k = 0;
        (store_lanes(v, operand + at + lanes * k++), ...);
        break;
      }
      default: __builtin_unreachable();
    }
  }
  k = 0;
  (store_lanes(v, out + at + lanes * k++), ...);
}

template <class T>
void chain(const void* in, const ChainStep* steps, std::size_t num_steps, void* out, std::int64_t count) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const ChainStep* const end = steps + num_steps;
  const T* const from = static_cast<const T*>(in);
  T* const to = static_cast<T*>(out);
  const auto z = hn::Zero(d);
  std::int64_t at = 0;
#if HWY_ARCH_ARM_A64  // 32 vector registers; elsewhere 16, of which a step needs a few
  for (; at + 16 * lanes <= count; at += 16 * lanes)
    chain_block<T, true>(d, from, steps, end, to, at, count, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z);
#else
  for (; at + 8 * lanes <= count; at += 8 * lanes)
    chain_block<T, true>(d, from, steps, end, to, at, count, z, z, z, z, z, z, z, z);
#endif
  for (; at + 4 * lanes <= count; at += 4 * lanes)
    chain_block<T, true>(d, from, steps, end, to, at, count, z, z, z, z);
  for (; at < count; at += lanes) {
    if (at + lanes <= count) {
      chain_block<T, true>(d, from, steps, end, to, at, count, z);
    } else {
      chain_block<T, false>(d, from, steps, end, to, at, count - at, z);
    }
  }
}
