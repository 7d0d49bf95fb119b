// core/kernels/internal/vector_chain.h - chains of steps (core/kernels/chain.h): a part of vector_loops.h.
//
// Included there, inside the namespace of each instruction set: no guard, and nothing of its own to include.
//
// A block of vectors goes through all steps in registers. A step of 16 vectors takes as little as eight cycles, so that what
// leads from one to the next decides. Steps are therefore made ready once per call:
//   - each knows the address of its instructions, and jumps to those of the next by itself: an interpreter whose steps
//     return to one switch waits for the instructions, not for the arithmetic;
//   - an element that all share lies in memory as a whole vector, which is cheaper to load than to make;
//   - pointers to arrays move along with the blocks, so that loads are at constant distances from them.

template <class T>
struct ReadyStep {
  T* operand;
  const void* code;
};
template <class T>
struct SpreadElement {
  T lanes[HWY_MAX_BYTES / sizeof(T)];
};
template <class T>
struct ReadyChain {
  const ChainStep* steps;
  std::size_t num_steps;
  ReadyStep<T>* ready;  // one more than there are steps: the last one stores the result
  const T* in;          // moves along too
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"  // labels as values, which GCC and clang have

// Blocks of vectors through all steps. The vectors are arguments, so that each is a variable of its own: compilers keep
// those in registers, and arrays often not. `whole`: all lanes of all vectors count. Otherwise there is one block of one
// vector, of which the first `count` lanes do.
template <class T, bool whole, class D, class... V>
HWY_NOINLINE void chain_blocks(D d, ReadyChain<T>& chain, std::int64_t blocks,
                               [[maybe_unused]] std::int64_t count, V... v) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t block = lanes * static_cast<std::int64_t>(sizeof...(V));
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

#define LOCKSTEP_UNARY_LABELS(name) &&unary_##name, nullptr, nullptr, nullptr
#define LOCKSTEP_BINARY_LABELS(name) \
  &&right_##name, &&right_scalar_##name, &&left_##name, &&left_scalar_##name
  // By op and form.
  static const void* const labels[] = {
      LOCKSTEP_UNARY_LABELS(kNeg),      LOCKSTEP_UNARY_LABELS(kAbs),      LOCKSTEP_UNARY_LABELS(kSquare),
      LOCKSTEP_UNARY_LABELS(kRelu),     LOCKSTEP_UNARY_LABELS(kSqrt),     LOCKSTEP_UNARY_LABELS(kReciprocal),
      LOCKSTEP_UNARY_LABELS(kStore),    LOCKSTEP_BINARY_LABELS(kAdd),     LOCKSTEP_BINARY_LABELS(kSub),
      LOCKSTEP_BINARY_LABELS(kMul),     LOCKSTEP_BINARY_LABELS(kDiv),     LOCKSTEP_BINARY_LABELS(kMaximum),
      LOCKSTEP_BINARY_LABELS(kMinimum), LOCKSTEP_BINARY_LABELS(kReluGrad)};
#undef LOCKSTEP_UNARY_LABELS
#undef LOCKSTEP_BINARY_LABELS
  for (std::size_t i = 0; i < chain.num_steps; ++i) {
    const ChainStep& step = chain.steps[i];
    chain.ready[i].code = labels[static_cast<std::size_t>(step.op) * 4 + static_cast<std::size_t>(step.form)];
  }
  chain.ready[chain.num_steps].code = &&result;

  const T* in = chain.in;
  ReadyStep<T>* next = nullptr;
  T* operand = nullptr;

#define LOCKSTEP_NEXT_STEP               \
  {                                      \
    operand = next->operand;             \
    const void* const code = next->code; \
    ++next;                              \
    goto* code;                          \
  }
// What a step with an array begins with: the next block finds the array moved on.
#define LOCKSTEP_AT_ARRAY k = 0, next[-1].operand = operand + block
#define LOCKSTEP_UNARY_STEP(name, Op)        \
  unary_##name : ((v = Op::run(d, v)), ...); \
  LOCKSTEP_NEXT_STEP
#define LOCKSTEP_BINARY_STEP(name, Op)                           \
  right_##name : LOCKSTEP_AT_ARRAY;                              \
  ((v = Op::run(d, v, load_lanes(operand + lanes * k++))), ...); \
  LOCKSTEP_NEXT_STEP                                             \
  right_scalar_##name : {                                        \
    const auto scalar = hn::LoadU(d, operand);                   \
    ((v = Op::run(d, v, scalar)), ...);                          \
    LOCKSTEP_NEXT_STEP                                           \
  }                                                              \
  left_##name : LOCKSTEP_AT_ARRAY;                               \
  ((v = Op::run(d, load_lanes(operand + lanes * k++), v)), ...); \
  LOCKSTEP_NEXT_STEP                                             \
  left_scalar_##name : {                                         \
    const auto scalar = hn::LoadU(d, operand);                   \
    ((v = Op::run(d, scalar, v)), ...);                          \
    LOCKSTEP_NEXT_STEP                                           \
  }

next_block:
  if constexpr (whole && sizeof...(V) > 1) {
    // The result is stored in one go: its lines had better be there by then.
    const T* const result = chain.ready[chain.num_steps].operand;
    constexpr std::int64_t kLine = 64 / sizeof(T);
    for (std::int64_t i = 0; i < block; i += kLine) __builtin_prefetch(result + i, 1);
  }
  k = 0;
  ((v = load_lanes(in + lanes * k++)), ...);
  in += block;
  next = chain.ready;
  LOCKSTEP_NEXT_STEP
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
unary_kStore:
  LOCKSTEP_AT_ARRAY;
  (store_lanes(v, operand + lanes * k++), ...);
  LOCKSTEP_NEXT_STEP
result:
  LOCKSTEP_AT_ARRAY;
  (store_lanes(v, operand + lanes * k++), ...);
  if (--blocks > 0) goto next_block;
  chain.in = in;
#undef LOCKSTEP_NEXT_STEP
#undef LOCKSTEP_AT_ARRAY
#undef LOCKSTEP_UNARY_STEP
#undef LOCKSTEP_BINARY_STEP
}

#pragma GCC diagnostic pop

template <class T>
void chain(const void* in, const ChainStep* steps, std::size_t num_steps, void* out, std::int64_t count) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
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
    // Without a branch, which processors cannot foresee in chains that are new to them.
    const auto* const operand = static_cast<const T*>(steps[i].operand);
    const bool is_scalar = (static_cast<unsigned>(steps[i].form) & 1U) != 0;
    hn::StoreU(hn::Set(d, *(is_scalar ? operand : &none)), d, elements[i].lanes);
    ready[i].operand = is_scalar ? elements[i].lanes : static_cast<T*>(steps[i].operand);
  }
  ready[num_steps].operand = static_cast<T*>(out);
  ReadyChain<T> chain{steps, num_steps, ready, static_cast<const T*>(in)};
  const auto z = hn::Zero(d);
#if HWY_ARCH_ARM_A64  // 32 vector registers; elsewhere 16, of which a step needs a few
  if (const std::int64_t blocks = count / (16 * lanes); blocks > 0)
    chain_blocks<T, true>(d, chain, blocks, count, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z);
  count %= 16 * lanes;
#else
  if (const std::int64_t blocks = count / (8 * lanes); blocks > 0)
    chain_blocks<T, true>(d, chain, blocks, count, z, z, z, z, z, z, z, z);
  count %= 8 * lanes;
#endif
  if (const std::int64_t blocks = count / (4 * lanes); blocks > 0)
    chain_blocks<T, true>(d, chain, blocks, count, z, z, z, z);
  count %= 4 * lanes;
  if (const std::int64_t blocks = count / lanes; blocks > 0)
    chain_blocks<T, true>(d, chain, blocks, count, z);
  count %= lanes;
  if (count > 0) chain_blocks<T, false>(d, chain, 1, count, z);
}
