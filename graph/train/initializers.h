// graph/train/initializers.h - first values of variables.
//
//   VariableRef w = b.variable("w", initializers::glorot_uniform({784, 128}, 1));
//   VariableRef table = b.variable(initializers::declare("table", initializers::normal({1000, 64}, 2)));
//
// Tensors made on the host, at once. The bits follow from the seed, the shape and the dtype alone: not from
// threads, nor from what else is drawn. Equal seeds give equal numbers, so give each variable a seed of its
// own.
//
// Fans: a dense kernel [in, out] has fan_in = in and fan_out = out; a kernel of a convolution [..., in, out]
// has both times the extent of its window. A vector has both equal to its length, a scalar 1.
//
// f16 and bf16 round what is drawn in f64. Errors (InvalidArgument): a dtype that is not floating, a shape
// that is not known, a deviation that is not finite or below 0. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep::initializers {

LOCKSTEP_API Tensor zeros(const Shape& shape, DType dtype = DType::kF32);
LOCKSTEP_API Tensor constant(const Shape& shape, double value, DType dtype = DType::kF32);

struct Range {
  double low = -0.05;
  double high = 0.05;
};
// Uniform in [low, high), before it is rounded to the dtype.
LOCKSTEP_API Tensor uniform(const Shape& shape, std::uint64_t seed, Range range = {},
                            DType dtype = DType::kF32);

struct Spread {
  double mean = 0;
  double stddev = 0.05;
};
LOCKSTEP_API Tensor normal(const Shape& shape, std::uint64_t seed, Spread spread = {},
                           DType dtype = DType::kF32);
// Normal, drawn again if it is two deviations or more from the mean; `stddev` is that of the normal
// distribution before it is cut.
LOCKSTEP_API Tensor truncated_normal(const Shape& shape, std::uint64_t seed, Spread spread = {},
                                     DType dtype = DType::kF32);

// For layers with tanh or sigmoid: the variance is 2 / (fan_in + fan_out). Uniform in +-sqrt(6 / (fan_in +
// fan_out)), or truncated normal of that variance after the cut.
LOCKSTEP_API Tensor glorot_uniform(const Shape& shape, std::uint64_t seed, DType dtype = DType::kF32);
LOCKSTEP_API Tensor glorot_normal(const Shape& shape, std::uint64_t seed, DType dtype = DType::kF32);
// For layers with relu: the variance is 2 / fan_in. Uniform in +-sqrt(6 / fan_in), or truncated normal.
LOCKSTEP_API Tensor he_uniform(const Shape& shape, std::uint64_t seed, DType dtype = DType::kF32);
LOCKSTEP_API Tensor he_normal(const Shape& shape, std::uint64_t seed, DType dtype = DType::kF32);

// With all axes but the last merged: a matrix with orthonormal columns (rows if it is wider than high), times
// `gain`; uniform over all such matrices. Rank 2 or more. Takes rows * columns * min(rows, columns) steps, in
// f64.
LOCKSTEP_API Tensor orthogonal(const Shape& shape, std::uint64_t seed, double gain = 1,
                               DType dtype = DType::kF32);

struct Fans {
  double in = 1;
  double out = 1;
};
LOCKSTEP_API Fans fans_of(const Shape& shape);

// A trainable variable with that initial value; change its other fields as needed.
LOCKSTEP_API VariableDecl declare(std::string name, Tensor initial);

}  // namespace lockstep::initializers
