// core/kernels/simd/internal/vector_chain.h - chains of steps (core/kernels/chain.h): a part of
// vector_loops.h.
//
// Included there, inside the namespace of each instruction set: no guard, and nothing of its own to include.
//
// A block of vectors goes through all steps in registers. A step of 16 vectors takes as little as eight
// cycles, so that the way from one step to the next decides the speed. For arrays of several blocks, steps
// are therefore prepared once per call:
//   - each step holds the address of its instructions, and jumps directly to those of the next: an
//     interpreter whose steps return to one switch waits for the instructions, not for the arithmetic;
//   - a scalar operand lies in memory as a whole vector, which is cheaper to load than to make;
//   - pointers to arrays move along with the blocks, so that loads are at constant distances from them.
// For short arrays, and at the ends of others, a switch is cheaper.

// All steps in the order of ChainOp, and the structs that compute them.
#define LOCKSTEP_CHAIN_STEPS(UNARY, STORE, BINARY) \
  UNARY(kNeg, Neg)                                 \
  UNARY(kAbs, Abs)                                 \
  UNARY(kSquare, Square)                           \
  UNARY(kRelu, Relu)                               \
  UNARY(kSqrt, Sqrt)                               \
  UNARY(kReciprocal, Reciprocal)                   \
  STORE(kStore)                                    \
  BINARY(kAdd, AddOf)                              \
  BINARY(kSub, SubOf)                              \
  BINARY(kMul, MulOf)                              \
  BINARY(kDiv, DivOf)                              \
  BINARY(kMaximum, Maximum)                        \
  BINARY(kMinimum, Minimum)                        \
  BINARY(kReluGrad, ReluGrad)

constexpr std::size_t step_index(ChainOp op, ChainForm form) {
  return static_cast<std::size_t>(op) * 4 + static_cast<std::size_t>(form);
}

// Takes one block through all steps. The vectors are arguments, so that each is a variable of its own:
// compilers keep those in registers, but often not arrays. `whole`: all lanes of all vectors count. Otherwise
// there is one vector, and only its first `count` lanes count.
template <class T, bool whole, class D, class... V>
HWY_INLINE void chain_block(D d, const T* in, const ChainLink* step, const ChainLink* end, T* out,
                            std::int64_t at, [[maybe_unused]] std::int64_t count, V... v) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t k = 0;
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
    switch (step_index(step->op, step->form)) {
#define LOCKSTEP_UNARY_STEP(name, Op)                  \
  case step_index(ChainOp::name, ChainForm::kRight): { \
    ((v = Op::run(d, v)), ...);                        \
    break;                                             \
  }
#define LOCKSTEP_BINARY_STEP(name, Op)                                  \
  case step_index(ChainOp::name, ChainForm::kRight): {                  \
    k = 0;                                                              \
    ((v = Op::run(d, v, load_lanes(operand + at + lanes * k++))), ...); \
    break;                                                              \
  }                                                                     \
  case step_index(ChainOp::name, ChainForm::kRightScalar): {            \
    const auto scalar = hn::Set(d, *operand);                           \
    ((v = Op::run(d, v, scalar)), ...);                                 \
    break;                                                              \
  }                                                                     \
  case step_index(ChainOp::name, ChainForm::kLeft): {                   \
    k = 0;                                                              \
    ((v = Op::run(d, load_lanes(operand + at + lanes * k++), v)), ...); \
    break;                                                              \
  }                                                                     \
  case step_index(ChainOp::name, ChainForm::kLeftScalar): {             \
    const auto scalar = hn::Set(d, *operand);                           \
    ((v = Op::run(d, scalar, v)), ...);                                 \
    break;                                                              \
  }
#define LOCKSTEP_STORE_STEP(name)                      \
  case step_index(ChainOp::name, ChainForm::kRight): { \
    k = 0;                                             \
    (store_lanes(v, operand + at + lanes * k++), ...); \
    break;                                             \
  }
      LOCKSTEP_CHAIN_STEPS(LOCKSTEP_UNARY_STEP, LOCKSTEP_STORE_STEP, LOCKSTEP_BINARY_STEP)
#undef LOCKSTEP_UNARY_STEP
#undef LOCKSTEP_STORE_STEP
#undef LOCKSTEP_BINARY_STEP
      default: __builtin_unreachable();
    }
  }
  k = 0;
  (store_lanes(v, out + at + lanes * k++), ...);
}

// --- many blocks

template <class T>
struct ReadyStep {
  T* operand;
  const void* code;
};
template <class T>
struct SpreadElement {
  T lanes[HWY_MAX_BYTES / sizeof(T)];
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"  // labels as values, which GCC and clang have

// `ready` has the operands of all steps and, after them, the destination of the result.
template <class T, class D, class... V>
HWY_NOINLINE void chain_blocks(D d, const T* in, const ChainLink* steps, std::size_t num_steps,
                               ReadyStep<T>* ready, std::int64_t blocks, V... v) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t block = lanes * static_cast<std::int64_t>(sizeof...(V));
  std::int64_t k = 0;

#define LOCKSTEP_UNARY_LABELS(name, Op) &&unary_##name, nullptr, nullptr, nullptr,
#define LOCKSTEP_STORE_LABELS(name) &&store_##name, nullptr, nullptr, nullptr,
#define LOCKSTEP_BINARY_LABELS(name, Op) \
  &&right_##name, &&right_scalar_##name, &&left_##name, &&left_scalar_##name,
  static const void* const labels[] = {
      // by step_index()
      LOCKSTEP_CHAIN_STEPS(LOCKSTEP_UNARY_LABELS, LOCKSTEP_STORE_LABELS, LOCKSTEP_BINARY_LABELS)};
#undef LOCKSTEP_UNARY_LABELS
#undef LOCKSTEP_STORE_LABELS
#undef LOCKSTEP_BINARY_LABELS
  for (std::size_t i = 0; i < num_steps; ++i) ready[i].code = labels[step_index(steps[i].op, steps[i].form)];
  ready[num_steps].code = &&result;

  ReadyStep<T>* next = nullptr;
  T* operand = nullptr;
#define LOCKSTEP_NEXT_STEP               \
  {                                      \
    operand = next->operand;             \
    const void* const code = next->code; \
    ++next;                              \
    goto* code;                          \
  }
// Begins a step that has an array: the next block finds the array moved on.
#define LOCKSTEP_AT_ARRAY k = 0, next[-1].operand = operand + block
#define LOCKSTEP_UNARY_STEP(name, Op)        \
  unary_##name : ((v = Op::run(d, v)), ...); \
  LOCKSTEP_NEXT_STEP
#define LOCKSTEP_STORE_STEP(name)                 \
  store_##name : LOCKSTEP_AT_ARRAY;               \
  (hn::StoreU(v, d, operand + lanes * k++), ...); \
  LOCKSTEP_NEXT_STEP
#define LOCKSTEP_BINARY_STEP(name, Op)                             \
  right_##name : LOCKSTEP_AT_ARRAY;                                \
  ((v = Op::run(d, v, hn::LoadU(d, operand + lanes * k++))), ...); \
  LOCKSTEP_NEXT_STEP                                               \
  right_scalar_##name : {                                          \
    const auto scalar = hn::LoadU(d, operand);                     \
    ((v = Op::run(d, v, scalar)), ...);                            \
    LOCKSTEP_NEXT_STEP                                             \
  }                                                                \
  left_##name : LOCKSTEP_AT_ARRAY;                                 \
  ((v = Op::run(d, hn::LoadU(d, operand + lanes * k++), v)), ...); \
  LOCKSTEP_NEXT_STEP                                               \
  left_scalar_##name : {                                           \
    const auto scalar = hn::LoadU(d, operand);                     \
    ((v = Op::run(d, scalar, v)), ...);                            \
    LOCKSTEP_NEXT_STEP                                             \
  }

next_block:
  // The result is stored in one go: its cache lines should be there by then.
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < block; i += kLine) __builtin_prefetch(ready[num_steps].operand + i, 1);
  k = 0;
  ((v = hn::LoadU(d, in + lanes * k++)), ...);
  in += block;
  next = ready;
  LOCKSTEP_NEXT_STEP
  LOCKSTEP_CHAIN_STEPS(LOCKSTEP_UNARY_STEP, LOCKSTEP_STORE_STEP, LOCKSTEP_BINARY_STEP)
result:
  LOCKSTEP_AT_ARRAY;
  (hn::StoreU(v, d, operand + lanes * k++), ...);
  if (--blocks > 0) goto next_block;
#undef LOCKSTEP_NEXT_STEP
#undef LOCKSTEP_AT_ARRAY
#undef LOCKSTEP_UNARY_STEP
#undef LOCKSTEP_STORE_STEP
#undef LOCKSTEP_BINARY_STEP
}

#pragma GCC diagnostic pop

template <class T, class D, class... V>
void chain_many(D d, const T* in, const ChainLink* steps, std::size_t num_steps, T* out, std::int64_t blocks,
                V... v) {
  constexpr std::size_t kFew = 64;
  ReadyStep<T> few_steps[kFew];
  SpreadElement<T> few_elements[kFew];
  ReadyStep<T>* ready = few_steps;
  SpreadElement<T>* elements = few_elements;
  std::unique_ptr<ReadyStep<T>[]> many_steps;
  std::unique_ptr<SpreadElement<T>[]> many_elements;
  if (HWY_UNLIKELY(num_steps >= kFew)) {
    many_steps = std::make_unique_for_overwrite<ReadyStep<T>[]>(num_steps + 1);
    many_elements = std::make_unique_for_overwrite<SpreadElement<T>[]>(num_steps);
    ready = many_steps.get();
    elements = many_elements.get();
  }
  const T none = 0;
  for (std::size_t i = 0; i < num_steps; ++i) {
    // Without a branch, which processors cannot predict in chains that are new to them.
    auto* const operand = static_cast<T*>(steps[i].operand);
    const bool is_scalar = (static_cast<unsigned>(steps[i].form) & 1U) != 0;
    hn::StoreU(hn::Set(d, *(is_scalar ? operand : &none)), d, elements[i].lanes);
    ready[i].operand = is_scalar ? elements[i].lanes : operand;
  }
  ready[num_steps].operand = out;
  chain_blocks<T>(d, in, steps, num_steps, ready, blocks, v...);
}

template <class T>
void chain(const void* in, const ChainLink* steps, std::size_t num_steps, void* out, std::int64_t count) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const ChainLink* const end = steps + num_steps;
  const T* const from = static_cast<const T*>(in);
  T* const to = static_cast<T*>(out);
  const auto z = hn::Zero(d);
  std::int64_t at = 0;
#if HWY_ARCH_ARM_A64  // 32 vector registers; elsewhere 16, of which a step needs a few
  const std::int64_t block = 16 * lanes;
#else
  const std::int64_t block = 8 * lanes;
#endif
  if (const std::int64_t blocks = count / block; blocks > 1) {
#if HWY_ARCH_ARM_A64
    chain_many<T>(d, from, steps, num_steps, to, blocks, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z);
#else
    chain_many<T>(d, from, steps, num_steps, to, blocks, z, z, z, z, z, z, z, z);
#endif
    at = blocks * block;
  }
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

#undef LOCKSTEP_CHAIN_STEPS
