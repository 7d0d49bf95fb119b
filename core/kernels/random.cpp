// core/kernels/random.cpp - random tensors on plain memory.
#include "lockstep/core/kernels/random.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::kernels {
namespace {

template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

constexpr std::size_t kLanes = 32;  // blocks made together: loops over lanes become vector instructions

// Word w of the blocks first + 0, 1, ... kLanes - 1.
struct Words {
  std::array<std::array<std::uint32_t, kLanes>, 4> of;
  std::uint64_t wide(std::size_t high, std::size_t lane) const {
    return std::uint64_t{of[high][lane]} << 32U | of[high + 1][lane];
  }
};

class Blocks {
 public:
  explicit Blocks(const RandomStream& stream) : key_(stream.philox_key()), counter_(stream.counter(0)) {}

  // Philox::generate for each lane. Not inlined: with more around it, the compiler keeps less of it in
  // registers.
  [[gnu::noinline]] void make(std::uint64_t first, Words& words) const {
    auto& [c0, c1, c2, c3] = words.of;
    for (std::size_t i = 0; i < kLanes; ++i) {
      c0[i] = static_cast<std::uint32_t>(first + i);
      c1[i] = static_cast<std::uint32_t>((first + i) >> 32U);
      c2[i] = counter_[2];
      c3[i] = counter_[3];
    }
    Philox::Key key = key_;
    for (int round = 0; round < 10; ++round) {
      const std::uint32_t k0 = key[0], k1 = key[1];
      for (std::size_t i = 0; i < kLanes; ++i) {
        const std::uint64_t a = std::uint64_t{0xD2511F53U} * c0[i];
        const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * c2[i];
        c0[i] = static_cast<std::uint32_t>(b >> 32U) ^ c1[i] ^ k0;
        c1[i] = static_cast<std::uint32_t>(b);
        c2[i] = static_cast<std::uint32_t>(a >> 32U) ^ c3[i] ^ k1;
        c3[i] = static_cast<std::uint32_t>(a);
      }
      key[0] += 0x9E3779B9U;
      key[1] += 0xBB67AE85U;
    }
  }

 private:
  Philox::Key key_;
  Philox::Block counter_;
};

// Makes elements group by group: `fill` turns the words of kLanes blocks into kLanes * kPerBlock elements,
// and `store` is given each of those in the range: store(index, element).
template <std::size_t kPerBlock, class Element, class Fill, class Store>
void each_element(const RandomStream& stream, std::int64_t begin, std::int64_t end, const Fill& fill,
                  const Store& store) {
  constexpr auto kGroup = static_cast<std::int64_t>(kLanes * kPerBlock);
  const Blocks blocks(stream);
  Words words;
  std::array<Element, kLanes * kPerBlock> group;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t first = at / kGroup * kGroup;
    blocks.make(static_cast<std::uint64_t>(first) / kPerBlock, words);
    fill(words, group);
    const std::int64_t stop = std::min(end, first + kGroup);
    if (stop - at == kGroup) {  // a number of iterations that the compiler knows
      for (std::int64_t i = 0; i < kGroup; ++i) store(first + i, group[static_cast<std::size_t>(i)]);
    } else {
      for (std::int64_t i = at; i < stop; ++i) store(i, group[static_cast<std::size_t>(i - first)]);
    }
    at = stop;
  }
}

// The next smaller value of T; `value` must not be the lowest.
template <class T>
T below(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::nextafter(value, -INFINITY);
  } else {
    if ((value.bits & 0x7FFFU) == 0) {
      value.bits = 0x8001U;  // under zero comes the smallest negative number
    } else {
      value.bits = static_cast<std::uint16_t>((value.bits & 0x8000U) != 0 ? value.bits + 1 : value.bits - 1);
    }
    return value;
  }
}

// A bound as an element of T, to compute with.
template <class T>
Compute<T> bound_of(double value) {
  return static_cast<Compute<T>>(T(static_cast<Compute<T>>(value)));
}

template <class T>
void fill_uniform(const RandomStream& stream, double low, double high, T* out, std::int64_t begin,
                  std::int64_t end) {
  using C = Compute<T>;
  const C first = bound_of<T>(low);
  const C last = bound_of<T>(high);
  const C span = last - first;
  if (!is_uniform_range(dtype_of<T>, low, high)) {
    throw InvalidArgument(str("uniform: expected finite bounds with low < high in ", dtype_of<T>, ", got [",
                              low, ", ", high, ")"));
  }
  const T top = below(T(last));
  const auto store = [=](std::int64_t i, C unit) {
    const T value = T(first + span * unit);
    out[i] = static_cast<C>(value) < last ? value : top;
  };
  if constexpr (std::is_same_v<T, double>) {
    const auto fill = [](const Words& words, auto& group) {
      for (std::size_t i = 0; i < kLanes; ++i) {
        group[2 * i] = Philox::to_unit_double(words.of[0][i], words.of[1][i]);
        group[2 * i + 1] = Philox::to_unit_double(words.of[2][i], words.of[3][i]);
      }
    };
    each_element<2, double>(stream, begin, end, fill, store);
  } else {
    const auto fill = [](const Words& words, auto& group) {
      for (std::size_t i = 0; i < kLanes; ++i) {
        for (std::size_t w = 0; w < 4; ++w) group[4 * i + w] = Philox::to_unit_float(words.of[w][i]);
      }
    };
    each_element<4, float>(stream, begin, end, fill, store);
  }
}

// --- normal

// Constants of the series below, which stop where the next term is below the rounding error of C.
template <class C>
struct Terms;
template <>
struct Terms<float> {
  using Bits = std::uint32_t;
  static constexpr int kMantissa = 23, kLog = 5, kTrigonometric = 6;
  static constexpr Bits kRootOfHalf = 0x3F3504F3U;
};
template <>
struct Terms<double> {
  using Bits = std::uint64_t;
  static constexpr int kMantissa = 52, kLog = 12, kTrigonometric = 10;
  static constexpr Bits kRootOfHalf = 0x3FE6A09E667F3BCDU;
};

// 1/3, 1/5, ...: log((1+s)/(1-s)) = 2s (1 + s^2/3 + s^4/5 + ...).
template <class C>
constexpr auto log_terms() {
  std::array<C, Terms<C>::kLog> terms{};
  for (std::size_t i = 0; i < terms.size(); ++i)
    terms[i] = static_cast<C>(1.0L / static_cast<long double>(2 * i + 1));
  return terms;
}

// (-1)^i / (2i + odd)!, the series of the sine (odd 1) and of the cosine (odd 0) in x^2.
template <class C>
constexpr auto trigonometric_terms(int odd) {
  std::array<C, Terms<C>::kTrigonometric> terms{};
  long double factorial = 1;
  for (int i = 0; i < Terms<C>::kTrigonometric; ++i) {
    if (i > 0) factorial *= -static_cast<long double>((2 * i + odd) * (2 * i + odd - 1));
    terms[static_cast<std::size_t>(i)] = static_cast<C>(1 / factorial);
  }
  return terms;
}

template <class C, std::size_t N>
[[gnu::always_inline]] inline C polynomial(const std::array<C, N>& terms, C x) {
  C sum = terms[N - 1];
  for (std::size_t i = N - 1; i-- > 0;) sum = sum * x + terms[i];
  return sum;
}

// The logarithm of a normal number above 0: its exponent, plus the series for the remaining factor, which
// lies between sqrt(1/2) and sqrt(2).
template <class C>
[[gnu::always_inline]] inline C log_of(C x) {
  using Bits = typename Terms<C>::Bits;
  using Signed = std::make_signed_t<Bits>;
  constexpr C kLn2High = static_cast<C>(0x1.62e4p-1L), kLn2Low = static_cast<C>(1.42860682030941723212e-6L);
  constexpr auto kTerms = log_terms<C>();
  const Bits shifted = std::bit_cast<Bits>(x) - Terms<C>::kRootOfHalf;
  const auto exponent = static_cast<C>(static_cast<Signed>(shifted) >> Terms<C>::kMantissa);
  const Bits fraction = (shifted & ((Bits{1} << Terms<C>::kMantissa) - 1)) + Terms<C>::kRootOfHalf;
  const C f = std::bit_cast<C>(fraction) - 1;
  const C s = f / (f + 2);
  const C series = 2 * s * polynomial(kTerms, s * s);
  return exponent * kLn2High + (exponent * kLn2Low + series);
}

// Two independent normal numbers from two words: a radius from one and an angle from the other.
template <class C>
[[gnu::always_inline]] inline void box_muller(typename Terms<C>::Bits radius_word,
                                              typename Terms<C>::Bits angle_word, C& first, C& second) {
  using Bits = typename Terms<C>::Bits;
  using Signed = std::make_signed_t<Bits>;
  constexpr int kBits = std::numeric_limits<Bits>::digits;
  constexpr C kScale = std::is_same_v<C, float> ? static_cast<C>(0x1p-32) : static_cast<C>(0x1p-64);
  constexpr auto kSine = trigonometric_terms<C>(1), kCosine = trigonometric_terms<C>(0);
  const C radius = std::sqrt(-2 * log_of<C>(static_cast<C>(radius_word | 1U) * kScale));
  // The angle in quarter turns: the nearest whole number of them, and an exact remainder between -1/2 and
  // 1/2.
  const Bits quarter = (angle_word + (Bits{1} << (kBits - 3))) >> (kBits - 2);
  const C rest = static_cast<C>(static_cast<Signed>(angle_word - (quarter << (kBits - 2)))) * (kScale * 4);
  const C x = rest * static_cast<C>(1.570796326794896619231321691639751442L);
  const C sine = x * polynomial(kSine, x * x), cosine = polynomial(kCosine, x * x);
  const bool swapped = (quarter & 1U) != 0;
  const C along = swapped ? sine : cosine, across = swapped ? cosine : sine;
  const bool left = ((quarter + 1U) & 2U) != 0, down = (quarter & 2U) != 0;
  first = radius * (left ? -along : along);
  second = radius * (down ? -across : across);
}

template <class T>
void fill_normal(const RandomStream& stream, double mean, double stddev, T* out, std::int64_t begin,
                 std::int64_t end) {
  using C = Compute<T>;
  const C centre = static_cast<C>(mean), scale = static_cast<C>(stddev);
  const auto store = [=](std::int64_t i, C unit) { out[i] = T(centre + scale * unit); };
  if constexpr (std::is_same_v<T, double>) {
    const auto fill = [](const Words& words, auto& group) {
      for (std::size_t i = 0; i < kLanes; ++i) {
        box_muller(words.wide(0, i), words.wide(2, i), group[2 * i], group[2 * i + 1]);
      }
    };
    each_element<2, double>(stream, begin, end, fill, store);
  } else {
    const auto fill = [](const Words& words, auto& group) {
      for (std::size_t w = 0; w < 4; w += 2) {
        for (std::size_t i = 0; i < kLanes; ++i) {
          box_muller(words.of[w][i], words.of[w + 1][i], group[4 * i + w], group[4 * i + w + 1]);
        }
      }
    };
    each_element<4, float>(stream, begin, end, fill, store);
  }
}

// --- integers

// The upper half of the product of two 64-bit numbers.
std::uint64_t high_product(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t a0 = a & 0xFFFFFFFFU, a1 = a >> 32U, b0 = b & 0xFFFFFFFFU, b1 = b >> 32U;
  const std::uint64_t middle = a1 * b0 + ((a0 * b0) >> 32U);
  const std::uint64_t carry = a0 * b1 + (middle & 0xFFFFFFFFU);
  return a1 * b1 + (middle >> 32U) + (carry >> 32U);
}

void wide_words(const Words& words, std::array<std::uint64_t, 2 * kLanes>& group) {
  for (std::size_t i = 0; i < kLanes; ++i) {
    group[2 * i] = words.wide(0, i);
    group[2 * i + 1] = words.wide(2, i);
  }
}

void check_floating(const char* what, DType dtype, std::int64_t begin, std::int64_t end) {
  LOCKSTEP_CHECK(0 <= begin && begin <= end, what, ": range [", begin, ", ", end, ")");
  if (!is_floating(dtype)) {
    throw InvalidArgument(str(what, ": expected a floating dtype (f16, bf16, f32 or f64), got ", dtype));
  }
}

}  // namespace

bool is_uniform_range(DType dtype, double low, double high) {
  return visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) {
      const Compute<T> first = bound_of<T>(low), last = bound_of<T>(high);
      return first < last && std::isfinite(last - first);
    }
    return false;
  });
}

bool is_integer_range(DType dtype, std::int64_t low, std::int64_t high) {
  return low < high && visit_dtype(dtype, [&]<class T>(T) {
           if constexpr (is_integer(dtype_of<T>)) return std::in_range<T>(low) && std::in_range<T>(high - 1);
           return false;
         });
}

void uniform(DType dtype, const RandomStream& stream, double low, double high, void* out, std::int64_t begin,
             std::int64_t end) {
  check_floating("uniform", dtype, begin, end);
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) {
      fill_uniform(stream, low, high, static_cast<T*>(out), begin, end);
    }
  });
}

void normal(DType dtype, const RandomStream& stream, double mean, double stddev, void* out,
            std::int64_t begin, std::int64_t end) {
  check_floating("normal", dtype, begin, end);
  if (!std::isfinite(mean) || !std::isfinite(stddev) || stddev < 0) {
    throw InvalidArgument(
        str("normal: expected a finite mean and a finite stddev >= 0, got ", mean, " and ", stddev));
  }
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) {
      fill_normal(stream, mean, stddev, static_cast<T*>(out), begin, end);
    }
  });
}

void integers(DType dtype, const RandomStream& stream, std::int64_t low, std::int64_t high, void* out,
              std::int64_t begin, std::int64_t end) {
  LOCKSTEP_CHECK(0 <= begin && begin <= end, "integers: range [", begin, ", ", end, ")");
  if (!is_integer(dtype)) {
    throw InvalidArgument(str("integers: expected an integer dtype (i32, i64 or u8), got ", dtype));
  }
  if (low >= high) throw InvalidArgument(str("integers: expected low < high, got [", low, ", ", high, ")"));
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (is_integer(dtype_of<T>)) {
      if (!is_integer_range(dtype, low, high)) {
        throw InvalidArgument(str("integers: ", dtype, " does not hold all of [", low, ", ", high, ")"));
      }
      const auto span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
      auto* to = static_cast<T*>(out);
      const auto from = static_cast<std::uint64_t>(low);
      if (span <= 0xFFFFFFFFU) {  // the same number, by multiplications that exist as vector instructions
        each_element<2, std::uint64_t>(
            stream, begin, end, wide_words, [=](std::int64_t i, std::uint64_t word) {
              const std::uint64_t small = (word & 0xFFFFFFFFU) * span;
              to[i] = static_cast<T>(from + (((word >> 32U) * span + (small >> 32U)) >> 32U));
            });
        return;
      }
      each_element<2, std::uint64_t>(stream, begin, end, wide_words, [=](std::int64_t i, std::uint64_t word) {
        to[i] = static_cast<T>(from + high_product(word, span));
      });
    }
  });
}

void permutation(const RandomStream& stream, std::int64_t n, std::int64_t* out) {
  std::iota(out, out + n, std::int64_t{0});
  each_element<2, std::uint64_t>(stream, 0, n, wide_words, [=](std::int64_t i, std::uint64_t word) {
    const auto left = static_cast<std::uint64_t>(n - i);
    std::swap(out[i], out[i + static_cast<std::int64_t>(high_product(word, left))]);
  });
}

void dropout(DType dtype, const RandomStream& stream, double rate, const void* x, void* out,
             std::int64_t begin, std::int64_t end) {
  const auto at = begin * static_cast<std::int64_t>(size_of(dtype));
  dropout_part(dtype, stream, rate, static_cast<const char*>(x) + at, static_cast<char*>(out) + at, begin,
               end);
}

void dropout_part(DType dtype, const RandomStream& stream, double rate, const void* x, void* out,
                  std::int64_t begin, std::int64_t end) {
  check_floating("dropout", dtype, begin, end);
  if (!(rate >= 0 && rate <= 1))
    throw InvalidArgument(str("dropout: expected a rate from 0 to 1, got ", rate));
  const auto words_of = [](const Words& words, std::array<std::uint32_t, 4 * kLanes>& group) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      for (std::size_t w = 0; w < 4; ++w) group[4 * i + w] = words.of[w][i];
    }
  };
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) {
      using C = Compute<T>;
      using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                      std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
      const auto* from = static_cast<const T*>(x);
      auto* to = static_cast<T*>(out);
      if (rate == 1) {
        std::fill(to, to + (end - begin), T{});
        return;
      }
      const auto dropped = static_cast<std::uint32_t>(rate * 0x1p32);
      const C scale = static_cast<C>(1 / (1 - rate));
      constexpr auto kGroup = static_cast<std::int64_t>(4 * kLanes);
      const Blocks blocks(stream);
      Words words;
      std::array<std::uint32_t, 4 * kLanes> group;
      std::array<T, 4 * kLanes> elements{};
      for (std::int64_t at = begin; at < end;) {
        const std::int64_t first = at / kGroup * kGroup, stop = std::min(end, first + kGroup);
        blocks.make(static_cast<std::uint64_t>(first) / 4, words);
        words_of(words, group);
        // Through a copy, since `out` may be `x`, and as a whole group, so that the loop has a fixed number
        // of iterations.
        std::copy(from + (at - begin), from + (stop - begin), elements.begin() + (at - first));
        for (std::size_t i = 0; i < elements.size(); ++i) {
          const Bits kept = std::bit_cast<Bits>(T(static_cast<C>(elements[i]) * scale));
          const Bits mask = group[i] >= dropped ? static_cast<Bits>(~Bits{0}) : Bits{0};
          elements[i] = std::bit_cast<T>(static_cast<Bits>(kept & mask));
        }
        std::copy(elements.begin() + (at - first), elements.begin() + (stop - first), to + (at - begin));
        at = stop;
      }
    }
  });
}

}  // namespace lockstep::kernels
