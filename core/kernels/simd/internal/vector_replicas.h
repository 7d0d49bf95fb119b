// core/kernels/simd/internal/vector_replicas.h - reduces N arrays of floats into one
// (core/kernels/reduce_replicas.h): a part of vector_loops.h.
//
// Included there, inside the namespace of each instruction set: no guard, and nothing of its own to include.
//
// Four vectors of each array at a time: the partial results stay in registers, and every array is read as one
// stream. Wider steps, and blocks in the first-level cache, were measured and are slower from memory.

// How elements are stored in memory, and how they are converted to the type of the arithmetic.
template <class T>
struct Stored {
  using Memory = T;
  using Lane = T;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const T* from) {
    return hn::LoadU(d, from);
  }
  template <class D, class V>
  static HWY_INLINE void store(D d, V v, T* to) {
    hn::StoreU(v, d, to);
  }
};
template <class ToF32, class FromF32>
struct StoredHalf {
  using Memory = std::uint16_t;
  using Lane = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Memory* from) {
    return ToF32::run(d, hn::LoadU(hn::Rebind<Memory, D>(), from));
  }
  template <class D, class V>
  static HWY_INLINE void store(D d, V v, Memory* to) {
    hn::StoreU(FromF32::run(d, v), hn::Rebind<Memory, D>(), to);
  }
};

template <class S>
HWY_INLINE const typename S::Memory* array_at(const ReplicaArrays& arrays, std::size_t i) {
  return static_cast<const typename S::Memory*>(arrays.inputs[i]);
}

template <class D, class V>
HWY_INLINE V divided(D, V x, V divisor, bool scales) {
  return scales ? hn::Mul(x, divisor) : hn::Div(x, divisor);
}

// Puts the address into a register of its own: what is read relative to it is then read in order and in
// pairs; a compiler that increments addresses as it goes does not do that. On a Neoverse N1 this gains a
// tenth with two arrays, and a third with eight in the cache.
template <class T>
HWY_INLINE T* in_register(T* address) {
#if defined(__GNUC__)
  asm("" : "+r"(address));
#endif
  return address;
}

// Makes the compiler read again whatever it has read before.
HWY_INLINE void forget_memory() {
#if defined(__GNUC__)
  asm volatile("" ::: "memory");
#endif
}

// kFew, kOut: the numbers of inputs and outputs if they are small and known to the compiler, or 0. kPaced:
// every step reads the inputs' addresses again, so that loads do not run far ahead. For arrays in memory,
// with four or more inputs and one output, that is faster: by a fifth on a Neoverse N1, whose prefetchers
// then keep track of the streams, and by nothing on a Sapphire Rapids. For arrays in the cache it is slower.
template <class Op, class S, std::size_t kFew, std::size_t kOut, bool kPaced = false>
HWY_INLINE void replicas_of(const ReplicaArrays& arrays, std::int64_t begin, std::int64_t end) {
  using Memory = typename S::Memory;
  using Lane = typename S::Lane;
  const hn::ScalableTag<Lane> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::size_t count = kFew > 0 ? kFew : arrays.num_inputs;
  // A division by a power of two is a product with the same bits, and several times as fast.
  const bool divides = arrays.divisor != 1;
  const bool scales = (count & (count - 1)) == 0;
  const V divisor = hn::Set(d, static_cast<Lane>(scales ? 1 / arrays.divisor : arrays.divisor));
  const Memory* from[kFew > 0 ? kFew : 1];
  for (std::size_t i = 0; i < kFew; ++i) from[i] = array_at<S>(arrays, i);
  const std::size_t outputs = kOut > 0 ? kOut : arrays.num_outputs;
  Memory* into[kOut > 0 ? kOut : 1];
  for (std::size_t i = 0; i < kOut; ++i) into[i] = static_cast<Memory*>(arrays.outputs[i]);

  std::int64_t at = begin;
  for (; at + 4 * lanes <= end; at += 4 * lanes) {
    if constexpr (kPaced) forget_memory();
    const Memory* first = kFew > 0 && !kPaced ? in_register(from[0] + at) : array_at<S>(arrays, 0) + at;
    V a = S::load(d, first);
    V b = S::load(d, first + lanes);
    V c = S::load(d, first + 2 * lanes);
    V e = S::load(d, first + 3 * lanes);
    for (std::size_t i = 1; i < count; ++i) {
      const Memory* next = kFew > 0 && !kPaced ? in_register(from[i] + at) : array_at<S>(arrays, i) + at;
      a = Op::run(d, a, S::load(d, next));
      b = Op::run(d, b, S::load(d, next + lanes));
      c = Op::run(d, c, S::load(d, next + 2 * lanes));
      e = Op::run(d, e, S::load(d, next + 3 * lanes));
    }
    if (divides) {
      a = divided(d, a, divisor, scales);
      b = divided(d, b, divisor, scales);
      c = divided(d, c, divisor, scales);
      e = divided(d, e, divisor, scales);
    }
    for (std::size_t i = 0; i < outputs; ++i) {
      Memory* to = kOut > 0 ? in_register(into[i] + at) : static_cast<Memory*>(arrays.outputs[i]) + at;
      S::store(d, a, to);
      S::store(d, b, to + lanes);
      S::store(d, c, to + 2 * lanes);
      S::store(d, e, to + 3 * lanes);
    }
  }
  // The rest in a copy, padded to a vector, so that its arithmetic is the same.
  for (; at < end; at += lanes) {
    const auto bytes = static_cast<std::size_t>(std::min(lanes, end - at)) * sizeof(Memory);
    HWY_ALIGN Memory few[HWY_MAX_BYTES / sizeof(Memory)] = {};
    std::memcpy(few, array_at<S>(arrays, 0) + at, bytes);
    V a = S::load(d, few);
    for (std::size_t i = 1; i < count; ++i) {
      std::memcpy(few, array_at<S>(arrays, i) + at, bytes);
      a = Op::run(d, a, S::load(d, few));
    }
    if (divides) a = divided(d, a, divisor, scales);
    S::store(d, a, few);
    for (std::size_t i = 0; i < outputs; ++i)
      std::memcpy(static_cast<Memory*>(arrays.outputs[i]) + at, few, bytes);
  }
}

template <class Op, class S>
void replicas(const ReplicaArrays& arrays, std::int64_t begin, std::int64_t end) {
  // Most all-reduces are sums, with one output or with one per input.
  if constexpr (std::is_same_v<Op, AddOf>) {
    if (arrays.num_outputs == 1) {
      if (arrays.num_inputs == 2) return replicas_of<Op, S, 2, 1>(arrays, begin, end);
      // Do the arrays fit into a core's cache? They have at least `end` elements; the first shards of long
      // arrays therefore count as short.
      constexpr std::size_t kCache = std::size_t{2} << 20U;
      const bool fits =
          static_cast<std::size_t>(end) * arrays.num_inputs * sizeof(typename S::Memory) <= kCache;
      if (arrays.num_inputs == 4) {
        return fits ? replicas_of<Op, S, 4, 1>(arrays, begin, end)
                    : replicas_of<Op, S, 4, 1, true>(arrays, begin, end);
      }
      if (arrays.num_inputs == 8) {
        return fits ? replicas_of<Op, S, 8, 1>(arrays, begin, end)
                    : replicas_of<Op, S, 8, 1, true>(arrays, begin, end);
      }
    } else if (arrays.num_outputs == arrays.num_inputs) {
      if (arrays.num_inputs == 2) return replicas_of<Op, S, 2, 2>(arrays, begin, end);
      if (arrays.num_inputs == 4) return replicas_of<Op, S, 4, 4>(arrays, begin, end);
      if (arrays.num_inputs == 8) return replicas_of<Op, S, 8, 8>(arrays, begin, end);
    }
  }
  replicas_of<Op, S, 0, 0>(arrays, begin, end);
}

template <class Op>
void set_replicas(VectorTable& table, ReplicaReduce op) {
  ReplicasLoop(&loops)[4] = table.replicas[static_cast<std::size_t>(op)];
  loops[static_cast<std::size_t>(DType::kF16)] = replicas<Op, StoredHalf<F16ToF32, F32ToF16>>;
  loops[static_cast<std::size_t>(DType::kBF16)] = replicas<Op, StoredHalf<BF16ToF32, F32ToBF16>>;
  loops[static_cast<std::size_t>(DType::kF32)] = replicas<Op, Stored<float>>;
  loops[static_cast<std::size_t>(DType::kF64)] = replicas<Op, Stored<double>>;
}
