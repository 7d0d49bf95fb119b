// graph/schedules.h - learning rates that change from step to step.
//
// A Schedule makes nodes: from the number of steps taken before this one (an i64 scalar, 0 in the first step) to the
// learning rate, an f64 scalar. It follows from the optimizer's `iterations` variable alone, so that a step that did not
// commit does not count, and a restored checkpoint goes on where it was. t below is that number.
//
// Thread safety: as the builder; schedules themselves never change.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "lockstep/core/export.h"
#include "lockstep/graph/builder.h"
#include "lockstep/graph/value.h"

namespace lockstep {

using Schedule = std::function<Value(const Value& iterations)>;

// A number (0 or more), a Schedule, or a function GraphBuilder& -> Value, which may read a variable that the host sets. The
// value is a scalar of f32 or f64.
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

  // The node that gives it, for an optimizer that counts its steps in `iterations`.
  Value at(GraphBuilder& builder, const VariableRef& iterations) const;

 private:
  LearningRate(double number, int);

  double number_ = 0;
  Schedule schedule_;
  std::function<Value(GraphBuilder&)> make_;
};

}  // namespace lockstep
