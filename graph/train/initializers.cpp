// graph/train/initializers.cpp - first values of variables.
#include "lockstep/graph/train/initializers.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/random.h"

namespace lockstep::initializers {

namespace {

// The standard deviation of a standard normal distribution that is cut at two.
constexpr double kTruncatedDeviation = 0.87962566103423978;

void check(std::string_view what, const Shape& shape, DType dtype) {
  if (!is_floating(dtype)) throw InvalidArgument(str(what, ": draws floating numbers, not ", dtype));
  if (!shape.is_known()) throw InvalidArgument(str(what, ": needs a known shape, got ", shape));
}

void check(std::string_view what, const Spread& spread) {
  if (!std::isfinite(spread.mean) || !std::isfinite(spread.stddev) || spread.stddev < 0) {
    throw InvalidArgument(str(what,
                              ": the deviation must be finite and 0 or more, and the mean finite; got mean ",
                              spread.mean, " and deviation ", spread.stddev));
  }
}

// Element i is number(i), rounded to the dtype.
template <class F>
Tensor filled(const Shape& shape, DType dtype, F&& number) {
  Tensor result = Tensor::empty(dtype, shape);
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) {
      std::uint64_t i = 0;
      for (T& element : result.data<T>()) {
        if constexpr (std::is_same_v<T, double>) {
          element = number(i++);
        } else {
          element = T(static_cast<float>(number(i++)));
        }
      }
    }
  });
  return result;
}

// Keys of the streams, so that equal seeds give unrelated numbers to different distributions.
enum : std::uint64_t { kUniformKey = 1, kNormalKey = 2, kTruncatedKey = 3, kOrthogonalKey = 4 };

// In [0, 1).
double unit(const RandomStream& stream, std::uint64_t index) {
  const Philox::Block block = stream.block(index / 2);
  const std::size_t at = 2 * static_cast<std::size_t>(index % 2);
  return Philox::to_unit_double(block[at], block[at + 1]);
}

// Standard normal, by Box and Muller from one block.
double gauss(const RandomStream& stream, std::uint64_t block) {
  const double radius = std::sqrt(-2 * std::log(1 - unit(stream, 2 * block)));  // 1 - u is above 0
  return radius * std::cos(2 * std::numbers::pi * unit(stream, 2 * block + 1));
}

// Standard normal, cut at two: one in 22 draws is too large, so 32 attempts always suffice in practice.
double truncated_gauss(const RandomStream& stream, std::uint64_t index) {
  for (std::uint64_t attempt = 0; attempt < 32; ++attempt) {
    const double value = gauss(stream, index * 32 + attempt);
    if (std::abs(value) < 2) return value;
  }
  return 0;
}

Tensor scaled_uniform(std::string_view what, const Shape& shape, std::uint64_t seed, double fan,
                      DType dtype) {
  check(what, shape, dtype);
  const double limit = std::sqrt(6 / std::max(fan, 1.0));
  return uniform(shape, seed, {-limit, limit}, dtype);
}

Tensor scaled_normal(std::string_view what, const Shape& shape, std::uint64_t seed, double fan, DType dtype) {
  check(what, shape, dtype);
  return truncated_normal(shape, seed, {0, std::sqrt(2 / std::max(fan, 1.0)) / kTruncatedDeviation}, dtype);
}

// Makes each row of a matrix orthogonal to those before it and of length one (Gram-Schmidt, done twice, which
// leaves only rounding errors). Taking the rows in order with a positive factor makes the result uniform.
void orthonormalise(std::vector<double>& matrix, std::size_t rows, std::size_t length) {
  const auto row = [&](std::size_t i) { return matrix.data() + i * length; };
  const auto dot = [&](const double* a, const double* b) {
    double total = 0;
    for (std::size_t i = 0; i < length; ++i) total += a[i] * b[i];
    return total;
  };
  for (std::size_t i = 0; i < rows; ++i) {
    double* mine = row(i);
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t j = 0; j < i; ++j) {
        const double* other = row(j);
        const double by = dot(mine, other);
        for (std::size_t k = 0; k < length; ++k) mine[k] -= by * other[k];
      }
    }
    const double norm = std::sqrt(dot(mine, mine));
    for (std::size_t k = 0; k < length; ++k) mine[k] /= norm;
  }
}

}  // namespace

Tensor zeros(const Shape& shape, DType dtype) { return Tensor::zeros(dtype, shape); }
Tensor constant(const Shape& shape, double value, DType dtype) { return Tensor::full(dtype, shape, value); }

Tensor uniform(const Shape& shape, std::uint64_t seed, Range range, DType dtype) {
  check("uniform", shape, dtype);
  if (!std::isfinite(range.high - range.low) || !(range.low < range.high)) {
    throw InvalidArgument(str("uniform: the range must be finite, and its low end below its high one; got [",
                              range.low, ", ", range.high, ")"));
  }
  const RandomStream stream{.seed = seed, .key = kUniformKey};
  return filled(shape, dtype,
                [&](std::uint64_t i) { return range.low + (range.high - range.low) * unit(stream, i); });
}

Tensor normal(const Shape& shape, std::uint64_t seed, Spread spread, DType dtype) {
  check("normal", shape, dtype);
  check("normal", spread);
  const RandomStream stream{.seed = seed, .key = kNormalKey};
  return filled(shape, dtype,
                [&](std::uint64_t i) { return spread.mean + spread.stddev * gauss(stream, i); });
}

Tensor truncated_normal(const Shape& shape, std::uint64_t seed, Spread spread, DType dtype) {
  check("truncated_normal", shape, dtype);
  check("truncated_normal", spread);
  const RandomStream stream{.seed = seed, .key = kTruncatedKey};
  return filled(shape, dtype,
                [&](std::uint64_t i) { return spread.mean + spread.stddev * truncated_gauss(stream, i); });
}

Fans fans_of(const Shape& shape) {
  if (shape.rank() == 0) return {};
  if (shape.rank() == 1) return {static_cast<double>(shape[0]), static_cast<double>(shape[0])};
  double window = 1;
  for (std::size_t axis = 0; axis + 2 < shape.rank(); ++axis) window *= static_cast<double>(shape[axis]);
  return {window * static_cast<double>(shape[shape.rank() - 2]),
          window * static_cast<double>(shape[shape.rank() - 1])};
}

Tensor glorot_uniform(const Shape& shape, std::uint64_t seed, DType dtype) {
  const Fans fans = fans_of(shape);
  return scaled_uniform("glorot_uniform", shape, seed, fans.in + fans.out, dtype);
}
Tensor glorot_normal(const Shape& shape, std::uint64_t seed, DType dtype) {
  const Fans fans = fans_of(shape);
  return scaled_normal("glorot_normal", shape, seed, fans.in + fans.out, dtype);
}
Tensor he_uniform(const Shape& shape, std::uint64_t seed, DType dtype) {
  return scaled_uniform("he_uniform", shape, seed, fans_of(shape).in, dtype);
}
Tensor he_normal(const Shape& shape, std::uint64_t seed, DType dtype) {
  return scaled_normal("he_normal", shape, seed, fans_of(shape).in, dtype);
}

Tensor orthogonal(const Shape& shape, std::uint64_t seed, double gain, DType dtype) {
  check("orthogonal", shape, dtype);
  if (shape.rank() < 2) throw InvalidArgument(str("orthogonal: needs rank 2 or more, got ", shape));
  if (!std::isfinite(gain))
    throw InvalidArgument(str("orthogonal: the gain is ", gain, "; it must be finite"));
  const auto elements = static_cast<std::size_t>(shape.num_elements());
  if (elements == 0) return Tensor::zeros(dtype, shape);
  const auto columns = static_cast<std::size_t>(shape[shape.rank() - 1]);
  const std::size_t rows = elements / columns;
  // The shorter side holds the orthonormal vectors, which lie in rows here.
  const std::size_t vectors = std::min(rows, columns), length = std::max(rows, columns);
  const RandomStream stream{.seed = seed, .key = kOrthogonalKey};
  std::vector<double> matrix(elements);
  for (std::size_t i = 0; i < elements; ++i) matrix[i] = gauss(stream, i);
  orthonormalise(matrix, vectors, length);
  return filled(shape, dtype, [&](std::uint64_t i) {
    const std::size_t row = i / columns, column = i % columns;
    return gain * (rows < columns ? matrix[row * length + column] : matrix[column * length + row]);
  });
}

VariableDecl declare(std::string name, Tensor initial) {
  VariableDecl decl;
  decl.name = std::move(name);
  decl.spec = initial.spec();
  decl.initial = std::move(initial);
  return decl;
}

}  // namespace lockstep::initializers
