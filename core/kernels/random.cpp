#include "lockstep/core/kernels/random.h"

#include <cmath>
#include <cstddef>
#include <type_traits>

#include "lockstep/core/error.h"

namespace lockstep::kernels {
namespace {

template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The next value of T below one that is not the lowest.
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

template <class T>
void fill_uniform(const RandomStream& stream, double low, double high, T* out, std::int64_t begin,
                  std::int64_t end) {
  using C = Compute<T>;
  constexpr std::int64_t kPerBlock = std::is_same_v<T, double> ? 2 : 4;
  const auto bound = [](double value) { return static_cast<C>(T(static_cast<C>(value))); };
  const C first = bound(low);
  const C last = bound(high);
  const C span = last - first;
  if (!(first < last) || !std::isfinite(span)) {
    throw InvalidArgument(str("uniform: expected finite bounds with low < high in ", dtype_of<T>, ", got [",
                              low, ", ", high, ")"));
  }
  const T top = below(T(last));
  Philox::Block words{};
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t lane = i % kPerBlock;
    if (i == begin || lane == 0) words = stream.block(static_cast<std::uint64_t>(i / kPerBlock));
    const auto word = static_cast<std::size_t>(lane);
    C unit;
    if constexpr (std::is_same_v<T, double>) {
      unit = Philox::to_unit_double(words[2 * word], words[2 * word + 1]);
    } else {
      unit = Philox::to_unit_float(words[word]);
    }
    const T value = T(first + span * unit);
    out[i] = static_cast<C>(value) < last ? value : top;
  }
}

}  // namespace

void uniform(DType dtype, const RandomStream& stream, double low, double high, void* out, std::int64_t begin,
             std::int64_t end) {
  LOCKSTEP_CHECK(0 <= begin && begin <= end, "uniform: range [", begin, ", ", end, ")");
  if (!is_floating(dtype)) {
    throw InvalidArgument(str("uniform: expected a floating dtype (f16, bf16, f32 or f64), got ", dtype));
  }
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) {
      fill_uniform(stream, low, high, static_cast<T*>(out), begin, end);
    }
  });
}

}  // namespace lockstep::kernels
