// graph/ops/random.h - random draws.
//
// What a random op draws follows from the run's seed and step, the replica that runs it and its key, and from
// nothing else. Two ops with one key draw the same numbers. If no key is given, the builder gives each call
// its own, a negative one: your own keys from 0 up never collide with it.
// The body of a loop has one key and runs in one step: every trip draws the same numbers. Draw the numbers of
// all trips before the loop, and let each trip gather() its own.
//
// A shape is given with the spec, or as a Value (an i64 vector that follows from constants and from shapes,
// see OpDef::shape_operands): random_normal(shape_of(x), x.dtype()).
// Thread safety: as the builder.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

using RandomKey = std::optional<std::int64_t>;

// Uniform in [low, high), floating. GraphBuilder::random_uniform is the form with a spec.
LOCKSTEP_API Value random_uniform(const Value& shape, DType dtype, double low = 0, double high = 1,
                                  RandomKey key = std::nullopt, SourceSite site = SourceSite::current());
// Normal with this mean and standard deviation, floating.
LOCKSTEP_API Value random_normal(GraphBuilder& builder, const TensorSpec& spec, double mean = 0,
                                 double stddev = 1, RandomKey key = std::nullopt,
                                 SourceSite site = SourceSite::current());
LOCKSTEP_API Value random_normal(const Value& shape, DType dtype, double mean = 0, double stddev = 1,
                                 RandomKey key = std::nullopt, SourceSite site = SourceSite::current());
// Integers from low to high - 1, i32, i64 or u8.
LOCKSTEP_API Value random_integers(GraphBuilder& builder, const TensorSpec& spec, std::int64_t low,
                                   std::int64_t high, RandomKey key = std::nullopt,
                                   SourceSite site = SourceSite::current());
LOCKSTEP_API Value random_integers(const Value& shape, DType dtype, std::int64_t low, std::int64_t high,
                                   RandomKey key = std::nullopt, SourceSite site = SourceSite::current());
// The numbers 0 to n-1 in random order, i64[n].
LOCKSTEP_API Value random_permutation(GraphBuilder& builder, std::int64_t n, RandomKey key = std::nullopt,
                                      SourceSite site = SourceSite::current());
// x with each element set to 0 with probability `rate`, the others divided by 1 - rate. The gradient passes
// through what was kept.
LOCKSTEP_API Value dropout(const Operand& x, double rate, RandomKey key = std::nullopt);

}  // namespace lockstep
