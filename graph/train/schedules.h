// graph/train/schedules.h - learning rates that change from step to step.
//
//   const Adam adam(schedules::cosine_decay({.initial = 1e-3, .steps = 10'000, .warmup = 500}));
//
// A Schedule makes the nodes that compute the learning rate, an f64 scalar, from t, the number of steps taken
// before this one (an i64 scalar, 0 in the first step). The rate follows from the optimizer's `iterations`
// variable alone, so that a step that did not commit does not count, and a restored checkpoint goes on where
// it was. Nodes that a function of yours makes carry its lines.
//
// Thread safety: as the builder; schedules themselves never change.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/value.h"

namespace lockstep {

using Schedule = std::function<Value(const Value& iterations)>;

// A number (0 or more), a Schedule, or a function GraphBuilder& -> Value, which may read a variable that the
// host sets. The value is a scalar of f32 or f64. An empty function is refused when the rate is asked for
// (InvalidArgument).
class LOCKSTEP_API LearningRate {
 public:
  template <class Number>
  requires std::is_arithmetic_v<Number> LearningRate(Number number)  // NOLINT(google-explicit-constructor)
      : LearningRate(static_cast<double>(number), 0) {}
  template <class F>
  requires std::is_invocable_r_v<Value, const F&, const Value&> LearningRate(
      F schedule)  // NOLINT(google-explicit-constructor)
      : schedule_(std::move(schedule)) {}
  template <class F>
  requires(std::is_invocable_r_v<Value, const F&, GraphBuilder&> &&
           !std::is_invocable_r_v<Value, const F&, const Value&>)
      LearningRate(F make)  // NOLINT(google-explicit-constructor)
      : make_(std::move(make)) {}

  // The value of the rate, for an optimizer that counts its steps in `iterations`. Nodes that the user's own
  // code does not make carry the given line.
  Value at(GraphBuilder& builder, const VariableRef& iterations,
           SourceSite site = SourceSite::current()) const;

 private:
  LearningRate(double number, int);

  double number_ = std::numeric_limits<double>::quiet_NaN();  // NaN if it is a function
  Schedule schedule_;
  std::function<Value(GraphBuilder&)> make_;
};

namespace schedules {

// The nodes of these carry the line that made the schedule.

// Always the same.
LOCKSTEP_API Schedule constant(double rate, SourceSite site = SourceSite::current());

struct ExponentialDecay {
  double initial = 0;
  std::int64_t steps = 1;  // the factor is applied once per this many steps
  double factor = 0.96;
  bool staircase = false;  // at once at the end of each period, rather than gradually
};
// initial * factor^(t / steps), the quotient rounded down for a staircase.
LOCKSTEP_API Schedule exponential_decay(const ExponentialDecay& options,
                                        SourceSite site = SourceSite::current());

struct PolynomialDecay {
  double initial = 0;
  std::int64_t steps = 1;  // after this many it stays at `final`
  double final = 0;
  double power = 1;  // 1: a straight line
};
// (initial - final) * (1 - min(t, steps) / steps)^power + final.
LOCKSTEP_API Schedule polynomial_decay(const PolynomialDecay& options,
                                       SourceSite site = SourceSite::current());

struct CosineDecay {
  double initial = 0;      // after the warm-up
  std::int64_t steps = 1;  // from the end of the warm-up; after this many it stays at `final`
  double final = 0;
  std::int64_t warmup = 0;  // steps of a straight line from 0 up to `initial`
};
// final + (initial - final) * (1 + cos(pi * min(t - warmup, steps) / steps)) / 2; during the warm-up initial
// * (t + 1) / (warmup + 1).
LOCKSTEP_API Schedule cosine_decay(const CosineDecay& options, SourceSite site = SourceSite::current());

// values[i] where i is the number of boundaries that t has reached: values[0] for t < boundaries[0], and so
// on. The boundaries rise; there is one value more than boundaries.
LOCKSTEP_API Schedule piecewise_constant(std::vector<std::int64_t> boundaries, std::vector<double> values,
                                         SourceSite site = SourceSite::current());

struct InverseSqrt {
  double peak = 0;          // reached at the end of the warm-up
  std::int64_t warmup = 1;  // steps of a straight line up to `peak`; 1 or more
};
// peak * min((t + 1) / warmup, sqrt(warmup / (t + 1))).
LOCKSTEP_API Schedule inverse_sqrt(const InverseSqrt& options, SourceSite site = SourceSite::current());

}  // namespace schedules

}  // namespace lockstep
